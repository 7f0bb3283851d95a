"""`Elsewhere`: the Spots and Actors of other nodes, as a directory sees them. Messaging provides it.

Without it a directory is all there is: what is not in it does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from zlink_nogil.errors import AlreadyExists
from zlink_nogil.scheduler import Completion, Wait

__all__ = ["Asked", "Elsewhere", "TakenElsewhere"]


class Asked(NamedTuple):
    """One call to a Spot or an Actor, checked. A request has `reply`, the type of its answer; `timeout` in seconds."""

    owner_id: str
    name: str
    value: Any
    declared: Any
    is_request: bool
    reply: Any
    metadata: Mapping[str, bytes]
    timeout: float


class TakenElsewhere(AlreadyExists):
    """The id is an owner's of another node, of type `type_name`."""

    def __init__(self, label: str, node: str, type_name: str) -> None:
        super().__init__(f"{label} is at node {node!r} already")
        self.type_name = type_name


class Elsewhere(Protocol):
    """Thread-safe. `kind` is "spot" or "actor"."""

    def start(self, kind: str, asked: Asked, how: Wait | None) -> Completion[Any]:
        """Begin a call to an owner that is not of this process, or does not exist yet."""
        ...

    async def claim(self, kind: str, owner_id: str, type_name: str) -> None:
        """This process has the owner from now on, and no other; `TakenElsewhere` if another has it."""
        ...

    def release(self, kind: str, owner_id: str) -> None:
        """The owner has ended. Waits for nothing."""
        ...
