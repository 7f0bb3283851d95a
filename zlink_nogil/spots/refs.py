"""`SpotRef`, `ActorRef`: names of owners, to keep and to pass on. A ref holds nobody alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zlink_nogil.execution import Call
from zlink_nogil.spots.message import NO_METADATA
from zlink_nogil.spots.names import check_id

if TYPE_CHECKING:
    from zlink_nogil.spots.directory import Directory

__all__ = ["ActorRef", "SpotRef", "spot_id_of"]


class _Ref:
    __slots__ = ("_directory", "id")

    def __init__(self, directory: Directory[Any], owner_id: str) -> None:
        self._directory = directory
        self.id = owner_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ref) and other._directory is self._directory and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def send(
        self,
        message: Any,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[None]:
        """See `Directory.send`."""
        return self._directory.send(self.id, message, timeout=timeout, metadata=metadata, declared=declared, name=name)

    def request[R](
        self,
        message: Any,
        *,
        reply: type[R] | Any = Any,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[R]:
        """See `Directory.request`."""
        return self._directory.request(
            self.id, message, reply=reply, timeout=timeout, metadata=metadata, declared=declared, name=name
        )

    def close(self, **options: Any) -> Call[None]:
        """See `Directory.close`."""
        return self._directory.close(self.id, **options)


class SpotRef(_Ref):
    """A Spot's. Thread-safe."""

    __slots__ = ()


def spot_id_of(spot: SpotRef | str) -> str:
    """`TypeError` or `ValueError` for what is no Spot's ref or id."""
    return spot.id if isinstance(spot, SpotRef) else check_id("a spot id", spot)


class ActorRef(_Ref):
    """An Actor's. Thread-safe."""

    __slots__ = ()
