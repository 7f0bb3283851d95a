"""`SpotTimers`: what a Spot does by itself, by name (design 3.5).

Guarantees
    At most one tick of a timer waits or runs. A tick that is due while the one before is not over, or that finds no room, is
    counted as missed. Ticks keep to the timer's own grid. None begins after `stop`.

Ownership
    under `_lock`, a leaf    `_timers`, `_stopped`, and every timer's fields
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import AlreadyExists, Cancelled, CapacityExceeded, NotFound, ShuttingDown, ZLinkError
from zlink_nogil.execution import SpotSerialExecutor
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler.timers import Timer
from zlink_nogil.spots.handlers import check_period
from zlink_nogil.spots.names import check_id
from zlink_nogil.spots.snapshot import TimerStatistics

__all__ = ["SpotTimers"]

_log = logging.getLogger("zlink_nogil.spots")


class _Periodic:
    """A runnable: gives one tick to the Spot's executor, on a worker and under no lock."""

    __slots__ = ("_timers", "alarm", "busy", "callback", "due", "late", "missed", "name", "period", "ticks")

    def __init__(self, timers: SpotTimers, name: str, period: float, callback: Callable[[], Any]) -> None:
        self._timers = timers
        self.name = name
        self.period = period
        self.callback = callback
        self.alarm: Timer | None = None
        self.due = 0.0
        self.busy = False
        self.ticks = self.missed = 0
        self.late = 0.0

    def run_slice(self) -> bool:
        self._timers.submit(self)
        return False


class SpotTimers:
    """Thread-safe. Timers begin when the Spot is open."""

    def __init__(self, executor: SpotSerialExecutor, pool: WorkerPool) -> None:
        self._executor = executor
        self._pool = pool
        self._lock = _sync.Lock()
        self._timers: dict[str, _Periodic] = {}
        self._running = False
        self._stopped = False

    def every(self, name: str, seconds: float, callback: Callable[[], Any]) -> None:
        """Call `callback()`, plain or `async def`, on the Spot every `seconds`, first after one period.

        `AlreadyExists` for a second timer of that name, `ValueError` for a period that is none, `ShuttingDown` once closed.
        """
        check_id("a timer's name", name)
        periodic = _Periodic(self, name, check_period(seconds), callback)
        with self._lock:
            if self._stopped:
                raise ShuttingDown(f"spot {self._executor.name!r} is closed")
            if name in self._timers:
                raise AlreadyExists(f"spot {self._executor.name!r} has a timer {name!r} already")
            self._timers[name] = periodic
            if self._running:
                self._arm(periodic, _sync.monotonic() + periodic.period)

    def cancel(self, name: str) -> None:
        """No tick of it begins after this returned, but one that runs goes on. `NotFound` when there is none."""
        with self._lock:
            periodic = self._timers.pop(name, None)
            if periodic is None:
                raise NotFound(f"spot {self._executor.name!r} has no timer {name!r}")
            self._disarm(periodic)

    def statistics(self) -> dict[str, TimerStatistics]:
        """By name."""
        with self._lock:
            return {
                name: TimerStatistics(periodic.ticks, periodic.missed, periodic.late)
                for name, periodic in self._timers.items()
            }

    def begin(self) -> None:
        """By the Spot's entry: the Spot is open."""
        with self._lock:
            self._running = not self._stopped
            if self._running:
                now = _sync.monotonic()
                for periodic in self._timers.values():
                    self._arm(periodic, now + periodic.period)

    def stop(self) -> None:
        """By the Spot's entry: no tick begins any more."""
        with self._lock:
            self._stopped = True
            timers, self._timers = self._timers, {}
            for periodic in timers.values():
                self._disarm(periodic)

    def _arm(self, periodic: _Periodic, due: float) -> None:
        """Under the lock."""
        periodic.due = due
        periodic.alarm = Timer(lambda _: self._pool.resume(periodic))
        self._pool.ready.timers.arm(periodic.alarm, due)

    def _disarm(self, periodic: _Periodic) -> None:
        """Under the lock."""
        alarm, periodic.alarm = periodic.alarm, None
        if alarm is not None:
            self._pool.ready.timers.cancel(alarm)

    def submit(self, periodic: _Periodic) -> None:
        """A tick is due."""
        with self._lock:
            if _sync.look_up(self._timers, periodic.name) is not periodic:
                return
            due, now = periodic.due, _sync.monotonic()
            skipped = int((now - due) / periodic.period)
            self._arm(periodic, due + (skipped + 1) * periodic.period)
            periodic.missed += skipped + periodic.busy
            if periodic.busy:
                return
            periodic.busy = True

        try:
            completion = self._executor.execute_timer(periodic.name, functools.partial(self._tick, periodic, due))
        except ZLinkError as error:  # no room, or the Spot is closing
            self._over(periodic, error)
            return
        over = functools.partial(self._ended, periodic)
        if not completion.add_waker(over):
            over(completion)

    def _tick(self, periodic: _Periodic, due: float) -> Any:
        """On the Spot's turn."""
        with self._lock:
            if _sync.look_up(self._timers, periodic.name) is not periodic:
                return None
            periodic.ticks += 1
            periodic.late = _sync.monotonic() - due
        return periodic.callback()

    def _ended(self, periodic: _Periodic, completion: Any) -> None:
        self._over(periodic, completion.exception())

    def _over(self, periodic: _Periodic, error: BaseException | None) -> None:
        with self._lock:
            periodic.busy = False
            periodic.missed += isinstance(error, CapacityExceeded)
        if error is not None and not isinstance(error, CapacityExceeded | ShuttingDown | Cancelled):
            _log.error("timer %r of spot %r failed", periodic.name, self._executor.name, exc_info=error)
