"""`StateLane`: a monitor without a thread of its own (seed 000 section 2 and 7, design 3.1, decision 1).

Guarantees
    One turn at a time. A caller's turns run in its order; posted work runs in posting order, on the thread that leaves
    the lane (or on the poster's, when the lane is free). A free lane is taken by whoever arrives (barging), but a caller
    that has waited for `PARK_BOUND` joins the line and gets the lane handed to it before anybody else passes.
    Accepted posted work runs exactly once, also across `close()`. Re-entry raises at the call site, in every build.

Assumes
    Work on a lane is short and does not block on anything but other lanes, outside a cycle.

Ownership
    the lock   (`_acquire`, `_release`) held for the whole turn; handed over, still locked, to the head of the line
    `_line`    posted work and tickets of parked callers, one FIFO: appended under `_door`, popped by the lane's holder
    `_closed`  written under `_door`; a turn that finds it false, holding the lock, is one that `close` waits for
    `_outer`   the lane the holder was on before; valid while the lane is held, for its holder
    `_on.lane` per thread: the innermost lane this thread holds
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.state import _waits

__all__ = ["StateLane"]

PARK_BOUND: Final = 0.001
"""Seconds a caller competes for the lock before it joins the line (decision 1)."""

_log = logging.getLogger("zlink_nogil.state")


class _OnLane(_sync.local):
    lane: StateLane | None = None


_on = _OnLane()


class _Current:
    """`StateLane.current`, read through the class: the lane this thread is on, or None."""

    def __get__(self, instance: object, owner: type) -> StateLane | None:
        return _on.lane


class StateLane:
    """Runs short pieces of work one at a time on the callers' own threads.

    `name` appears in errors; `on_error(exc)` receives what posted work raises (default: logged). `rank` is the lane's place
    in a lock order: debug builds refuse to enter it from a lane of the same or a higher rank (decision 8).
    All members are thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "_acquire",
        "_closed",
        "_door",
        "_fork",
        "_line",
        "_on_error",
        "_outer",
        "_rank",
        "_release",
        "name",
    )

    current = _Current()

    def __init__(
        self, name: str, on_error: Callable[[BaseException], None] | None = None, *, rank: int | None = None
    ) -> None:
        self.name = name
        self._rank = rank
        self._on_error = on_error or self._log_error
        lock = _sync.Lock()
        self._acquire = lock.acquire
        self._release = lock.release
        self._door = _sync.Lock()
        self._line: deque[Callable[[], Any] | _Ticket] = deque()
        self._closed = False
        self._fork = _sync.ForkGuard()
        self._outer: StateLane | None = None

    def __repr__(self) -> str:
        return f"<StateLane {self.name!r}>"

    @property
    def is_on_lane(self) -> bool:
        """Is the calling thread inside a turn of this lane?"""
        lane = _on.lane
        while lane is not None:
            if lane is self:
                return True
            lane = lane._outer
        return False

    def throw_if_reentrant(self) -> None:
        """Raise `InvalidOperation` naming the lane if the calling thread is on it. Never compiled out."""
        if self.is_on_lane:
            raise InvalidOperation(f"re-entered state lane {self.name!r} from its own turn")

    def run[T](self, work: Callable[..., T], /, *args: Any) -> T:
        """Run `work(*args)` in one turn and return its result or raise its exception.

        Raises `ShuttingDown` on a closed lane and `InvalidOperation` on re-entry (and, in debug builds, on a cycle of
        waiting lanes); the work does not run then.
        """
        on = _on
        outer = on.lane
        if outer is not None:
            self.throw_if_reentrant()
            if __debug__:
                self._check_order(outer)
        if not self._acquire(False):
            self._wait_for_turn(outer, self._compete_then_park)
        if self._closed:
            self._leave()
            raise self._closed_error()
        self._outer = outer
        on.lane = self
        try:
            return work(*args)
        finally:
            on.lane = outer
            line = self._line
            if line:
                self._serve_line()
            else:
                self._release()
                if line:  # somebody joined it between the look and the release
                    self._serve_line_if_free()

    def _check_order(self, outer: StateLane) -> None:
        if self._rank is not None and outer._rank is not None and outer._rank >= self._rank:
            raise InvalidOperation(f"lane {self.name!r} is entered from {outer.name!r}: against the lock order")

    def try_post(self, work: Callable[[], Any]) -> bool:
        """Queue `work` without waiting; False if the lane is closed. What it raises goes to `on_error`."""
        self._check_fork()
        with self._door:
            if self._closed:
                return False
            self._line.append(work)
        self._serve_line_if_free()
        return True

    def close(self) -> None:
        """Accept nothing new, finish what was accepted, and wake every waiter exactly once. A second close is harmless.

        Returns after the accepted posted work has run; from inside a turn of this lane it runs when that turn ends.
        """
        if self.is_on_lane:
            with self._door:
                self._closed = True
            return
        self._wait_for_turn(_on.lane, self._close_then_park)
        self._leave()

    def _close_then_park(self) -> None:
        """Behind everything accepted, whoever else closes: what was posted has run when the ticket is granted."""
        ticket = _Ticket()
        with self._door:
            self._closed = True
            self._line.append(ticket)
        self._park(ticket)

    def _check_fork(self) -> None:
        """Not on the way of a turn that finds the lane free."""
        if self._fork.inherited():
            raise InvalidOperation(f"state lane {self.name!r} was made before a fork and cannot be used in the child")

    def _closed_error(self) -> ShuttingDown:
        return ShuttingDown(f"state lane {self.name!r} is closed")

    # -- taking and handing over the lock ---------------------------------------------------------------------------

    def _wait_for_turn(self, outer: StateLane | None, wait: Callable[[], None]) -> None:
        """`wait` returns holding the lock; on an exception it is not held."""
        self._check_fork()
        if __debug__ and outer is not None:
            with _waits.waiting(outer, self):
                wait()
        else:
            wait()

    def _compete_then_park(self) -> None:
        if self._acquire(timeout=PARK_BOUND):
            return
        ticket = _Ticket()
        with self._door:
            if self._closed:
                raise self._closed_error()
            self._line.append(ticket)
        self._park(ticket)

    def _park(self, ticket: _Ticket) -> None:
        try:
            self._serve_line_if_free()  # the holder may have left before it could see the ticket
            ticket.wait()
        except BaseException:  # an interrupt: the place in the line must not swallow a hand-over
            if not self._forget(ticket):
                self._leave()
            raise

    def _forget(self, ticket: _Ticket) -> bool:
        """Take the ticket out of the line; False if the lane was handed to it already."""
        try:
            self._line.remove(ticket)
        except ValueError:
            return False
        return True

    def _leave(self) -> None:
        """Give the lane up, held without a turn of its own."""
        if self._line:
            self._serve_line()
        else:
            self._release()
            if self._line:
                self._serve_line_if_free()

    def _serve_line_if_free(self) -> None:
        if self._line and self._acquire(False):
            self._serve_line()

    def _serve_line(self) -> None:
        """Entered holding the lock: run posted work up to the first parked caller and hand the lock to it.

        Leaves without the lock. The look after the release pairs with the append before `_serve_line_if_free`: one of
        the two sees the other.
        """
        line = self._line
        while True:
            while line:
                entry = line.popleft()
                if isinstance(entry, _Ticket):
                    entry.grant()
                    return
                self._run_posted(entry)
            self._release()
            if not line or not self._acquire(False):
                return

    def _run_posted(self, work: Callable[[], Any]) -> None:
        outer = _on.lane
        self._outer = outer
        _on.lane = self
        try:
            work()
        except BaseException as error:  # the thread that serves the line is not the one that posted
            self._report(error)
        finally:
            _on.lane = outer

    def _report(self, error: BaseException) -> None:
        try:
            self._on_error(error)
        except BaseException:  # the lock is held: nothing may keep the line from being served
            _log.exception("the error hook of lane %r failed on %r", self.name, error)

    def _log_error(self, error: BaseException) -> None:
        _log.error("work posted to lane %r failed", self.name, exc_info=error)


class _Ticket:
    """A parked caller's place in the line. Granting it hands over the lane's lock, still locked."""

    __slots__ = ("_granted",)

    def __init__(self) -> None:
        self._granted = _sync.Lock()
        self._granted.acquire()

    def grant(self) -> None:
        self._granted.release()

    def wait(self) -> None:
        self._granted.acquire()
