"""`Item`: what the lines of a serial queue hold and its loop runs - a turn, or the head of another queue.

Ownership
    `state`, `interruption`, `awaiting`  under the queue's gate
    `gives_back`                         the draining thread
    `payload_bytes`                      read-only
    `cost`, `lane`, `queue`              set at admission, read-only afterwards
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import Suspension, Waker

if TYPE_CHECKING:
    from zlink_nogil.execution._lane import Lane
    from zlink_nogil.execution._loop import Loop
    from zlink_nogil.execution.turn import Turn

__all__ = ["Item", "TurnState"]


class TurnState(Enum):
    next: tuple[TurnState, ...]

    QUEUED = auto()
    RUNNING = auto()
    SUSPENDED = auto()  # awaits something; its queue waits with it, or was given back
    NOTIFIED = auto()  # what it awaited is there, or it was interrupted: goes on when its queue gives it a turn
    FINISHED = auto()


# To these states from each. Tuples, not sets: looking into one compares identities, and neither hashes an enum nor locks.
_TRANSITIONS: Final = {
    TurnState.QUEUED: (TurnState.RUNNING, TurnState.FINISHED),  # FINISHED: cancelled or shut down before it began
    TurnState.RUNNING: (TurnState.FINISHED, TurnState.SUSPENDED),
    TurnState.SUSPENDED: (TurnState.NOTIFIED,),
    TurnState.NOTIFIED: (TurnState.RUNNING,),
    TurnState.FINISHED: (),
}
for _state, _next in _TRANSITIONS.items():
    _state.next = _next


class Item(ABC):
    __slots__ = ("awaiting", "cost", "gives_back", "interruption", "lane", "payload_bytes", "queue", "state")

    queue: Loop
    lane: Lane

    def __init__(self, payload_bytes: int = 0) -> None:
        self.payload_bytes = payload_bytes
        self.cost = 0
        self.state = TurnState.QUEUED
        self.awaiting: Suspension | None = None
        self.interruption: BaseException | None = None
        self.gives_back = False

    @abstractmethod
    def turn(self) -> Turn | None:
        """The turn whose work this is, as far as one can tell without a gate."""

    @abstractmethod
    def advance(self, interruption: BaseException | None) -> Suspension | None:
        """Run up to the next wait. Returns what to wait for - `gives_back` tells how -, or None when the work is over."""

    @abstractmethod
    def wait_for(self, awaited: Suspension, waker: Waker) -> None:
        """Suspended: see that the queue hears when the wait is over."""

    def move(self, state: TurnState) -> None:
        """Take one step of the lifecycle; an illegal one raises and changes nothing."""
        if state not in self.state.next:
            raise InvalidOperation(f"a turn cannot go from {self.state.name} to {state.name}")
        self.state = state
