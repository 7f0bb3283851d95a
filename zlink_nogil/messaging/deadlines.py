"""`Deadlines`: pending operations by the tick in which they expire (design 4.2 E3: a wheel, no timer per request).

Guarantees
    Adding and removing take constant time. A removed operation is let go of at once, not at its deadline. What is due is
    found without a scan.

Ownership
    `_ticks` and the set of buckets belong to the operation lane; a bucket is a plain dict whose single operations are
    atomic, so that a completing thread removes its operation without the lane
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from zlink_nogil import _sync

if TYPE_CHECKING:
    from zlink_nogil.messaging.operation import Operation

__all__ = ["Deadlines"]

TICK: Final = 0.01
"""Seconds; an operation expires at most this much after its deadline, never before."""


class Deadlines:
    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, Operation]] = {}
        self._ticks: list[int] = []

    def add(self, operation: Operation) -> None:
        """On lane. Uses `operation.deadline` (monotonic seconds) and sets `operation.bucket`."""
        tick = math.ceil(operation.deadline / TICK)
        bucket = _sync.look_up(self._buckets, tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._ticks, tick)
        bucket[operation.reply_route] = operation
        operation.bucket = bucket

    def due(self, now: float) -> list[Operation]:
        """On lane: take out what has expired, oldest first."""
        expired: list[Operation] = []
        while self._ticks and self._ticks[0] * TICK <= now:
            expired += list(self._buckets.pop(heapq.heappop(self._ticks)).values())
        return expired

    def next(self) -> float | None:
        """On lane: when `due` has something next, None if never. Buckets that have become empty do not count."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] * TICK
            del self._buckets[heapq.heappop(self._ticks)]
        return None

    def __len__(self) -> int:
        """On lane."""
        return sum(map(len, self._buckets.values()))
