"""`ThreadCache`: the OS threads of a pool, started when one is needed and kept for a while (design 2.3).

A thread runs one job after another: sitting at a worker's place is a job, a blocking function is one.

Guarantees
    Every job that `run` accepted runs, exactly once. A thread that cannot be started is the caller's error and changes
    nothing. An idle thread ends after `KEEP` seconds, or when the cache closes; `join` waits for all of them.
    Idle threads are used again, the latest first: hand-overs do not start a thread each.

Assumes
    A job does not raise.

Ownership
    `_idle`, `_threads`, `_closed`, `_Spare.job`  under `_lock` (a job is read without it by the thread it was given to)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zlink_nogil import _sync
from zlink_nogil.scheduler.worker import here

if TYPE_CHECKING:
    from zlink_nogil.scheduler.pool import WorkerPool

__all__ = ["ThreadCache"]

KEEP: Final = 5.0
"""Seconds an idle thread waits for another job."""


class _Spare:
    """A thread's bed and its next job."""

    __slots__ = ("job", "parker")

    def __init__(self, job: Callable[[], None]) -> None:
        self.job: Callable[[], None] | None = job
        self.parker = _sync.Parker()


class ThreadCache:
    """Thread-safe. `begin()` is called once in every new thread."""

    def __init__(self, pool: WorkerPool, begin: Callable[[], None]) -> None:
        self._pool = pool
        self._begin = begin
        self._lock = _sync.Lock()
        self._idle: list[_Spare] = []
        self._threads: list[_sync.Thread] = []  # replaced, never changed
        self._closed = False
        self._numbers = itertools.count()

    def run(self, job: Callable[[], None]) -> None:
        """Run `job()` on a thread that has nothing else to do, a new one if need be.

        Raises what starting a thread raises (`RuntimeError`); the job does not run then.
        """
        with self._lock:
            if not self._idle:
                self._start(_Spare(job))
                return
            spare = self._idle.pop()
            spare.job = job
        spare.parker.unpark()

    def _start(self, spare: _Spare) -> None:
        """Under the lock: a thread is counted before anybody can ask for it, and not if it does not start."""
        name = f"{self._pool.name}-worker-{next(self._numbers)}"
        thread = _sync.Thread(target=self._live, args=(spare,), name=name, daemon=True)
        thread.start()
        self._threads = [*(old for old in self._threads if old.is_alive()), thread]

    def _live(self, spare: _Spare) -> None:
        here.pool = self._pool
        self._begin()
        while (job := spare.job) is not None:
            spare.job = None
            job()
            del job  # an idle thread holds nothing
            self._wait(spare)

    def _wait(self, spare: _Spare) -> None:
        """For another job; without one the thread ends, and nobody can give it one any more."""
        with self._lock:
            if self._closed:
                return
            self._idle.append(spare)
        spare.parker.park(KEEP)
        with self._lock:
            if spare.job is None and spare in self._idle:
                self._idle.remove(spare)

    def counts(self) -> tuple[int, int]:
        """(threads, idle ones)."""
        with self._lock:
            return sum(thread.is_alive() for thread in self._threads), len(self._idle)

    def all(self) -> list[_sync.Thread]:
        return self._threads

    def close(self) -> None:
        """Idle threads end now, the others after their job. Jobs are still accepted: what is left may need threads."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for spare in idle:
            spare.parker.unpark()

    def join(self, deadline: float | None) -> list[str]:
        """Wait for the end of every thread, at most until the monotonic time `deadline`; the names of those that live on."""
        while True:
            with self._lock:
                threads = self._threads
            for thread in threads:
                thread.join(None if deadline is None else max(0.0, deadline - _sync.monotonic()))
            busy = [thread.name for thread in threads if thread.is_alive()]
            with self._lock:
                if busy or threads is self._threads:  # or else there is a new one
                    return busy
