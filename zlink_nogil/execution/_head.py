"""`Head`: what stands in a Spot's queue for the next turn of a SpotWide Actor's queue (seed 000 section 4).

The payload stays in the Actor's queue; the Spot's reserves the fixed cost, once. When the Actor's turn waits, the Spot's
waits with it or, if it yields, goes to others; the Actor's queue is kept in either case: that is its claim.

Guarantees
    An inner queue has at most one head. The head is suspended before the inner turn is, and the inner turn before anybody
    can wake it: a wake-up never finds a head that is still on its way out.

Ownership
    `inner`   read-only; the rest as in `_item.py`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zlink_nogil.execution._item import Item
from zlink_nogil.scheduler import Suspension, Waker

if TYPE_CHECKING:
    from zlink_nogil.execution._loop import Loop
    from zlink_nogil.execution.turn import Turn

__all__ = ["Head"]


class Head(Item):
    __slots__ = ("inner",)

    def __init__(self, inner: Loop) -> None:
        super().__init__()
        self.inner = inner

    def turn(self) -> Turn | None:
        return self.inner.holder()

    def advance(self, interruption: BaseException | None) -> Suspension | None:  # noqa: ARG002 - the inner turn has its own
        return self.inner.run_head(self)

    def wait_for(self, awaited: Suspension, waker: Waker) -> None:  # noqa: ARG002 - the inner queue's wakes both
        self.inner.hold_head(awaited)
