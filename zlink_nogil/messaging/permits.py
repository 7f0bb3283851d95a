"""Permits: how many jobs a host has accepted and not yet started (decision 9; design 4.3 I1).

Guarantees
    Sockets and plain threads wait, oldest first; a turn never waits, it borrows, and the free count may go below zero.
    A permit that a waiter gave up on goes to the next one. Nothing is dropped for lack of a permit.

Ownership
    every field under `_lock`; wake-ups are called outside it. A permit is in one place: free, granted, or taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.scheduler import interrupts

__all__ = ["Permits"]

type WhenFree = Callable[[], None]


class _Waiter:
    """A plain thread in the line; it wants one permit."""

    __slots__ = ("granted", "parker")

    def __init__(self) -> None:
        self.parker = _sync.Parker()
        self.granted = False


class Permits:
    """`most` permits, shared by everything on a host. Thread-safe."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_queued_application_jobs must be at least 1, not {most}")
        self.most = most
        self._lock = _sync.Lock()
        self._free = most
        self._line: deque[_Waiter | WhenFree] = deque()
        self._granted: dict[WhenFree, int] = {}

    def take(self, wanted: int, when_free: WhenFree) -> int:
        """Take up to `wanted` permits for a socket. With none to be had, 0: then `when_free()` is called once it has one."""
        with self._lock:
            taken = self._granted.pop(when_free, 0)
            if not self._line:
                more = max(0, min(wanted - taken, self._free))
                self._free -= more
                taken += more
            if not taken and when_free not in self._line:
                self._line.append(when_free)
            return taken

    def forget(self, when_free: WhenFree) -> None:
        """The socket is closing: it neither waits nor has been granted anything any more."""
        with self._lock:
            if when_free in self._line:
                self._line.remove(when_free)
            self._free += self._granted.pop(when_free, 0)
            wakes = self._serve()
        for wake in wakes:
            wake()

    def borrow(self) -> None:
        """Take one for work created inside a turn, whether there is one or not."""
        with self._lock:
            self._free -= 1

    def acquire(self, timeout: float) -> None:
        """Take one for a plain thread, waiting at most `timeout` seconds; `DeadlineExceeded` then."""
        with self._lock:
            if self._free > 0 and not self._line:
                self._free -= 1
                return
            waiter = _Waiter()
            self._line.append(waiter)
        try:
            interrupts.park(waiter.parker, timeout)
        except BaseException:
            if self._stop_waiting(waiter):
                self.give_back()
            raise
        if not self._stop_waiting(waiter):
            raise DeadlineExceeded(f"no free place among {self.most} queued jobs within {timeout} s")

    def give_back(self, count: int = 1) -> None:
        """Return permits, and serve who has waited longest."""
        with self._lock:
            self._free += count
            wakes = self._serve()
        for wake in wakes:
            wake()

    def free(self) -> int:
        """Permits not taken; negative while turns have borrowed more than there are."""
        with self._lock:
            return self._free

    def _serve(self) -> list[Callable[[], None]]:
        """Under the lock: hand free permits to the line, one each; returns the wake-ups to call outside it."""
        wakes: list[Callable[[], None]] = []
        while self._free > 0 and self._line:
            first = self._line.popleft()
            self._free -= 1
            if isinstance(first, _Waiter):
                first.granted = True
                wakes.append(first.parker.unpark)
            else:
                self._granted[first] = 1
                wakes.append(first)
        return wakes

    def _stop_waiting(self, waiter: _Waiter) -> bool:
        """Leave the line; True if the permit had been granted."""
        with self._lock:
            if not waiter.granted:
                self._line.remove(waiter)
            return waiter.granted
