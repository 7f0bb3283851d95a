"""`Owners`: the serial queue of each owner of channel messages (decision 10).

`key=` of a call names the owner, on the node it was sent to, that keeps order; without a key there is one ordered owner
per channel, which takes as many items as the host has permits.

Guarantees
    There is one open queue per owner at a time. A queue is dropped by retiring it, which its own gate decides: whoever
    meets a retired queue takes the next one. A node that has seen a million keys does not keep a million queues.

Ownership
    `_queues`, `_sweep_at`, `_closed`  under `_lock`, a leaf; nothing is admitted or run under it
    `_draining`                        set once
    `_latest`                          whoever admits, from `drain` on: a new object each time, so that no two writes are
                                       alike and none can be lost
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, ShuttingDown, ZLinkError
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue, Turn
from zlink_nogil.scheduler import WorkerPool

__all__ = ["OwnerName", "Owners"]

FIRST_SWEEP: Final = 1024
"""Queues up to which idle ones are kept."""

type OwnerName = tuple[str, str | None]
"""(channel, key)"""


class Owners:
    """Thread-safe."""

    def __init__(self, pool: WorkerPool, policy: ExecutionLanePolicy, unkeyed_items: int) -> None:
        self._pool = pool
        self._policy = policy
        self._unkeyed = replace(policy, application_message_capacity=unkeyed_items)
        self._lock = _sync.Lock()
        self._queues: dict[OwnerName, SerialExecutionQueue] = {}
        self._sweep_at = FIRST_SWEEP
        self._closed = False
        self._draining = False
        self._latest = object()

    def admit(self, owner: OwnerName, turns: Iterable[Turn]) -> list[tuple[Turn, ZLinkError]]:
        """Append `turns` to the owner's queue in one critical section; returns the refused ones with the reason each."""
        turns = list(turns)
        while True:
            queue = self._queue(owner)
            if queue is None:
                return [(turn, ShuttingDown("the node is shutting down")) for turn in turns]
            refused = queue.admit(turns)
            if self._draining:
                self._latest = object()
            if not refused or not queue.retired:
                return refused

    def _queue(self, owner: OwnerName) -> SerialExecutionQueue | None:
        with self._lock:
            queue = self._queues.get(owner)
            if self._closed or (queue is not None and not queue.retired):
                return None if self._closed else queue
            if len(self._queues) >= self._sweep_at:
                self._sweep()
            channel, key = owner
            policy = self._unkeyed if key is None else self._policy
            queue = self._queues[owner] = SerialExecutionQueue(policy, pool=self._pool, name=f"{channel}/{key or ''}")
            return queue

    def throw_if_current(self, owner: OwnerName) -> None:
        """`InvalidOperation` if the calling thread is on a turn of this owner (decision 11)."""
        queue = self._queues.get(owner)
        if queue is not None:
            queue.throw_if_current()

    def __len__(self) -> int:
        return len(self._queues)

    def drain(self, deadline: float) -> None:
        """Wait until every owner is idle, or until `deadline` (monotonic); owners may still give each other work.

        All are idle when none was busy and none was given work while they were looked at one after the other: whoever
        gives work says so before its own turn ends.
        """
        self._draining = True
        while True:
            seen = self._latest
            busy = [queue for queue in list(self._queues.values()) if not queue.is_idle()]
            if not busy and seen is self._latest:
                return
            for queue in busy:
                try:
                    queue.await_quiescence().result(max(0.0, deadline - _sync.monotonic()))
                except DeadlineExceeded:
                    return

    def close(self, timeout: float) -> None:
        """Refuse new work, finish what was accepted within `timeout` seconds in all, end the rest as `ShuttingDown`.

        `DeadlineExceeded` naming the owners that are still running `timeout` seconds after that.
        """
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
        self.drain(_sync.monotonic() + timeout)
        interrupted = [queue for queue in queues if not _closes(queue, 0.0)]
        deadline = _sync.monotonic() + timeout
        running = [queue for queue in interrupted if not _closes(queue, max(0.0, deadline - _sync.monotonic()))]
        if running:
            names = ", ".join(queue.name for queue in running[:10])
            raise DeadlineExceeded(f"{len(running)} owners are still running: {names}")

    def _sweep(self) -> None:
        """Under the lock: drop idle queues. Each sweep is paid for by as many new owners as it looks at."""
        self._queues = {name: queue for name, queue in self._queues.items() if not queue.retire()}
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._queues))


def _closes(queue: SerialExecutionQueue, timeout: float) -> bool:
    """Close the queue, all at once or again; False when it is still running then."""
    try:
        queue.close(timeout)
    except DeadlineExceeded:
        return False
    return True
