"""`Role`: a driver, the epoll set of its descriptors, and who leads it (decision 7).

    state     take   leave  end
    FREE      LED    -      OVER     the stand-by watches its set, and leads it when there is something to do
    LED       no     FREE   ENDING   a thread rotates the driver, or sleeps in its set
    ENDING    no     OVER   no       that thread has been asked to leave
    OVER      no     -      no

Guarantees
    One thread leads at a time. What comes while a role is free wakes the stand-by, and while somebody leads, nobody else.
    The last one who wanted to lead while the stand-by did is told when it has finished, else the two could miss each other
    for ever.
    When it is over nobody touches the driver or its descriptors any more.

Assumes
    A driver leaves every descriptor re-armed (`Driver.rotate`), so that a role can change hands at any time.

Ownership
    `state`, `by_standby`, `heir`, `on_over`   under the stand-by's lock; `state` may be read without it
    `_registered`, `_watched`, `_ready`, `deadline`  who leads; the stand-by reads the deadline of a free one
"""

from __future__ import annotations

import logging
import math
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.driver import Driver

__all__ = ["ENDING", "FREE", "LED", "LONGEST_SLEEP", "OVER", "Role"]

FREE: Final = 0
LED: Final = 1
ENDING: Final = 2
OVER: Final = 3

LONGEST_SLEEP: Final = 3600.0
"""Seconds; a later deadline does not fit into epoll's milliseconds at some point."""

_log = logging.getLogger("zlink_nogil.scheduler")


class _End(Protocol):
    def done(self) -> bool: ...


class _Roles(Protocol):
    """What a role asks of the stand-by; thread-safe."""

    def take(self, role: Role, heir: _sync.Parker) -> bool: ...
    def leave(self, role: Role) -> None: ...


class Role:
    """`take`, `wait_for` and `state` for any thread; the rest for the one that leads."""

    __slots__ = (
        "_bell",
        "_now",
        "_ready",
        "_registered",
        "_roles",
        "_rung",
        "_watched",
        "by_standby",
        "deadline",
        "driver",
        "epoll",
        "heir",
        "on_over",
        "state",
    )

    def __init__(self, driver: Driver, roles: _Roles) -> None:
        """Raises what `driver.descriptors` raises, or `OSError` when one of them cannot be watched."""
        self.driver = driver
        self.state = FREE
        self.by_standby = False
        self.heir: _sync.Parker | None = None
        self.deadline: float | None = -math.inf  # whoever leads it first rotates at once
        self.on_over: Callable[[], None] | None = None
        self._roles = roles
        self._now = _sync.monotonic
        self._registered: set[int] = set()
        self._watched: tuple[int, ...] = ()
        self._rung = False
        self._ready: list[int] | None = None
        self.epoll = _sync.Epoll()
        self._bell = _sync.EventFd()
        try:
            self.epoll.register(self._bell.fileno(), select.EPOLLIN)
            self._watch()
        except BaseException:
            self.close()
            raise

    def take(self, heir: _sync.Parker) -> bool:
        """Lead from now on, until `leave`. If the stand-by leads at the moment, `heir` is unparked when it has left."""
        return self.state < ENDING and interrupts.may_lead() and self._roles.take(self, heir)

    def leave(self) -> None:
        """To whoever takes it next, and to the stand-by until then."""
        self._roles.leave(self)

    def wait_for(self, end: _End, parker: _sync.Parker, timeout: float | None) -> None:
        """Until `end` is done, for which `parker` is unparked, or `timeout` seconds are over; leads meanwhile if it can."""
        until = math.inf if timeout is None else self._now() + timeout
        while not end.done() and (left := until - self._now()) > 0:
            if self.take(parker):
                try:
                    self._lead_until(end, parker, until)
                finally:
                    self.leave()
            else:
                interrupts.park(parker, None if timeout is None else left)

    def _lead_until(self, end: _End, parker: _sync.Parker, until: float) -> None:
        while not end.done() and self.state == LED:
            if (left := until - self._now()) <= 0:
                return
            if self.wait(parker, left):
                self.rotate()

    def wait(self, parker: _sync.Parker, timeout: float | None) -> bool:
        """True when the driver is to be rotated; False when `parker` was unparked (which is used up), or after `timeout`.

        A safe point (see `interrupts`), and may return False before the time.
        """
        left = LONGEST_SLEEP if timeout is None else min(timeout, LONGEST_SLEEP)
        if self.deadline is not None:
            left = min(left, self.deadline - self._now())
            if left <= 0:
                return True
        parker.bell = self.ring
        try:
            if parker.take():
                return False
            ready = interrupts.poll(self.epoll, -1.0 if left == LONGEST_SLEEP else left)
        finally:
            parker.bell = None
        parker.take()
        bell, due = self._bell.fileno(), list[int]()
        for fd, _ in ready:
            if fd == bell:
                self._rung = False
                self._bell.clear()
            else:
                due.append(fd)
        if not due and (self.deadline is None or self.deadline > self._now()):
            return False
        self._ready = due
        return True

    def ring(self) -> None:
        """Who sleeps in the set gets up. Any thread."""
        self._bell.set()
        self._rung = True  # last: a bell that rings is known to do so, or is about to be

    def rotate(self) -> None:
        ready, self._ready = self._ready, None
        if ready is None:
            bell = self._bell.fileno()
            ready = [fd for fd, _ in self.epoll.poll(0) if fd != bell]
        if self._rung:
            self._rung = False
            self._bell.clear()
        try:
            self.deadline = self.driver.rotate(ready)
            self._watch()
        except BaseException:  # whoever leads must survive any driver
            _log.critical("a driver raised: %r", self.driver, exc_info=True)
            self.deadline = self._now() + 1.0

    def _watch(self) -> None:
        watched = tuple(self.driver.descriptors())
        if watched == self._watched:
            return
        wanted = set(watched)
        for fd in self._registered - wanted:
            self._registered.discard(fd)
            with suppress(OSError):  # it was closed
                self.epoll.unregister(fd)
        for fd in wanted - self._registered:
            self.epoll.register(fd, select.EPOLLIN)
            self._registered.add(fd)
        self._watched = watched  # last: what could not be watched is tried again

    def close(self) -> None:
        """When it is over."""
        self.epoll.close()
        self._bell.close()
