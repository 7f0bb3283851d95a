"""`QueueMap`: queues by name, made when there is work for them and dropped when they are idle (design 3.5).

Guarantees
    There is one open queue per name at a time. A queue is dropped by retiring it, which its own gate decides: it has no
    work, waiting, running or suspended. Whoever has seen a million names does not keep a million queues.

Ownership
    all by whoever owns the map: a coordinator's lane, or a lock
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.execution.queue import SerialExecutionQueue

__all__ = ["QueueMap"]

FIRST_SWEEP: Final = 64
"""Queues up to which idle ones are kept."""


class QueueMap[K]:
    def __init__(self, make: Callable[[K], SerialExecutionQueue], first_sweep: int = FIRST_SWEEP) -> None:
        self._make = make
        self._queues: dict[K, SerialExecutionQueue] = {}
        self._first_sweep = self._sweep_at = first_sweep

    def get_or_make(self, name: K) -> SerialExecutionQueue:
        queue = _sync.look_up(self._queues, name)
        if queue is None or queue.retired:
            if len(self._queues) >= self._sweep_at:
                self.sweep()
            queue = self._queues[name] = self._make(name)
        return queue

    def find(self, name: K) -> SerialExecutionQueue | None:
        """Also without owning the map: one look, at one moment."""
        return _sync.look_up(self._queues, name)

    def all(self) -> list[SerialExecutionQueue]:
        return list(self._queues.values())

    def items(self) -> list[tuple[K, SerialExecutionQueue]]:
        return list(self._queues.items())

    def empty(self) -> list[SerialExecutionQueue]:
        queues, self._queues = self.all(), {}
        return queues

    def __len__(self) -> int:
        return len(self._queues)

    def sweep(self) -> None:
        """Each sweep is paid for by as many new names as it looks at."""
        self._queues = {name: queue for name, queue in self._queues.items() if not queue.retire()}
        self._sweep_at = max(self._first_sweep, 2 * len(self._queues))
