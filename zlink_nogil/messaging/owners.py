"""`Owners`: the serial queue of each owner of channel messages (decision 10).

`key=` of a call names the owner, on the node it was sent to, that keeps order; without a key there is one ordered owner
per channel, which takes as many items as the host has permits.

Guarantees
    There is one open queue per owner at a time; whoever meets one that was dropped takes the next (see `QueueMap`).

Ownership
    `_queues`, `_closed`  under `_lock`, a leaf; nothing is admitted or run under it
    `_draining`           set once
    `_latest`             whoever admits, from `drain` on: a new object each time, so that no two writes are alike and
                          none can be lost
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, ShuttingDown, ZLinkError
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue, Turn
from zlink_nogil.execution._queue_map import QueueMap
from zlink_nogil.messaging.wire import Address, OwnerKind
from zlink_nogil.scheduler import Completion, Wait, WorkerPool

__all__ = ["OwnerName", "Owners", "owner_of"]

FIRST_SWEEP: Final = 1024
"""Queues up to which idle ones are kept."""

type OwnerName = tuple[str, str | None]
"""(channel, key)"""


def owner_of(channel: str, address: Address) -> OwnerName:
    return channel, (address.id if address.kind is OwnerKind.KEY else None)


class Owners:
    """Thread-safe."""

    def __init__(self, pool: WorkerPool, policy: ExecutionLanePolicy, unkeyed_items: int) -> None:
        self._pool = pool
        self._policy = policy
        self._unkeyed = replace(policy, application_message_capacity=unkeyed_items)
        self._lock = _sync.Lock()
        self._queues: QueueMap[OwnerName] = QueueMap(self._make, FIRST_SWEEP)
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
            return None if self._closed else self._queues.get_or_make(owner)

    def _make(self, owner: OwnerName) -> SerialExecutionQueue:
        channel, key = owner
        policy = self._unkeyed if key is None else self._policy
        return SerialExecutionQueue(policy, pool=self._pool, name=f"{channel}/{key or ''}")

    def check_wait(self, owner: OwnerName, completion: Completion[Any] | None, how: Wait) -> None:
        """`InvalidOperation` if the calling thread's turn would wait for itself with this owner's work (decision 11)."""
        queue = self._queues.find(owner)
        if queue is not None:
            queue.check_wait(completion, how)

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
            busy = [queue for queue in self._queues.all() if not queue.is_idle()]
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
            queues = self._queues.all()
        self.drain(_sync.monotonic() + timeout)
        interrupted = [queue for queue in queues if not _closes(queue, 0.0)]
        deadline = _sync.monotonic() + timeout
        running = [queue for queue in interrupted if not _closes(queue, max(0.0, deadline - _sync.monotonic()))]
        if running:
            names = ", ".join(queue.name for queue in running[:10])
            raise DeadlineExceeded(f"{len(running)} owners are still running: {names}")


def _closes(queue: SerialExecutionQueue, timeout: float) -> bool:
    """Close the queue, all at once or again; False when it is still running then."""
    try:
        queue.close(timeout)
    except DeadlineExceeded:
        return False
    return True
