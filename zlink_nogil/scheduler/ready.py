"""The set of runnables that are ready, and the workers that sleep for lack of one.

Guarantees
    First in, first out. Nobody sleeps while something is ready: looking and announcing oneself idle are one critical
    section, and so are adding and picking the sleeper to wake. Each add wakes at most one sleeper.
    After `close` what is ready is still given out; `take` returns None only when nothing is left.

Ownership
    every field is read and written under `_lock`; a parker in `_idle` belongs to a worker that sleeps or is about to
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from zlink_nogil import _sync

__all__ = ["ReadySet", "Runnable"]


class Runnable(Protocol):
    """Something a worker runs a slice of. It keeps itself from being in the ready set twice."""

    def run_slice(self) -> bool:
        """Run one slice now, on the calling worker; True to be put at the back of the ready set. Must not raise."""
        ...


class ReadySet:
    """Thread-safe."""

    __slots__ = ("_closed", "_idle", "_lock", "_ready")

    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self._ready: deque[Runnable] = deque()
        self._idle: deque[_sync.Parker] = deque()
        self._closed = False

    def add(self, runnable: Runnable) -> bool:
        """Put `runnable` at the back and wake one sleeper, if any; False (nothing done) after `close`."""
        with self._lock:
            if self._closed:
                return False
            sleeper = self._put(runnable)
        if sleeper is not None:
            sleeper.unpark()
        return True

    def put_back(self, runnable: Runnable) -> None:
        """As `add`, for a worker whose runnable wants another slice: accepted after `close` too."""
        with self._lock:
            sleeper = self._put(runnable)
        if sleeper is not None:
            sleeper.unpark()

    def take(self, parker: _sync.Parker) -> Runnable | None:
        """The oldest ready runnable; parks on `parker` until there is one. None after `close` with nothing left."""
        while True:
            with self._lock:
                if self._ready:
                    return self._ready.popleft()
                if self._closed:
                    return None
                self._idle.append(parker)
            parker.park()

    def close(self) -> None:
        """Accept nothing new and wake every sleeper once. Harmless a second time."""
        with self._lock:
            self._closed = True
            sleepers, self._idle = self._idle, deque()
        for sleeper in sleepers:
            sleeper.unpark()

    def counts(self) -> tuple[int, int]:
        """(ready, idle) at one moment."""
        with self._lock:
            return len(self._ready), len(self._idle)

    def _put(self, runnable: Runnable) -> _sync.Parker | None:
        self._ready.append(runnable)
        return self._idle.popleft() if self._idle else None
