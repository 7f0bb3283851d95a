"""`Timers`: one heap of deadlines for a pool (design 2.2; seed 001 section 9).

Guarantees
    A timer fires once, at or after its deadline, or is cancelled: exactly one of the two. Equal deadlines fire in arming
    order. Cancelling lets go of the callback, and what it holds, at once; the heap never holds more dead entries than live
    ones (beyond a few). A bad value fails in the caller. A callback that raises does not stop the others.

Assumes
    A callback is short and takes no lock but leaves (`Suspension` wakers): it runs on whoever fires.

Ownership
    `_heap`, `_dead`, `Timer.callback`  under `_lock`
    `_firing`                           held by the one who fires, so that the order holds
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any, Final

from zlink_nogil import _sync

__all__ = ["Timer", "Timers", "check_seconds"]

_FEW: Final = 64
"""Dead entries that are not worth a clean-up."""

_log = logging.getLogger("zlink_nogil.scheduler")


def check_seconds(seconds: float) -> float:
    """A delay as given by a user: `TypeError` or `ValueError` for what is none; negative ones mean "now"."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a time in seconds is a number, not {seconds!r}")
    if math.isnan(seconds):
        raise ValueError("a time in seconds cannot be NaN")
    return max(0.0, float(seconds))


class Timer:
    """Armed once. `callback(timer)` is what happens at the deadline; None once it has fired or was cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Any], None] | None = None) -> None:
        self.callback = callback


class Timers:
    """Thread-safe. `earlier()` is called, without a lock, when a new timer is due before all others."""

    def __init__(self, earlier: Callable[[], None]) -> None:
        self._lock = _sync.Lock()
        self._firing = _sync.Lock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._dead = 0
        self._order = itertools.count()
        self._earlier = earlier

    def arm(self, timer: Timer, deadline: float) -> None:
        """Fire at the monotonic time `deadline`, or soon after; never for an infinite one."""
        with self._lock:
            entry = (deadline, next(self._order), timer)
            heapq.heappush(self._heap, entry)
            first = self._heap[0] is entry
        if first:
            self._earlier()

    def cancel(self, timer: Timer) -> bool:
        """True if the timer will not fire any more because of this call."""
        with self._lock:
            if timer.callback is None:
                return False
            timer.callback = None
            self._dead += 1
            if self._dead > _FEW and 2 * self._dead > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].callback is not None]
                heapq.heapify(self._heap)
                self._dead = 0
            return True

    def earliest(self) -> float | None:
        """The nearest deadline, or None."""
        with self._lock:
            self._drop_dead()
            return self._heap[0][0] if self._heap else None

    def armed(self) -> int:
        """How many will fire."""
        with self._lock:
            return len(self._heap) - self._dead

    def fire(self) -> None:
        """Call what is due, in order; one thread at a time."""
        if not self._heap or (deadline := self.earliest()) is None or deadline > (now := _sync.monotonic()):
            return
        with self._firing:
            while (due := self._next_due(now)) is not None:
                timer, callback = due
                try:
                    callback(timer)
                except BaseException:  # the others must fire
                    _log.exception("a timer's callback failed: %r", callback)

    def _next_due(self, now: float) -> tuple[Timer, Callable[[Any], None]] | None:
        with self._lock:
            self._drop_dead()
            if not self._heap or self._heap[0][0] > now:
                return None
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            assert callback is not None, "dead entries have been dropped"
            return timer, callback

    def _drop_dead(self) -> None:
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._dead -= 1
