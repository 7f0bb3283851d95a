"""`SerialExecutionQueue`: the work of one owner, one turn at a time (seed 000 section 6, design 3.4).

Guarantees
    In admission order within a lane. Admission - closed check, both capacities, place in the order, insertion - is one
    critical section: all of it or none. Work never starts on the submitter's stack. Accepted work ends exactly once: run,
    cancelled, or `ShuttingDown`; its reservation is returned before its outcome is seen.

Ownership
    as in `_loop.py`; `_ended`, `retired` are written under `_gate`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from typing import Any

from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation, ShuttingDown, ZLinkError
from zlink_nogil.execution import _waits
from zlink_nogil.execution._head import Head
from zlink_nogil.execution._item import Item, TurnState
from zlink_nogil.execution._lane import Lane
from zlink_nogil.execution._loop import Loop, QueueState
from zlink_nogil.execution._submitted import SubmittedTurn
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.snapshot import QueueStateSnapshot
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait, WorkerPool, default_pool
from zlink_nogil.state.assertions import debug_assert_current

__all__ = ["SerialExecutionQueue"]


class SerialExecutionQueue(Loop):
    """Runs plain functions and `async def` handlers of one owner in order on a shared pool. All members are thread-safe.

    `pool` defaults to the process's; `name` appears in errors. `shared`: its turn is a gate that work may give back with
    `yield_()`. `outer`: a shared queue that gives this queue's work its turns, one head at a time and at fixed cost; what
    yields gives back the outer queue's turn and keeps this queue (seed 000 section 4).
    """

    __slots__ = ("_ended", "retired")

    def __init__(
        self,
        policy: ExecutionLanePolicy | None = None,
        *,
        pool: WorkerPool | None = None,
        name: str = "queue",
        shared: bool = False,
        outer: SerialExecutionQueue | None = None,
    ) -> None:
        super().__init__(policy or ExecutionLanePolicy(), pool or default_pool(), name, shared, outer)
        self._ended = False
        self.retired = False

    def __repr__(self) -> str:
        return f"<SerialExecutionQueue {self.name!r} {self._state.name.lower()}>"

    # -- submitting -------------------------------------------------------------------------------------------------

    def enqueue(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run `work()` on the application lane, at the policy's fixed cost.

        Raises, having changed nothing: `CapacityExceeded` when the lane is full, `ShuttingDown` after `close`.
        """
        return self._submit(work, 0, self._lines.application)

    def enqueue_with_payload_bytes(self, work: Callable[[], Any], payload_bytes: int) -> Completion[Any]:
        """As `enqueue`, for work that holds `payload_bytes` bytes (payload and metadata) besides the fixed cost."""
        return self._submit(work, payload_bytes, self._lines.application)

    def enqueue_lifecycle(self, work: Callable[[], Any]) -> Completion[Any]:
        """As `enqueue`, on the lifecycle lane: ahead of application work, at most `lifecycle_burst_limit` in a row."""
        return self._submit(work, 0, self._lines.lifecycle)

    def enqueue_lifecycle_anyway(self, work: Callable[[], Any]) -> Completion[Any]:
        """As `enqueue_lifecycle`, with room or without: for what may not be refused; something else bounds its number."""
        turn = self._make(work, 0)
        with self._gate:
            if self._closed:
                raise ShuttingDown(f"queue {self.name!r} is closed")
            self._enter_anyway(turn)
            turn.lane.waiting.append(turn)
            start = self._wake()
        if start:
            self._schedule()
        return turn.completion

    def enqueue_barrier_next(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run `work()` right after the current turn, before everything that waits. Reserved in the lifecycle lane."""
        return self._submit(work, 0, self._lines.lifecycle, self._lines.barrier)

    def enqueue_final(self, work: Callable[[], Any]) -> Completion[Any]:
        """Refuse new work, and run `work()` when everything accepted is over. `ShuttingDown` after that and after `close`.

        It needs no room and runs in any case: also when the time given to what was accepted is over.
        """
        turn = self._make(work, 0)
        with self._gate:
            if self._ended:
                raise ShuttingDown(f"queue {self.name!r} is closed")
            self._closed = self._ended = True
            self._enter_anyway(turn)
            self._lines.final = turn
            start = self._wake()
        if start:
            self._schedule()
        return turn.completion

    def _enter_anyway(self, turn: Turn) -> None:
        """Under the gate: reserve in the lifecycle lane, with room or without."""
        turn.queue, turn.lane, turn.cost = self, self._lines.lifecycle, self._fixed_cost
        turn.lane.reserve_anyway(turn.cost)

    def defer_barrier(self, work: Callable[[], Any]) -> Completion[Any]:
        """As `enqueue_barrier_next`, by the turn that runs, and only if that ends normally; else it ends as cancelled."""
        current = Turn.current
        if current is None or current.queue is not self:
            raise InvalidOperation(f"only a turn of queue {self.name!r} can defer work to its end")
        deferred: list[Item] = [] if current.deferred is None else current.deferred
        completion = self._submit(work, 0, self._lines.lifecycle, deferred)
        current.deferred = deferred
        return completion

    def _make(self, work: Callable[[], Any], payload_bytes: int) -> SubmittedTurn:
        self.pool.start()  # what fails, fails before anything is accepted
        turn = work if isinstance(work, SubmittedTurn) else SubmittedTurn(work, payload_bytes)
        turn.connect(self)
        return turn

    def _submit(
        self, work: Callable[[], Any], payload_bytes: int, lane: Lane, line: MutableSequence[Item] | None = None
    ) -> Completion[Any]:
        turn = self._make(work, payload_bytes)
        with self._gate:
            if self._lines.heads:
                self._lines.let_heads_in()
            self._place(turn, lane, lane.waiting if line is None else line)
            start = self._wake()
        if start:
            self._schedule()
        return turn.completion

    def admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """Admit turns to the application lane in one critical section; returns the refused ones with the reason each."""
        refused: list[tuple[Turn, ZLinkError]] = []
        lane = self._lines.application
        with self._gate:
            if self._lines.heads:
                self._lines.let_heads_in()
            for turn in turns:
                try:
                    self._place(turn, lane, lane.waiting)
                except ZLinkError as error:
                    refused.append((turn, error))
            start = bool(lane.waiting) and self._wake()
        if start:
            self._schedule()
        return refused

    def _place(self, turn: Turn, lane: Lane, line: MutableSequence[Item]) -> None:
        """Under the gate: admit one turn, or raise and change nothing."""
        if self._closed:
            raise ShuttingDown(f"queue {self.name!r} is closed")
        turn.cost = cost = turn.payload_bytes + self._fixed_cost
        self._lines.reserve(lane, cost)
        turn.queue = self
        turn.lane = lane
        line.append(turn)

    # -- asking -----------------------------------------------------------------------------------------------------

    def check_wait(self, completion: Completion[Any] | None, how: Wait) -> None:
        """`InvalidOperation` if the calling thread's turn would wait for itself with `completion`, work of this queue.

        None: with work that it is about to submit.
        """
        _waits.check(self, None, completion, how)

    def is_idle(self) -> bool:
        """Is nothing queued, running or suspended at this moment?"""
        self.pool.check_fork()
        with self._gate:
            return self._state is QueueState.IDLE

    def reserved(self) -> tuple[int, int]:
        """(items, bytes) admitted and not yet finished, both lanes."""
        self.pool.check_fork()
        with self._gate:
            return self._lines.reserved()

    def snapshot(self) -> QueueStateSnapshot:
        """What is in the queue, at one moment."""
        self.pool.check_fork()
        with self._gate:
            holder = self.holder()
            suspended = [turn for item in self._suspended() if (turn := item.turn()) is not None]
            items, size = self._lines.reserved()
            return QueueStateSnapshot(
                self.name,
                sum(1 for _ in self._lines),
                items,
                size,
                None if holder is None else holder.describe(),
                None if holder is None else self._now() - self._since,
                tuple(turn.describe() for turn in suspended),
            )

    # -- closing ----------------------------------------------------------------------------------------------------

    def await_quiescence(self) -> Completion[None]:
        """Done when nothing accepted is left, suspended work included. `InvalidOperation` on a turn of this queue."""
        self.pool.check_fork()
        self._throw_if_current()
        completion: Completion[None] = Completion(self.pool, on_wait=self._throw_if_current)
        with self._gate:
            if self._state is not QueueState.IDLE:
                self._quiet.append(completion)
                return completion
        completion.succeed(None)
        return completion

    def _throw_if_current(self, *_: object) -> None:
        if self.is_current():
            raise InvalidOperation(f"a turn of queue {self.name!r} cannot wait for the end of its own queue's work")

    def close(self, timeout: float = 5.0) -> None:
        """Refuse new work and finish what was accepted. A second close is harmless and waits as well.

        After `timeout` seconds what has not begun ends as `ShuttingDown`, and a suspended handler gets `ShuttingDown`
        at its `await` and runs to its end. `DeadlineExceeded` if a turn is still running `timeout` seconds after that.
        On a turn of this queue it only marks the queue closed.
        """
        self.pool.check_fork()
        with self._gate:
            self._closed = self._ended = True
        if self.is_current():
            return
        quiet = self.await_quiescence()
        try:
            quiet.result(timeout)
        except DeadlineExceeded:
            self.expire()
            quiet.result(timeout)

    def refuse_new(self) -> None:
        """Refuse new work but for a final one, and do not wait."""
        self.pool.check_fork()
        with self._gate:
            self._closed = True

    def retire(self) -> bool:
        """Close the queue if it is idle, as one decision; False (nothing done) if it is not."""
        self.pool.check_fork()
        with self._gate:
            if self._state is not QueueState.IDLE:
                return False
            self._closed = self._ended = self.retired = True
            return True

    def expire(self) -> None:
        """The time is over: refuse new work, end what has not begun, and interrupt the turns that wait."""
        with self._gate:
            self._closed = self._expired = True
            unstarted = self._lines.unstarted()
            for turn in unstarted:
                self._lines.withdraw(turn)
            suspended = [item for item in self._suspended() if item.state is TurnState.SUSPENDED]
            inner = [item.inner for item in suspended if isinstance(item, Head)]
            resumed = [self._notify(item, self._shutting_down()) for item in suspended if not isinstance(item, Head)]
        for turn in unstarted:
            turn.fail(self._shutting_down())
        if any(resumed):
            self._schedule()
        for queue in inner:
            if self._stranded:
                queue.expire()
            else:
                queue.interrupt()

    def interrupt(self) -> None:
        """By the outer queue, whose time is over: its turn is needed; this queue goes on when it gets others."""
        with self._gate:
            held = self._held
            resumed = held is not None and held.state is TurnState.SUSPENDED and self._notify(held, self._shutting_down())
        if resumed:
            self._schedule()

    def _suspended(self) -> list[Item]:
        """Under the gate: what waits, with the turn or without."""
        return [*self._away, *([] if self._held is None else [self._held])]

    def cancel(self, turn: Turn) -> bool:
        """End a turn of this queue: at once if it has not begun, else at its present or next wait; False if it is over."""
        with self._gate:
            resumed = False
            if turn.state is TurnState.FINISHED:
                return False
            unstarted = turn.state is TurnState.QUEUED
            if unstarted:
                self._lines.withdraw(turn)
            elif turn.state is TurnState.SUSPENDED:
                resumed = self._notify(turn, Cancelled())
            else:  # raised at its next wait, if there is one
                turn.interruption = Cancelled()
        if unstarted:
            turn.fail(Cancelled())
        if resumed:
            self._schedule()
        return True

    def move_to(self, outer: SerialExecutionQueue | None, group: object) -> None:
        """On a turn of this queue: from the turn's end on its turns come from `outer`, or (None) from the pool."""
        debug_assert_current(self)
        self._moving = (outer, group)

    def leave(self, group: object, own: object) -> None:
        """On a turn of this queue: as `move_to(None, own)`, unless it moves from `group` to another one already."""
        debug_assert_current(self)
        if self._moving is None or self._moving[1] is group:
            self._moving = (None, own)
