"""`Lines`: what waits in one serial queue, and what runs next (seed 000 section 6.2; design 3.4).

    barrier      right after the current turn
    lifecycle    before application work, at most `lifecycle_burst_limit` in a row while that waits
    application  in order of admission; turns that go on after they gave their gate back come back at its end
    heads        of Actor queues, for which the application lane has no room yet: ahead of whatever is submitted now
    final        when nothing else is left

Ownership
    all under the queue's gate
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.execution._item import Item, TurnState
from zlink_nogil.execution._lane import Lane
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.turn import Turn

__all__ = ["Lines"]


class Lines:
    __slots__ = ("_burst", "_burst_limit", "application", "barrier", "final", "heads", "lifecycle")

    def __init__(self, policy: ExecutionLanePolicy) -> None:
        self.application = Lane("application", policy.application_message_capacity, policy.application_byte_capacity)
        self.lifecycle = Lane("lifecycle", policy.lifecycle_message_capacity, policy.lifecycle_byte_capacity)
        self.barrier: list[Item] = []  # reserved in the lifecycle lane
        self.heads: list[Item] = []  # lists: a deque takes 700 bytes when it is empty, and there are many queues
        self.final: Item | None = None  # reserved in the lifecycle lane
        self._burst_limit = policy.lifecycle_burst_limit
        self._burst = 0  # lifecycle turns that overtook waiting application work since the last application turn

    def next(self, *, alone: bool) -> Item | None:
        """The turn to run next, left where it is; `alone`: no turn that gave its gate back is on its way."""
        if self.barrier:
            return self.barrier[0]
        application, lifecycle = self.application.waiting, self.lifecycle.waiting
        if lifecycle and (not application or self._burst < self._burst_limit):
            return lifecycle[0]
        if application:
            return application[0]
        return self.final if alone else None

    def take(self, turn: Item) -> None:
        """Remove the turn that `next` found."""
        lane = turn.lane
        if self.barrier and self.barrier[0] is turn:
            del self.barrier[0]
        elif turn is self.final:
            self.final = None
        elif lane is self.application:
            lane.waiting.popleft()
            self._burst = 0
        else:
            lane.waiting.popleft()
            if self.application.waiting:
                self._burst += 1

    def put_back(self, turn: Item) -> None:
        """A turn that gave its gate back can go on: it holds its reservation still."""
        turn.lane.waiting.append(turn)

    def reserve(self, lane: Lane, cost: int) -> None:
        """As `Lane.reserve`, for what is submitted now: room that has become free is for the heads that wait."""
        if self.heads and lane is self.application:
            raise CapacityExceeded(f"the {lane.name} lane is full: {len(self.heads)} turns of Actors wait for room")
        lane.reserve(cost)

    def let_heads_in(self) -> None:
        """Room may have become free."""
        while self.heads and self.application.has_room(self.heads[0].cost):
            head = self.heads.pop(0)
            self.application.reserve_anyway(head.cost)
            self.application.waiting.append(head)

    def let_a_head_in(self) -> bool:
        """All the room is taken by turns that wait, perhaps for that head's Actor: it goes on without room."""
        if not self.heads:
            return False
        head = self.heads.pop(0)
        self.application.reserve_anyway(head.cost)
        self.application.waiting.append(head)
        return True

    def unstarted(self) -> list[Turn]:
        """What has not begun, but for the heads of other queues and the final turn, which runs in any case."""
        lines = (self.barrier, self.lifecycle.waiting, self.application.waiting)
        return [turn for line in lines for turn in line if isinstance(turn, Turn) and turn.state is TurnState.QUEUED]

    def withdraw(self, turn: Item) -> None:
        """End a turn that has not begun. Nothing of it stays behind, so what is waiting is bounded."""
        turn.move(TurnState.FINISHED)
        turn.lane.give_back(turn.cost)
        if turn is self.final:
            self.final = None
        else:
            self._remove(turn)
        self.let_heads_in()

    def _remove(self, turn: Item) -> None:
        if turn in self.barrier:
            self.barrier.remove(turn)
        else:
            with contextlib.suppress(ValueError):  # deferred to the end of a turn: in no line yet
                turn.lane.waiting.remove(turn)

    def reserved(self) -> tuple[int, int]:
        """(items, bytes) admitted and not yet finished, both lanes."""
        items, size = self.application.reserved()
        more_items, more_size = self.lifecycle.reserved()
        return items + more_items, size + more_size

    def __iter__(self) -> Iterator[Item]:
        yield from self.barrier
        yield from self.lifecycle.waiting
        yield from self.application.waiting
        yield from self.heads
