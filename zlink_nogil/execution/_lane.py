"""`Lane`: one of the two lines of a serial queue, with its capacity (seed 000 section 6.3; design 3.4).

Ownership
    all under the queue's gate, but for `finished_*`: added to by whoever drains the queue, read by admission. Admission
    and finishing only ever add, so a reservation is "admitted, not yet finished" and cannot be counted back twice.
"""

from __future__ import annotations

from collections import deque

from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.execution._item import Item

__all__ = ["Lane"]


class Lane:
    __slots__ = (
        "admitted_bytes",
        "admitted_items",
        "byte_capacity",
        "finished_bytes",
        "finished_items",
        "item_capacity",
        "name",
        "waiting",
    )

    def __init__(self, name: str, item_capacity: int, byte_capacity: int) -> None:
        self.name = name
        self.item_capacity = item_capacity
        self.byte_capacity = byte_capacity
        self.waiting: deque[Item] = deque()
        self.admitted_items = self.admitted_bytes = 0
        self.finished_items = self.finished_bytes = 0

    def reserve(self, cost: int) -> None:
        """Take room for one item of `cost` bytes, or raise `CapacityExceeded` and change nothing."""
        items = self.admitted_items - self.finished_items
        size = self.admitted_bytes - self.finished_bytes
        if items >= self.item_capacity or size + cost > self.byte_capacity:
            raise self._no_room(items, size, cost)
        self.admitted_items += 1
        self.admitted_bytes += cost

    def _no_room(self, items: int, size: int, cost: int) -> CapacityExceeded:
        if cost > self.byte_capacity:
            return CapacityExceeded(f"the {self.name} lane holds {self.byte_capacity} bytes: an item of {cost} never fits")
        if items >= self.item_capacity:
            return CapacityExceeded(f"the {self.name} lane is full: {items} of {self.item_capacity} items")
        return CapacityExceeded(
            f"the {self.name} lane is full: {size} of {self.byte_capacity} bytes, {cost} more do not fit"
        )

    def reserve_anyway(self, cost: int) -> None:
        """Room is there, or the item is one that is never refused."""
        self.admitted_items += 1
        self.admitted_bytes += cost

    def has_room(self, cost: int) -> bool:
        """For what is never refused: alone it fits in any case."""
        items, size = self.reserved()
        return items == 0 or (items < self.item_capacity and size + cost <= self.byte_capacity)

    def give_back(self, cost: int) -> None:
        """Return the reservation of an item that was cancelled before it began."""
        self.admitted_items -= 1
        self.admitted_bytes -= cost

    def reserved(self) -> tuple[int, int]:
        """(items, bytes) admitted and not yet finished."""
        return self.admitted_items - self.finished_items, self.admitted_bytes - self.finished_bytes
