"""`ActorSerialExecutor`: an Actor's one queue (seed 000 sections 2 and 3; design 3.5).

The queue stays with the Actor when that moves from Spot to Spot: what waits goes along, in order, and only where its turns
come from changes. So a sender never has to know where the Actor is.

Ownership
    read-only; the queue has its own gate
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zlink_nogil.errors import ZLinkError
from zlink_nogil.execution._closing import end_together
from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.execution.snapshot import QueueStateSnapshot
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait, WorkerPool, default_pool

__all__ = ["ActorSerialExecutor"]


class ActorSerialExecutor:
    """One per Actor. Thread-safe. Entry points and errors as in `SpotSerialExecutor`."""

    __slots__ = ("_queue", "name")

    def __init__(self, name: str, *, policy: ExecutionLanePolicy | None = None, pool: WorkerPool | None = None) -> None:
        self.name = name
        self._queue = SerialExecutionQueue(policy, pool=pool or default_pool(), name=f"actor {name}")
        self._queue.group = self

    def __repr__(self) -> str:
        return f"<ActorSerialExecutor {self.name!r}>"

    def execute_actor(self, work: Callable[[], Any], payload_bytes: int = 0) -> Completion[Any]:
        """Run a handler's `work()`, which holds `payload_bytes` bytes besides the fixed cost."""
        return self._queue.enqueue_with_payload_bytes(work, payload_bytes)

    def admit(self, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """As `SerialExecutionQueue.admit`."""
        return self._queue.admit(turns)

    def execute_lifecycle(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run join, leave and the like: ahead of what waits, but not for ever."""
        return self._queue.enqueue_lifecycle(work)

    def send_away(self, work: Callable[[], Any]) -> Completion[Any]:
        """As `execute_lifecycle`, with room or without: by a Spot that closes, once."""
        return self._queue.enqueue_lifecycle_anyway(work)

    def defer(self, work: Callable[[], Any]) -> Completion[Any]:
        """In a handler of this Actor: run `work()` when the handler has ended normally, before the next message.

        Ends as cancelled if the handler fails. `InvalidOperation` elsewhere.
        """
        return self._queue.defer_barrier(work)

    def move_to(self, gate: SerialExecutionQueue | None, group: object | None) -> None:
        """By a Spot's executor, on a turn of this Actor: from its end on the turns come from `gate` (None: its own)."""
        self._queue.move_to(gate, group or self)

    def check_wait(self, completion: Completion[Any] | None, how: Wait) -> None:
        """As `SerialExecutionQueue.check_wait`."""
        self._queue.check_wait(completion, how)

    def leave(self, group: object) -> None:
        """By a Spot's executor, `group`, on a turn of this Actor: from its end on the turns are its own again.

        Unless it moves elsewhere at that end already: joining the next Spot and leaving this one come in any order.
        """
        self._queue.leave(group, self)

    def is_current(self) -> bool:
        """Is the calling thread on a turn of this Actor?"""
        return self._queue.is_current()

    def may_yield(self) -> bool:
        return self._queue.may_yield

    def snapshot(self) -> QueueStateSnapshot:
        return self._queue.snapshot()

    def close(self, timeout: float = 5.0) -> None:
        """As `SpotSerialExecutor.close`."""
        self._queue.close(timeout)

    def expire(self) -> None:
        """Refuse new work, end what has not begun, and interrupt what waits."""
        self._queue.expire()

    def refuse_new(self) -> SerialExecutionQueue:
        """By a Spot's executor that ends with its members: refuse new work but for a final one; returns what has to end."""
        self._queue.refuse_new()
        return self._queue

    async def end(self, timeout: float, final: Callable[[], Any]) -> None:
        """In a task: as `close`, and then run `final()` on the queue. Once."""
        self._queue.refuse_new()
        await end_together([self._queue], timeout, self._queue, final)
