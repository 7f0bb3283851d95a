"""`Loop`: how the items of one serial queue get their turns (seed 000 sections 6.5-6.7, design 3.4).

Guarantees
    One turn at a time. The queue is in the ready set - or, with an outer queue, its head in that queue's lines - at most
    once. A turn that waits is kept or gives its gate back; it goes on in a slice of its queue, never directly. A
    reservation is returned once, when the work has finished.

Assumes
    Outcomes are delivered (`Turn.succeed`, `Turn.fail`, wakers) outside `_gate`. No two gates are held at once.

Ownership
    under `_gate`        everything, but for
    the draining thread  the lanes' `finished_*` counters (whoever drains adds; admission reads, a stale value only
                         refuses earlier), `_moving`, and the turn that runs
    `_stranded`          set once, by whoever finds the pool closed
    `_head`, `outer`, `group`   whoever moved the queue to SCHEDULED or DRAINING; one thread at a time
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown
from zlink_nogil.execution._head import Head
from zlink_nogil.execution._item import Item, TurnState
from zlink_nogil.execution._lines import Lines
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Suspension, WorkerPool

__all__ = ["Loop", "QueueState"]


class QueueState(Enum):
    next: tuple[QueueState, ...]

    IDLE = auto()  # nothing accepted is left
    SCHEDULED = auto()  # in the ready set, or its head in the outer queue
    DRAINING = auto()  # a worker runs its slice
    HELD = auto()  # a suspended turn keeps it; nothing else may run
    AWAY = auto()  # only turns that gave it back are left, and what they wait for is not there


_TRANSITIONS: Final = {  # tuples: see `_item.py`
    QueueState.IDLE: (QueueState.SCHEDULED,),
    QueueState.SCHEDULED: (QueueState.DRAINING,),
    QueueState.DRAINING: (QueueState.IDLE, QueueState.SCHEDULED, QueueState.HELD, QueueState.AWAY),
    QueueState.HELD: (QueueState.SCHEDULED,),
    QueueState.AWAY: (QueueState.SCHEDULED,),
}
for _state, _next in _TRANSITIONS.items():
    _state.next = _next


class Loop(ABC):
    __slots__ = (
        "_away",
        "_budget",
        "_closed",
        "_expired",
        "_fixed_cost",
        "_gate",
        "_head",
        "_held",
        "_home",
        "_lines",
        "_moving",
        "_now",
        "_quiet",
        "_running",
        "_shared",
        "_since",
        "_state",
        "_stranded",
        "group",
        "name",
        "outer",
        "policy",
        "pool",
    )

    def __init__(self, policy: ExecutionLanePolicy, pool: WorkerPool, name: str, shared: bool, outer: Loop | None) -> None:
        self.policy = policy
        self.name = name
        self.outer = outer
        self.group: object = None
        self._shared = shared
        self.pool = pool
        self._home = pool.assign_home() if pool.thread_per_core else None
        self._gate = _sync.Lock()
        self._now = _sync.monotonic
        self._budget = policy.owner_time_budget_ms / 1000
        self._fixed_cost = policy.fixed_work_byte_cost
        self._lines = Lines(policy)
        self._running: Item | None = None
        self._since = 0.0
        self._held: Item | None = None
        self._away: dict[Item, None] = {}
        self._head: Head | None = None
        self._moving: tuple[Loop | None, object] | None = None
        self._state = QueueState.IDLE
        self._closed = False
        self._expired = False
        self._stranded = False
        self._quiet: list[Completion[None]] = []

    @abstractmethod
    def expire(self) -> None:
        """End what has not begun, and interrupt what waits."""

    @abstractmethod
    def interrupt(self) -> None:
        """Interrupt what waits."""

    def _shutting_down(self) -> ShuttingDown:
        return ShuttingDown(f"queue {self.name!r} is shutting down")

    def is_current(self) -> bool:
        """Is the calling thread on a turn of this queue, or on one that it gave to another queue's head?"""
        turn = Turn.current
        return turn is not None and (turn.queue is self or turn.queue.outer is self)

    @property
    def may_yield(self) -> bool:
        """Is the turn of this queue's work a shared gate, which `yield_()` gives back?"""
        return self._shared or self.outer is not None

    def holder(self) -> Turn | None:
        """The turn that runs or keeps the queue, as far as one can tell without the gate."""
        item = self._running or self._held
        return None if item is None else item.turn()

    # -- slices -----------------------------------------------------------------------------------------------------

    def _wake(self) -> bool:
        """Under the gate: there is something to run; True when the caller must schedule the queue."""
        if self._state is not QueueState.IDLE and self._state is not QueueState.AWAY:
            return False
        self._move(QueueState.SCHEDULED)
        return True

    def _schedule(self) -> None:
        """Called having moved to SCHEDULED, outside the gate."""
        if self.outer is not None:
            if self._head is None:
                self._head = Head(self)
                self.outer.put_head(self._head)
            else:
                self._head.queue.resume_head(self._head)
        elif not self.pool.submit(self, self._home):
            self._stranded = True
            self.expire()  # the pool is closed: what has not begun never will
            self.pool.run_late(self._run_out)

    def _run_out(self) -> None:
        """Only suspended turns are left: unwind them."""
        while self.run_slice():
            pass

    def run_slice(self) -> bool:
        """One slice on the calling worker: turns until the queue is empty, held, or its time budget is used."""
        gate, now = self._gate, self._now
        with gate:
            self._move(QueueState.DRAINING)
        since = now()
        end = since + self._budget
        used_up = False
        while True:
            with gate:
                item = self._next()
                if item is None or used_up or (self._moving is not None and self._held is None):
                    quiet = self._leave(item)
                    break
                self._take(item, since)
                interruption, item.interruption = item.interruption, None
            awaited = item.advance(interruption)
            if awaited is not None:
                self._suspend(item, awaited)
            since = now()
            used_up = since >= end
        for completion in quiet:
            completion.succeed(None)
        if item is None or self.outer is None:
            return item is not None
        self._schedule()  # it has moved to an outer queue
        return False

    def _next(self) -> Item | None:
        """What to run next, left where it is. Under the gate."""
        held = self._held
        if held is not None:
            return held if held.state is TurnState.NOTIFIED else None
        lines = self._lines
        if lines.heads:
            lines.let_heads_in()
        item = lines.next(alone=not self._away)
        if item is None and lines.heads and lines.let_a_head_in():
            item = lines.next(alone=False)
        return item

    def _take(self, item: Item, since: float) -> None:
        """Under the gate: remove what `_next` found and mark it running."""
        item.move(TurnState.RUNNING)
        self._running, self._since = item, since
        if item is self._held:
            self._held = None
        else:
            self._lines.take(item)

    def _leave(self, item: Item | None) -> list[Completion[None]]:
        """Under the gate: end the slice, with `item` to run next; returns who waited for the queue to be quiet."""
        self._running = None
        if self._moving is not None and self._held is None:
            (self.outer, self.group), self._moving = self._moving, None
        if item is not None:
            self._move(QueueState.SCHEDULED)
            return []
        if self._held is not None or self._away:
            self._move(QueueState.AWAY if self._held is None else QueueState.HELD)
            return []
        self._move(QueueState.IDLE)
        assert self._lines.reserved() == (0, 0), "a reservation outlived its work"
        quiet, self._quiet = self._quiet, []
        return quiet

    def note_finished(self, item: Item) -> None:
        """On the draining thread, before the outcome is seen: only it takes an item out of RUNNING."""
        item.move(TurnState.FINISHED)
        lane = item.lane
        lane.finished_items += 1
        lane.finished_bytes += item.cost
        head = self._head
        if head is not None:
            head.queue.note_finished(head)

    def end_deferring(self, deferred: list[Item], ended_normally: bool) -> None:
        """On the draining thread, before the outcome is seen: the turn that deferred these is over."""
        with self._gate:
            waiting = [item for item in deferred if item.state is TurnState.QUEUED]
            dropped = [] if ended_normally and not self._expired else waiting
            self._lines.barrier += waiting
            for item in dropped:
                self._lines.withdraw(item)
        for item in dropped:
            assert isinstance(item, Turn), "heads are not deferred"
            item.fail(self._shutting_down() if ended_normally else Cancelled())

    # -- suspending and resuming ------------------------------------------------------------------------------------

    def _suspend(self, item: Item, awaited: Suspension) -> None:
        """In a slice, which goes on: `item` waits."""
        with self._gate:
            self._begin_wait(item, awaited)
            interruption = item.interruption
            if interruption is not None:
                self._notify(item, interruption)
        if interruption is None:
            item.wait_for(awaited, functools.partial(self._resume, item))

    def _begin_wait(self, item: Item, awaited: Suspension) -> None:
        """Under the gate. The turn is kept - nothing else of this queue runs until the outcome, or an interruption, is
        there - or given back, if it is this queue's to give."""
        item.move(TurnState.SUSPENDED)
        item.awaiting = awaited
        if item.gives_back and self.outer is None:
            self._away[item] = None
        else:
            self._held = item
        if self._expired and item.interruption is None and not isinstance(item, Head):
            item.interruption = self._shutting_down()

    def _resume(self, item: Item, awaited: Suspension) -> None:
        """What `item` awaited is there. A waker that comes after an interruption finds something else awaited."""
        with self._gate:
            if item.awaiting is not awaited:
                return
            resumed = self._notify(item, None)
        if resumed:
            self._schedule()

    def _notify(self, item: Item, interruption: BaseException | None) -> bool:
        """Under the gate: the suspended item can go on; True when the caller must schedule the queue."""
        item.move(TurnState.NOTIFIED)
        item.awaiting = None
        item.interruption = interruption
        if item is not self._held:
            del self._away[item]
            self._lines.put_back(item)
            return self._wake()
        if self._state is not QueueState.HELD:  # its slice has not ended yet and will find it
            return False
        self._move(QueueState.SCHEDULED)
        return True

    # -- an Actor's queue and its Spot's ------------------------------------------------------------------------------

    def put_head(self, head: Head) -> None:
        """By the inner queue, which has work: never refused. Without room it waits, ahead of what is submitted, until there
        is some or nothing else that could run."""
        head.queue, head.lane, head.cost = self, self._lines.application, self._fixed_cost
        with self._gate:
            self._lines.heads.append(head)
            self._lines.let_heads_in()
            start = self._wake()
        if start:
            self._schedule()

    def resume_head(self, head: Head) -> None:
        """By the inner queue: its turn can go on."""
        with self._gate:
            resumed = self._notify(head, None)
        if resumed:
            self._schedule()

    def run_head(self, head: Head) -> Suspension | None:
        """By the outer queue, on its turn: one step of this queue's next turn. Returns as `Item.advance` does."""
        if head.queue._stranded:  # the pool is closed
            self._stranded = True
            self.expire()
        interruption: BaseException | None = None
        with self._gate:
            self._move(QueueState.DRAINING)
            item = self._next()
            if item is not None:
                self._take(item, self._now())
                interruption, item.interruption = item.interruption, None
        if item is None:  # withdrawn meanwhile
            head.queue.note_finished(head)
        else:
            awaited = item.advance(interruption)
            if awaited is not None:
                head.gives_back = item.gives_back
                return awaited
        self._head = None
        with self._gate:
            item = self._next()
            quiet = self._leave(item)
        for completion in quiet:
            completion.succeed(None)
        if item is not None:
            self._schedule()
        return None

    def hold_head(self, awaited: Suspension) -> None:
        """By the outer queue, when the head is suspended: the turn that ran in it is kept here, whatever it gave back."""
        item = self._running
        assert item is not None, "a head waits because its turn does"
        with self._gate:
            self._begin_wait(item, awaited)
            self._leave(None)
            interruption = item.interruption
            if interruption is not None:
                self._notify(item, interruption)
        if interruption is None:
            item.wait_for(awaited, functools.partial(self._resume, item))
        else:
            self._schedule()

    def _move(self, state: QueueState) -> None:
        """Under the gate: one step of the queue's lifecycle; an illegal one raises and changes nothing."""
        if state not in self._state.next:
            raise InvalidOperation(f"queue {self.name!r} cannot go from {self._state.name} to {state.name}")
        self._state = state
