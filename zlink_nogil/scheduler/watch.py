"""`Watch`: what the stand-by thread does for a pool whose workers cannot (design 2.3).

While anybody works it looks once a second; while all sleep, not at all.

Guarantees
    When every worker has been in the same slice for `STALL` seconds, none of them computing, and something waits, that is
    reported once, with what each of them runs and where. A GIL that comes back - a late import can do it to the whole
    process - is reported once. Timers that no worker has come to fire are fired.

Ownership
    `_armed`  set by who wakes a worker, taken back by the stand-by, which then looks again: one of the two sees the other
    `_life`   held while it is added or removed, so that the one is over before the other begins
    the rest  the stand-by thread
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from zlink_nogil import _sync
from zlink_nogil._interpreter import FREE_THREADED
from zlink_nogil.scheduler.standby import default_standby
from zlink_nogil.scheduler.statistics import describe_workers
from zlink_nogil.scheduler.worker import Worker

if TYPE_CHECKING:
    from zlink_nogil.scheduler.pool import WorkerPool

__all__ = ["Watch"]

STALL: Final = 1.0
"""Seconds."""

_log = logging.getLogger("zlink_nogil.scheduler")


class Watch:
    """A driver of the stand-by (`driver.py`). Thread-safe: `stir`, `begin`, `end`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._wake = _sync.EventFd()
        self._standby = default_standby()
        self._life = _sync.Lock()
        self._ended = False
        self._armed = False
        self._progress: tuple[int, ...] = ()
        self._computed = 0.0
        self._since = 0.0
        self._reported = False
        self._gil_reported = not FREE_THREADED

    def begin(self) -> None:
        """Once, by who made it; nothing if it has ended meanwhile."""
        with self._life:
            if not self._ended:
                self._standby.add_soon(self)  # whoever submits may hold what the stand-by waits for
                self._pool.ready.stirred = self.stir

    def end(self) -> None:
        """Once, when no worker is left."""
        with self._life:
            self._ended = True
            self._pool.ready.stirred = None
            self._standby.remove(self)
            self._wake.close()
        self._look_at_the_gil()

    def stir(self) -> None:
        """A worker has been woken."""
        if not self._armed:
            self._armed = True
            self._wake.set()

    # -- the stand-by thread ----------------------------------------------------------------------------------------

    def descriptors(self) -> Collection[int]:
        return (self._wake.fileno(),)

    def wake(self) -> None:
        self._wake.set()

    def rotate(self, _: Collection[int] | None = None, /) -> float | None:
        self._wake.clear()
        self._look_at_the_gil()
        self._armed = False
        if self._all_sleep():
            return None
        self._armed = True
        now = _sync.monotonic()
        self._pool.ready.timers.fire()
        self._judge(now)
        return now + STALL

    def _all_sleep(self) -> bool:
        _, _, idle, _ = self._pool.ready.counts()
        return idle == len(self._pool.ready.workers)

    def _judge(self, now: float) -> None:
        ready = self._pool.ready
        progress = tuple(worker.items for worker in ready.workers)
        injected, queued, idle, searching = ready.counts()
        computed = sum(map(_computed, ready.workers))
        idle_hands = not injected + queued or idle or searching
        if progress != self._progress or idle_hands or computed - self._computed > STALL / 10:
            self._progress, self._computed, self._since, self._reported = progress, computed, now, False
        elif now - self._since >= STALL and not self._reported:
            self._reported = True
            _log.error(
                "all workers blocked: for %.1f s no worker of pool %r has finished a slice while %d runnables wait\n%s",
                now - self._since,
                self._pool.name,
                injected + queued,
                describe_workers(ready.workers),
            )

    def _look_at_the_gil(self) -> None:
        if not self._gil_reported and sys._is_gil_enabled():
            self._gil_reported = True
            _log.error(
                "the GIL is on, so the workers of pool %r take turns; an extension module that was imported turned it on, "
                "unless PYTHON_GIL=1 or -X gil=1 asked for it",
                self._pool.name,
            )


def _computed(worker: Worker) -> float:
    """Seconds of CPU the thread at `worker` has used; 0 where the system does not tell."""
    thread = worker.carrier
    if thread is None:
        return 0.0
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except OSError:  # it has ended, or no such file here
        return 0.0
