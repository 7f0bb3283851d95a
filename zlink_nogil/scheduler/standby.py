"""`StandBy`: the thread that leads every role nobody else leads (decision 7). One epoll set, no fixed-interval polling.

Guarantees
    A driver that was added is rotated whenever one of its descriptors is readable or its deadline has come. After
    `remove` has returned the thread does not touch the driver or its descriptors any more. With nothing to do it sleeps
    in one system call; with no driver left it ends. It survives a driver that raises; a driver whose descriptors cannot
    be watched is refused by `add`. A stand-by inherited through `os.fork` refuses drivers.

Ownership
    `_changes`, `_thread`               under `_lock`
    `_seats`, `_by_fd`, seats, `_epoll` the running thread; a thread that ends hands them on through `_lock`
"""

from __future__ import annotations

import logging
import select
from collections import deque
from contextlib import suppress
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler.driver import Driver
from zlink_nogil.scheduler.per_process import PerProcess

__all__ = ["StandBy", "default_standby"]

LONGEST_SLEEP: Final = 3600.0
"""Seconds; a later deadline does not fit into epoll's milliseconds at some point."""

_log = logging.getLogger("zlink_nogil.scheduler")


class _Seat:
    """One driver in the thread's epoll set."""

    __slots__ = ("deadline", "driver", "registered")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.registered: set[int] = set()
        self.deadline: float | None = None


class _Change:
    """What the thread is asked for; `done` is set when it has been, or has been refused with `error`."""

    __slots__ = ("add", "awaited", "done", "driver", "error")

    def __init__(self, driver: Driver, add: bool, *, awaited: bool = True) -> None:
        self.driver = driver
        self.add = add
        self.awaited = awaited
        self.done = _sync.Event()
        self.error: BaseException | None = None


class StandBy:
    """Its thread lives while there is a driver. Thread-safe; `add` and `remove` are not for the thread itself."""

    def __init__(self, name: str = "zlink-standby") -> None:
        self.name = name
        self._lock = _sync.Lock()
        self._changes: deque[_Change] = deque()
        self._thread: _sync.Thread | None = None
        self._wake = _sync.EventFd()
        self._epoll = _sync.Epoll()
        self._epoll.register(self._wake.fileno(), select.EPOLLIN)
        self._seats: dict[int, _Seat] = {}
        self._by_fd: dict[int, _Seat] = {}
        self._fork = _sync.ForkGuard()

    def add(self, driver: Driver) -> None:
        """Lead `driver` from now on; returns when its descriptors are being watched. Harmless a second time.

        Raises what `driver.descriptors` raises, or `OSError` when one of them cannot be watched.
        """
        self._change(_Change(driver, add=True))

    def remove(self, driver: Driver) -> None:
        """Stop leading `driver`; returns when the thread has let go of it (and has ended, if it was the last)."""
        self._change(_Change(driver, add=False))

    def add_soon(self, driver: Driver) -> None:
        """As `add`, from any place: waits for nothing and nobody, so on a lane, under a lock or in the thread itself.

        A driver that cannot be watched is logged.
        """
        self._ask(_Change(driver, add=True, awaited=False))

    def _change(self, change: _Change) -> None:
        thread = self._ask(change)
        change.done.wait()
        with self._lock:
            ended = self._thread is not thread
        if ended:
            thread.join()
        if change.error is not None:
            raise change.error

    def _ask(self, change: _Change) -> _sync.Thread:
        if self.inherited():
            raise InvalidOperation("the stand-by was started before a fork and cannot be used in the child")
        with self._lock:
            thread = self._thread
            if change.awaited and thread is _sync.current_thread():
                raise InvalidOperation("drivers are not added or removed by the stand-by thread itself")
            self._changes.append(change)
            if thread is None:
                thread = self._thread = _sync.Thread(target=self._run, name=self.name, daemon=True)
                thread.start()
        self._wake.set()
        return thread

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due: dict[_Seat, None] = {}  # in order
        while self._apply_changes(due):
            for seat in due:
                self._rotate(seat)
            ready = self._epoll.poll(self._sleep_time())
            now = _sync.monotonic()
            due = {seat: None for seat in self._seats.values() if seat.deadline is not None and seat.deadline <= now}
            for fd, _ in ready:
                if fd == self._wake.fileno():
                    self._wake.clear()
                else:
                    due[self._by_fd[fd]] = None

    def _apply_changes(self, due: dict[_Seat, None]) -> bool:
        """False when no driver is left: the decision to end and the next `add` exclude each other."""
        with self._lock:
            changes, self._changes = self._changes, deque()
            for change in changes:
                if change.add:
                    self._add(change, due)
                elif (gone := self._seats.pop(id(change.driver), None)) is not None:
                    self._forget(gone)
                    due.pop(gone, None)
            if not self._seats:
                self._thread = None
            left = bool(self._seats)
        for change in changes:
            change.done.set()
        return left

    def _add(self, change: _Change, due: dict[_Seat, None]) -> None:
        if id(change.driver) in self._seats:
            return
        seat = _Seat(change.driver)
        try:
            self._watch(seat)
        except BaseException as error:  # the only thread that waits must survive any driver
            self._forget(seat)
            change.error = error
            if not change.awaited:
                _log.critical("a driver cannot be watched: %r", change.driver, exc_info=True)
            return
        self._seats[id(change.driver)] = seat
        due[seat] = None

    def _rotate(self, seat: _Seat) -> None:
        try:
            seat.deadline = seat.driver.rotate()
            self._watch(seat)
        except BaseException:  # the only thread that waits must survive any driver
            _log.critical("a driver raised: %r", seat.driver, exc_info=True)
            seat.deadline = _sync.monotonic() + 1.0

    def _watch(self, seat: _Seat) -> None:
        wanted = set(seat.driver.descriptors())
        for fd in seat.registered - wanted:
            self._unregister(seat, fd)
        for fd in wanted - seat.registered:
            self._epoll.register(fd, select.EPOLLIN)
            seat.registered.add(fd)
            self._by_fd[fd] = seat

    def _forget(self, seat: _Seat) -> None:
        for fd in list(seat.registered):
            self._unregister(seat, fd)

    def _unregister(self, seat: _Seat, fd: int) -> None:
        seat.registered.discard(fd)
        if self._by_fd.get(fd) is seat:  # or else it was closed, and its number is another driver's by now
            del self._by_fd[fd]
            with suppress(OSError):  # it was closed
                self._epoll.unregister(fd)

    def _sleep_time(self) -> float:
        deadlines = [seat.deadline for seat in self._seats.values() if seat.deadline is not None]
        return min(max(0.0, min(deadlines) - _sync.monotonic()), LONGEST_SLEEP) if deadlines else -1.0

    def inherited(self) -> bool:
        return self._fork.inherited()


_standby = PerProcess(StandBy)


def default_standby() -> StandBy:
    """The process's stand-by (a new one in a forked child)."""
    return _standby.get()
