"""Where Spots and Actors live: `Location`, and the store that says it (design 4.1; seed 004 section 5).

Every claim has a number of its own, its epoch, so that what is said about an old location cannot hurt a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.messaging.wire import Address

__all__ = ["CHANNEL", "Location", "LocationStore", "MemoryLocationStore"]


@dataclass(frozen=True, slots=True)
class Location:
    """The life of a node, and the type of what it has there: empty as long as the node was only asked to make it."""

    node: str
    generation: int
    type_name: str
    epoch: int = 0

    def at(self, node: str, generation: int) -> bool:
        return self.node == node and self.generation == generation


class LocationStore(Protocol):
    """Called by one thread at a time, on the node that keeps it; must not wait for messages."""

    def find(self, address: Address) -> Location | None: ...

    def claim(self, address: Address, location: Location) -> Location:
        """The location of `address` from now on: what is there already, or `location` under a new epoch.

        The same node's own claim says what type there is, and keeps the epoch.
        """
        ...

    def release(self, address: Address, location: Location) -> None:
        """Forget it, if it is still that one."""
        ...


class MemoryLocationStore:
    """Forgets everything with its process; the nodes tell the next one what they have."""

    def __init__(self) -> None:
        self._locations: dict[Address, Location] = {}
        self._epoch: int = 0

    def __len__(self) -> int:
        return len(self._locations)

    def find(self, address: Address) -> Location | None:
        return _sync.look_up(self._locations, address)

    def claim(self, address: Address, location: Location) -> Location:
        known = _sync.look_up(self._locations, address)
        if known is not None and not known.at(location.node, location.generation):
            return known
        if known is None:
            self._epoch += 1
            known = replace(location, epoch=self._epoch)
        elif location.type_name:
            known = replace(known, type_name=location.type_name)
        self._locations[address] = known
        return known

    def release(self, address: Address, location: Location) -> None:
        if _sync.look_up(self._locations, address) == location:
            del self._locations[address]


CHANNEL: Final = "$locations"
"""Where the keeper is asked."""
