"""`SessionSerialExecutor`: a session's one queue (seed 000 section 3; design 3.5).

    application                 in order
    control, infrastructure     overtake it, at most `lifecycle_burst_limit` in a row
    final                       once, after everything accepted before it

Ownership
    read-only; the queue has its own gate
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil.execution.policy import ExecutionLanePolicy
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.execution.snapshot import QueueStateSnapshot
from zlink_nogil.scheduler import Completion, WorkerPool, default_pool

__all__ = ["SessionSerialExecutor"]


class SessionSerialExecutor:
    """One per session. Thread-safe. Entry points and errors as in `SpotSerialExecutor`."""

    __slots__ = ("_queue", "name")

    def __init__(self, name: str, *, policy: ExecutionLanePolicy | None = None, pool: WorkerPool | None = None) -> None:
        self.name = name
        self._queue = SerialExecutionQueue(policy, pool=pool or default_pool(), name=f"session {name}")
        self._queue.group = self

    def __repr__(self) -> str:
        return f"<SessionSerialExecutor {self.name!r}>"

    def execute_application(self, work: Callable[[], Any], payload_bytes: int = 0) -> Completion[Any]:
        """Run `work()` for a packet, which holds `payload_bytes` bytes besides the fixed cost."""
        return self._queue.enqueue_with_payload_bytes(work, payload_bytes)

    def execute_control(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run a command about the session, ahead of packets."""
        return self._queue.enqueue_lifecycle(work)

    def execute_infrastructure(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run the runtime's own work on the session, such as a change of the connection's state, ahead of packets."""
        return self._queue.enqueue_lifecycle(work)

    def execute_final(self, work: Callable[[], Any]) -> Completion[Any]:
        """Run the session's last work, after everything accepted before it, and close. `ShuttingDown` a second time."""
        return self._queue.enqueue_final(work)

    def is_current(self) -> bool:
        """Is the calling thread on a turn of this session?"""
        return self._queue.is_current()

    def snapshot(self) -> QueueStateSnapshot:
        return self._queue.snapshot()

    def close(self, timeout: float = 5.0) -> None:
        """As `SpotSerialExecutor.close`. A final work that was accepted still runs."""
        self._queue.close(timeout)
