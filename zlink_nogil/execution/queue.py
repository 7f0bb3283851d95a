"""`SerialExecutionQueue`: the work of one owner, one turn at a time (seed 000 section 6, design 3.4).

Guarantees
    One turn at a time, in admission order within a lane. Admission - closed check, both capacities, place in the order,
    insertion - is one critical section: all of it or none. Work never starts on the submitter's stack. A reservation is
    returned once, when the work has finished; then, and not before, its outcome is seen. The queue is in the ready set
    at most once. Accepted work ends exactly once: run, cancelled, or `ShuttingDown`.

Assumes
    Outcomes are delivered (`Turn.succeed`, `Turn.fail`, wakers) outside `_gate`.

Ownership
    under `_gate`        everything, but for
    the draining thread  the lanes' `finished_*` counters (whoever drains adds; admission reads, a stale value only
                         refuses earlier), and the turn that runs
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation, ShuttingDown, ZLinkError
from zlink_nogil.execution._lane import Lane
from zlink_nogil.execution._submitted import SubmittedTurn
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.turn import Turn, TurnState
from zlink_nogil.scheduler import Completion, Suspension, WorkerPool, default_pool

__all__ = ["SerialExecutionQueue"]


class _State(Enum):
    IDLE = auto()  # nothing accepted is left
    SCHEDULED = auto()  # in the ready set
    DRAINING = auto()  # a worker runs its slice
    HELD = auto()  # a suspended turn keeps it; nothing else may run


_TRANSITIONS = frozenset(
    {
        (_State.IDLE, _State.SCHEDULED),
        (_State.SCHEDULED, _State.DRAINING),
        (_State.DRAINING, _State.IDLE),
        (_State.DRAINING, _State.SCHEDULED),
        (_State.DRAINING, _State.HELD),
        (_State.HELD, _State.SCHEDULED),
    }
)


class SerialExecutionQueue:
    """Runs plain functions and `async def` handlers of one owner in order on a shared pool. All members are thread-safe.

    `pool` defaults to the process's; `name` appears in errors.
    """

    __slots__ = (
        "_application",
        "_barrier",
        "_budget",
        "_burst",
        "_closed",
        "_expired",
        "_gate",
        "_held",
        "_home",
        "_lifecycle",
        "_now",
        "_pool",
        "_quiet",
        "_state",
        "name",
        "policy",
        "retired",
    )

    def __init__(
        self, policy: ExecutionLanePolicy | None = None, *, pool: WorkerPool | None = None, name: str = "queue"
    ) -> None:
        self.policy = policy = policy or ExecutionLanePolicy()
        self.name = name
        self._pool = pool or default_pool()
        self._home = self._pool.assign_home() if self._pool.thread_per_core else None
        self._gate = _sync.Lock()
        self._now = _sync.monotonic
        self._budget = policy.owner_time_budget_ms / 1000
        self._application = Lane("application", policy.application_message_capacity, policy.application_byte_capacity)
        self._lifecycle = Lane("lifecycle", policy.lifecycle_message_capacity, policy.lifecycle_byte_capacity)
        self._barrier: deque[Turn] = deque()  # reserved in the lifecycle lane
        self._burst = 0  # lifecycle turns that overtook waiting application work since the last application turn
        self._held: Turn | None = None
        self._state = _State.IDLE
        self._closed = False
        self._expired = False
        self.retired = False
        self._quiet: list[Completion[None]] = []

    def __repr__(self) -> str:
        return f"<SerialExecutionQueue {self.name!r} {self._state.name.lower()}>"

    # -- submitting -------------------------------------------------------------------------------------------------

    def enqueue(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run `work()` on the application lane, at the policy's fixed cost.

        Raises, having changed nothing: `CapacityExceeded` when the lane is full, `ShuttingDown` after `close`.
        """
        return self._submit(work, 0, self._application)

    def enqueue_with_payload_bytes(self, work: Callable[[], Any], payload_bytes: int) -> Completion[Any]:
        """As `enqueue`, for work that holds `payload_bytes` bytes (payload and metadata) besides the fixed cost."""
        return self._submit(work, payload_bytes, self._application)

    def enqueue_lifecycle(self, work: Callable[[], Any]) -> Completion[Any]:
        """As `enqueue`, on the lifecycle lane: ahead of application work, at most `lifecycle_burst_limit` in a row."""
        return self._submit(work, 0, self._lifecycle)

    def enqueue_barrier_next(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run `work()` right after the current turn, before everything that waits. Reserved in the lifecycle lane."""
        return self._submit(work, 0, self._lifecycle, self._barrier)

    def _submit(
        self, work: Callable[[], Any], payload_bytes: int, lane: Lane, line: deque[Turn] | None = None
    ) -> Completion[Any]:
        self._pool.start()  # what fails, fails before anything is accepted
        turn = SubmittedTurn(work, payload_bytes)
        turn.completion = Completion(self._pool, functools.partial(self._cancel, turn), self.throw_if_current)
        refused = self._admit((turn,), lane, lane.waiting if line is None else line)
        if refused:
            raise refused[0][1]
        return turn.completion

    def admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """Admit turns to the application lane in one critical section; returns the refused ones with the reason each."""
        return self._admit(turns, self._application, self._application.waiting)

    def _admit(self, turns: Iterable[Turn], lane: Lane, line: deque[Turn]) -> list[tuple[Turn, ZLinkError]]:
        refused: list[tuple[Turn, ZLinkError]] = []
        fixed = self.policy.fixed_work_byte_cost
        with self._gate:
            for turn in turns:
                if self._closed:
                    refused.append((turn, ShuttingDown(f"queue {self.name!r} is closed")))
                    continue
                turn.cost = turn.payload_bytes + fixed
                try:
                    lane.reserve(turn.cost)
                except ZLinkError as error:
                    refused.append((turn, error))
                    continue
                turn.queue = self
                turn.lane = lane
                line.append(turn)
            start = self._state is _State.IDLE and bool(line)
            if start:
                self._move(_State.SCHEDULED)
        if start:
            self._schedule()
        return refused

    def _schedule(self) -> None:
        """Called having moved to SCHEDULED, outside the gate."""
        if not self._pool.submit(self, self._home):
            self._expire()  # the pool is closed: what has not begun never will
            self._pool.run_late(self._run_out)

    def _run_out(self) -> None:
        """Only a suspended turn is left: unwind it."""
        while self.run_slice():
            pass

    # -- asking -----------------------------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Is the calling thread on a turn of this queue?"""
        turn = Turn.current
        return turn is not None and turn.queue is self

    def throw_if_current(self) -> None:
        """`InvalidOperation` if the calling thread is on a turn of this queue: it would wait for itself (decision 11)."""
        if self.is_current():
            raise InvalidOperation(f"a turn of queue {self.name!r} cannot wait for work of its own queue")

    def is_idle(self) -> bool:
        """Is nothing queued, running or suspended at this moment?"""
        self._pool.check_fork()
        with self._gate:
            return self._state is _State.IDLE

    def reserved(self) -> tuple[int, int]:
        """(items, bytes) admitted and not yet finished, both lanes."""
        self._pool.check_fork()
        with self._gate:
            items, size = self._application.reserved()
            more_items, more_size = self._lifecycle.reserved()
            return items + more_items, size + more_size

    # -- closing ----------------------------------------------------------------------------------------------------

    def await_quiescence(self) -> Completion[None]:
        """Done when nothing accepted is left, suspended work included. `InvalidOperation` on a turn of this queue."""
        self._pool.check_fork()
        self.throw_if_current()
        completion: Completion[None] = Completion(self._pool, before_wait=self.throw_if_current)
        with self._gate:
            if self._state is not _State.IDLE:
                self._quiet.append(completion)
                return completion
        completion.succeed(None)
        return completion

    def close(self, timeout: float = 5.0) -> None:
        """Refuse new work and finish what was accepted. A second close is harmless and waits as well.

        After `timeout` seconds what has not begun ends as `ShuttingDown`, and a suspended handler gets `ShuttingDown`
        at its `await` and runs to its end. `DeadlineExceeded` if a turn is still running `timeout` seconds after that.
        On a turn of this queue it only marks the queue closed.
        """
        self._pool.check_fork()
        with self._gate:
            self._closed = True
        if self.is_current():
            return
        quiet = self.await_quiescence()
        try:
            quiet.result(timeout)
        except DeadlineExceeded:
            self._expire()
            quiet.result(timeout)

    def retire(self) -> bool:
        """Close the queue if it is idle, as one decision; False (nothing done) if it is not."""
        self._pool.check_fork()
        with self._gate:
            if self._state is not _State.IDLE:
                return False
            self._closed = self.retired = True
            return True

    def _expire(self) -> None:
        """The time is over: end what has not begun, and interrupt the turn that waits."""
        with self._gate:
            self._closed = self._expired = True
            lines = (self._barrier, self._lifecycle.waiting, self._application.waiting)
            unstarted = [turn for line in lines for turn in line]
            for turn in unstarted:
                self._withdraw(turn)
            held = self._held
            resumed = held is not None and held.state is TurnState.SUSPENDED
            if held is not None and resumed:
                resumed = self._notify(held, self._shutting_down())
        for turn in unstarted:
            turn.fail(self._shutting_down())
        if resumed:
            self._schedule()

    def _shutting_down(self) -> ShuttingDown:
        return ShuttingDown(f"queue {self.name!r} is shutting down")

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run_slice(self) -> bool:
        """One slice on the calling worker: turns until the queue is empty, held, or its time budget is used."""
        with self._gate:
            self._move(_State.DRAINING)
        now = self._now
        end = now() + self._budget
        used_up = False
        while True:
            with self._gate:
                turn = self._next()
                if turn is None or used_up:
                    quiet = self._leave(turn)
                    break
                self._take(turn)
                interruption, turn.interruption = turn.interruption, None
            awaited = turn.advance(interruption)
            if awaited is not None:
                self._suspend(turn, awaited)
            used_up = now() >= end
        for completion in quiet:
            completion.succeed(None)
        return turn is not None

    def _next(self) -> Turn | None:
        """The turn to run next, left where it is. Under the gate."""
        if self._held is not None:
            return self._held if self._held.state is TurnState.NOTIFIED else None
        if self._barrier:
            return self._barrier[0]
        application, lifecycle = self._application.waiting, self._lifecycle.waiting
        if lifecycle and (not application or self._burst < self.policy.lifecycle_burst_limit):
            return lifecycle[0]
        return application[0] if application else None

    def _take(self, turn: Turn) -> None:
        """Under the gate: remove the turn that `_next` found and mark it running."""
        turn.move(TurnState.RUNNING)
        if turn is self._held:
            self._held = None
        elif self._barrier and self._barrier[0] is turn:
            self._barrier.popleft()
        else:
            turn.lane.waiting.popleft()
            if turn.lane is self._application:
                self._burst = 0
            elif self._application.waiting:
                self._burst += 1

    def _leave(self, turn: Turn | None) -> list[Completion[None]]:
        """Under the gate: end the slice, with `turn` to run next; returns who waited for the queue to be quiet."""
        if turn is not None:
            self._move(_State.SCHEDULED)
            return []
        if self._held is not None:
            self._move(_State.HELD)
            return []
        self._move(_State.IDLE)
        assert self._application.reserved() == self._lifecycle.reserved() == (0, 0), "a reservation outlived its work"
        quiet, self._quiet = self._quiet, []
        return quiet

    def note_finished(self, turn: Turn) -> None:
        """By `Turn.advance`, on the draining thread: only it takes a turn out of RUNNING."""
        turn.move(TurnState.FINISHED)
        turn.lane.finished_items += 1
        turn.lane.finished_bytes += turn.cost

    # -- suspending and resuming ------------------------------------------------------------------------------------

    def _suspend(self, turn: Turn, awaited: Suspension) -> None:
        """The turn is kept: nothing else of this queue runs until the outcome, or an interruption, is there."""
        with self._gate:
            turn.move(TurnState.SUSPENDED)
            turn.awaiting = awaited
            self._held = turn
            if self._expired and turn.interruption is None:
                turn.interruption = self._shutting_down()
            if turn.interruption is not None:
                self._notify(turn, turn.interruption)
                return
        waker = functools.partial(self._resume, turn)
        turn.waker = (awaited, waker)
        if not awaited.add_waker(waker):
            waker(awaited)

    def _resume(self, turn: Turn, awaited: Suspension) -> None:
        """What `turn` awaited is there. A waker that comes after an interruption finds something else awaited."""
        with self._gate:
            if turn.awaiting is not awaited:
                return
            resumed = self._notify(turn, None)
        if resumed:
            self._schedule()

    def _cancel(self, turn: Turn) -> bool:
        """The canceller of a submitted turn's completion."""
        with self._gate:
            resumed = False
            if turn.state is TurnState.FINISHED:
                return False
            unstarted = turn.state is TurnState.QUEUED
            if unstarted:
                self._withdraw(turn)
            elif turn.state is TurnState.SUSPENDED:
                resumed = self._notify(turn, Cancelled())
            else:  # raised at its next wait, if there is one
                turn.interruption = Cancelled()
        if unstarted:
            turn.fail(Cancelled())
        if resumed:
            self._schedule()
        return True

    def _withdraw(self, turn: Turn) -> None:
        """Under the gate: end a turn that has not begun. Nothing of it stays behind, so what is waiting is bounded."""
        turn.move(TurnState.FINISHED)
        turn.lane.give_back(turn.cost)
        line = self._barrier if turn in self._barrier else turn.lane.waiting
        line.remove(turn)

    def _notify(self, turn: Turn, interruption: BaseException | None) -> bool:
        """Under the gate: the suspended turn can go on; True when the caller must schedule the queue."""
        turn.move(TurnState.NOTIFIED)
        turn.awaiting = None
        turn.interruption = interruption
        if self._state is not _State.HELD:  # its slice has not ended yet and will find it
            return False
        self._move(_State.SCHEDULED)
        return True

    def _move(self, state: _State) -> None:
        """Under the gate: one step of the queue's lifecycle; an illegal one raises and changes nothing."""
        if (self._state, state) not in _TRANSITIONS:
            raise InvalidOperation(f"queue {self.name!r} cannot go from {self._state.name} to {state.name}")
        self._state = state
