"""`HandOver`: a thread that blocks leaves its worker's place to a spare thread (design 2.3; seed 001 section 7).

Guarantees
    While the block lasts somebody else sits at the place, with everything that waits there. The thread that comes back
    takes the place again if nobody has sat down yet; else it goes on without one to the end of its slice, and is a spare
    thread from then on. When no thread can be had, the block does not begin and nothing has changed.

Ownership
    `_offered`, `_coming`, `_blocked`, `Worker.carrier`  under `_lock`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.scheduler.threads import ThreadCache
from zlink_nogil.scheduler.worker import Runnable, Worker, here

__all__ = ["HandOver", "Places"]

MOST_BLOCKED: Final = 512
"""Threads that may block at a time, having left their places."""


class Places:
    """The places of a pool that are looking for a thread. `sit(worker)` runs what is at a place, until it is left."""

    def __init__(self, threads: ThreadCache, sit: Callable[[Worker], None]) -> None:
        self._threads = threads
        self._sit = sit
        self._lock = _sync.Lock()
        self._offered: deque[Worker] = deque()
        self._coming = 0  # threads on their way to `_sit_down`: never fewer than places
        self._blocked: dict[HandOver, Runnable | None] = {}

    def fill(self, worker: Worker) -> None:
        """Find a thread for a new place. Raises what starting a thread raises."""
        with self._lock:
            self._call_for(worker)

    def offer(self, worker: Worker, blocked: HandOver) -> None:
        """By the thread that sits at `worker`: it leaves. `CapacityExceeded`, or what starting a thread raises."""
        with self._lock:
            if len(self._blocked) >= MOST_BLOCKED:
                raise CapacityExceeded(f"{MOST_BLOCKED} threads of pool {worker.pool.name!r} are blocked already")
            self._call_for(worker)
            self._blocked[blocked] = blocked.running
            worker.carrier = None
        here.worker, here.running = None, blocked.running

    def come_back(self, worker: Worker, blocked: HandOver) -> None:
        """By the thread that left: sit down again, if the place is still empty, or empty again."""
        with self._lock:
            del self._blocked[blocked]
            if worker not in self._offered:
                return
            self._offered.remove(worker)
            worker.carrier = _sync.current_thread()
        # Others may have sat here meanwhile, and left in the middle of something else.
        worker.running, worker.source, worker.since = blocked.running, blocked.source, blocked.since
        here.worker, here.running = worker, None

    def blocked(self) -> list[Runnable | None]:
        """What the blocked threads are in the middle of."""
        with self._lock:
            return list(self._blocked.values())

    def _call_for(self, worker: Worker) -> None:
        """Under the lock: a thread comes for every place that is offered, or it is not offered."""
        if self._coming == len(self._offered):  # or else there is one whose place was taken again
            self._threads.run(self._sit_down)
            self._coming += 1
        self._offered.append(worker)

    def _sit_down(self) -> None:
        """A spare thread's job: any place that is free, if there still is one."""
        with self._lock:
            self._coming -= 1
            if not self._offered:
                return
            worker = self._offered.popleft()
            worker.carrier = _sync.current_thread()
        here.worker = worker
        self._sit(worker)
        here.worker = None


class HandOver:
    """`with HandOver():` around whatever blocks. Does nothing on a thread that sits at no place, on a guest's, or while
    a runnable runs that keeps its worker (`spawn_local`).

    `or_stay`: when no thread can be had, block at the place.
    """

    __slots__ = ("_or_stay", "_worker", "running", "since", "source")

    def __init__(self, *, or_stay: bool = False) -> None:
        self._or_stay = or_stay
        self._worker: Worker | None = None

    def __enter__(self) -> None:
        worker = here.worker
        if worker is None or worker.guest or getattr(worker.running, "keeps_worker", False):
            return
        self.running, self.source, self.since = worker.running, worker.source, worker.since
        try:
            worker.pool.places.offer(worker, self)
        except Exception:
            if self._or_stay:
                return
            raise
        self._worker = worker

    def __exit__(self, *exc_info: object) -> None:
        if self._worker is not None:
            self._worker.pool.places.come_back(self._worker, self)
