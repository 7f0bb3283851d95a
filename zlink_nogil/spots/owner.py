"""What a Spot and an Actor have in common for whoever writes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zlink_nogil.execution import Call
from zlink_nogil.spots.message import NO_METADATA
from zlink_nogil.spots.refs import ActorRef, SpotRef

if TYPE_CHECKING:
    from zlink_nogil.spots.actors import Actors
    from zlink_nogil.spots.spots import Spots

__all__ = ["Owner"]


class Owner:
    """State lives on the object; its handlers touch it without locks. What is here is set before `on_create`."""

    spots: Spots
    """The host's Spots."""
    actors: Actors
    """The host's Actors."""

    def ask[R](
        self,
        target: SpotRef | ActorRef,
        message: Any,
        *,
        reply: type[R] | Any = Any,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
    ) -> Call[R]:
        """`await self.ask(...)` keeps the turn, `await self.ask(...).yield_()` gives a shared gate back meanwhile.

        Options and errors as in `Directory.request`.
        """
        return target.request(message, reply=reply, timeout=timeout, metadata=metadata)

    def on_create(self) -> Any:
        """Hook: the first turn. Plain or `async def`, as all hooks; what it raises is the creation's failure."""

    def on_close(self) -> Any:
        """Hook: the last turn, when everything accepted is over."""
