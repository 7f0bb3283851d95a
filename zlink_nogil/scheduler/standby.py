"""`StandBy`: the thread that leads every role nobody else leads (decision 7). One epoll set, no fixed-interval polling.

Guarantees
    A driver that was added is rotated whenever one of its descriptors is readable or its deadline has come, by this thread
    unless somebody has taken its role (`role.py`). After `remove` has returned nobody touches the driver or its
    descriptors any more. With nothing to do the thread sleeps in one system call; with no driver left it ends. It survives
    a driver that raises; a driver whose descriptors cannot be watched is refused by `add`. A stand-by inherited through
    `os.fork` refuses drivers.

Ownership
    everything under `_lock`; `_by_fd` may be read without it, and `_until` is set to `_AWAKE` without it
"""

from __future__ import annotations

import logging
import math
import select
from collections import deque
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler.driver import Driver
from zlink_nogil.scheduler.per_process import PerProcess
from zlink_nogil.scheduler.role import ENDING, FREE, LED, LONGEST_SLEEP, OVER, Role

__all__ = ["StandBy", "default_standby"]

_AWAKE: Final = -math.inf

_log = logging.getLogger("zlink_nogil.scheduler")


class _Change:
    """What the thread is asked for; `done` is set when it has been, or has been refused with `error`."""

    __slots__ = ("add", "awaited", "done", "driver", "error", "role")

    def __init__(self, driver: Driver, add: bool, *, awaited: bool = True) -> None:
        self.driver = driver
        self.add = add
        self.awaited = awaited
        self.done = _sync.Event()
        self.error: BaseException | None = None
        self.role: Role | None = None


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
        self._roles: dict[int, Role] = {}
        self._by_fd: dict[int, Role] = {}
        self._until = _AWAKE
        self._fork = _sync.ForkGuard()

    def add(self, driver: Driver) -> Role:
        """Lead `driver` from now on; returns its role when its descriptors are being watched. Harmless a second time.

        Raises what `driver.descriptors` raises, or `OSError` when one of them cannot be watched.
        """
        role = self._change(_Change(driver, add=True)).role
        assert role is not None, "it was added, or refused"
        return role

    def remove(self, driver: Driver) -> None:
        """Stop leading `driver`; returns when everybody has let go of it (and the thread has ended, if it was the last)."""
        self._change(_Change(driver, add=False))

    def add_soon(self, driver: Driver) -> None:
        """As `add`, from any place: waits for nothing and nobody, so on a lane, under a lock or in the thread itself.

        A driver that cannot be watched is logged.
        """
        self._ask(_Change(driver, add=True, awaited=False))

    def _change(self, change: _Change) -> _Change:
        thread = self._ask(change)
        change.done.wait()
        with self._lock:
            ended = self._thread is not thread
        if ended:
            thread.join()
        if change.error is not None:
            raise change.error
        return change

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

    # -- roles, for those who lead ----------------------------------------------------------------------------------

    def take(self, role: Role, heir: _sync.Parker) -> bool:
        """See `Role.take`."""
        with self._lock:
            if role.state != FREE:
                if role.by_standby:
                    role.heir = heir
                return False
            role.state = LED
            self._epoll.modify(role.epoll.fileno(), 0)
        return True

    def leave(self, role: Role) -> None:
        """See `Role.leave`."""
        with self._lock:
            wake = self._let_go(role)
            if role.state == FREE:
                self._epoll.modify(role.epoll.fileno(), select.EPOLLIN)
        if wake:
            self._wake.set()

    def _let_go(self, role: Role) -> bool:
        """Under the lock, by who leads; True when the thread sleeps past the role's deadline."""
        if role.state == ENDING:
            self._end(role)
            return False
        role.state = FREE
        return role.deadline is not None and role.deadline < self._until

    def _end(self, role: Role) -> None:
        """Under the lock, when nobody leads it."""
        role.state = OVER
        del self._by_fd[role.epoll.fileno()]
        self._epoll.unregister(role.epoll.fileno())
        role.close()
        if role.on_over is not None:
            role.on_over()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due: dict[Role, None] = {}  # in order
        while self._apply_changes():
            for role in due:
                self._lead(role)
            ready = self._epoll.poll(self._sleep_time())
            self._until = _AWAKE
            now = _sync.monotonic()
            due = {role: None for role in self._roles.values() if role.deadline is not None and role.deadline <= now}
            for fd, _ in ready:
                if fd == self._wake.fileno():
                    self._wake.clear()
                elif (readable := self._by_fd.get(fd)) is not None:
                    due[readable] = None

    def _apply_changes(self) -> bool:
        """False when no driver is left: the decision to end and the next `add` exclude each other."""
        done: list[_Change] = []
        with self._lock:
            changes, self._changes = self._changes, deque()
            for change in changes:
                if change.add:
                    self._add(change)
                elif (gone := self._roles.pop(id(change.driver), None)) is not None:
                    if gone.state != FREE:  # by somebody else
                        gone.state, gone.on_over = ENDING, change.done.set
                        gone.ring()
                        continue
                    self._end(gone)
                done.append(change)
            if not self._roles:
                self._thread = None
            left = bool(self._roles)
        for change in done:
            change.done.set()
        return left

    def _add(self, change: _Change) -> None:
        change.role = self._roles.get(id(change.driver))
        if change.role is not None:
            return
        try:
            role = Role(change.driver, self)
        except BaseException as error:  # the only thread that waits must survive any driver
            change.error = error
            if not change.awaited:
                _log.critical("a driver cannot be watched: %r", change.driver, exc_info=True)
            return
        self._epoll.register(role.epoll.fileno(), select.EPOLLIN)
        change.role = self._roles[id(change.driver)] = self._by_fd[role.epoll.fileno()] = role

    def _lead(self, role: Role) -> None:
        with self._lock:
            if role.state != FREE:
                return
            role.state, role.by_standby = LED, True
        role.rotate()
        with self._lock:
            role.by_standby = False
            self._let_go(role)
            heir, role.heir = role.heir, None
        if heir is not None:
            heir.unpark()

    def _sleep_time(self) -> float:
        """Seconds to the next deadline of a free role; who makes one free that is due earlier sees until when we sleep."""
        with self._lock:
            deadlines = [role.deadline for role in self._roles.values() if role.state == FREE and role.deadline is not None]
            self._until = min(deadlines, default=math.inf)
        return min(max(0.0, self._until - _sync.monotonic()), LONGEST_SLEEP) if deadlines else -1.0

    def inherited(self) -> bool:
        return self._fork.inherited()


_standby = PerProcess(StandBy)


def default_standby() -> StandBy:
    """The process's stand-by (a new one in a forked child)."""
    return _standby.get()
