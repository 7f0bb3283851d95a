"""Stand-ins for `Lock`, `Condition`, `Event` and `Parker`, with the semantics of the real ones.

Guarantees
    Whoever of a lock's waiters gets it is the strategy's choice. A lock may be released by any thread. A condition
    wakes in the order of waiting and never spuriously; as with the real one, a waiter whose time has run out stays in
    the line until it has the lock again, and can eat a notification there.

Ownership: all fields belong to the holder of the baton.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zlink_nogil import _sync

from .strand import Strand
from .world import World

__all__ = ["Condition", "Event", "Lock", "Parker", "RLock"]


def the_world() -> World:
    world = World.running
    assert world is not None, "no scenario is running"
    return world


class _Guard:
    """What is common to the locks: who may take it, and the operations as seen from outside."""

    def __init__(self, kind: str) -> None:
        self.world = the_world()
        self.label = self.world.label(kind)
        self.holder: Strand | None = None
        """Who took it last, while it is taken."""
        self.taken = False

    def is_free(self) -> bool:
        return not self.taken

    def take(self) -> None:
        self.taken = True
        self.holder = self.world.current

    def free(self) -> None:
        self.taken = False
        self.holder = None

    def locked(self) -> bool:
        self.world.offer("look at", self)
        return self.taken

    def __repr__(self) -> str:
        return f"<scripted {self.label} {'held' if self.taken else 'free'}>"


class Lock(_Guard):
    """Not re-entrant."""

    def __init__(self, kind: str = "Lock") -> None:
        super().__init__(kind)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            if timeout != -1:
                raise ValueError("can't specify a timeout for a non-blocking call")
            self.world.offer("try", self)
            got = not self.taken
        elif timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        else:
            got = self.world.wait("acquire", self, self.is_free, None if timeout < 0 else timeout)
        if got:
            self.take()
        return got

    def release(self) -> None:
        self.world.offer("release", self)
        if not self.taken:
            if self.world.closing:
                return  # an interrupted wait: its `with` block is being left without the lock
            raise RuntimeError("release unlocked lock")
        self.free()
        self.world.offer("released", self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What a condition needs of its lock; the wait is the operation, so these offer nothing.

    def is_owned(self) -> bool:
        return self.taken

    def let_go(self) -> int:
        self.free()
        return 1

    def take_again(self, depth: int) -> None:  # noqa: ARG002 - depth is for the re-entrant one
        self.acquire()


class RLock(_Guard):
    """The re-entrant lock a condition makes for itself."""

    def __init__(self) -> None:
        super().__init__("RLock")
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.is_owned():
            self.depth += 1
            return True
        limit = (None if timeout < 0 else timeout) if blocking else 0.0
        if not self.world.wait("acquire", self, self.is_free, limit):
            return False
        self.take()
        self.depth = 1
        return True

    def release(self) -> None:
        if not self.is_owned():
            if self.world.closing:
                return
            raise RuntimeError("cannot release un-acquired lock")
        if self.depth > 1:
            self.depth -= 1
            return
        self.world.offer("release", self)
        self.let_go()
        self.world.offer("released", self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def is_owned(self) -> bool:
        return self.taken and self.holder is self.world.current

    def let_go(self) -> int:
        depth, self.depth = self.depth, 0
        self.free()
        return depth

    def take_again(self, depth: int) -> None:
        self.acquire()
        self.depth = depth


class _Ticket:
    """One waiter's place in a line."""

    __slots__ = ("called",)

    def __init__(self) -> None:
        self.called = False

    def is_called(self) -> bool:
        return self.called


class Condition:
    def __init__(self, lock: Lock | RLock | None = None) -> None:
        self._world = the_world()
        self._lock = lock if lock is not None else RLock()
        self._line: deque[_Ticket] = deque()
        self.label = self._world.label("Condition")
        self.holder: Strand | None = None
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock.is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        ticket = _Ticket()
        self._line.append(ticket)
        depth = self._lock.let_go()
        notified = False
        try:
            notified = self._world.wait("wait on", self, ticket.is_called, timeout)
        finally:
            self._lock.take_again(depth)
            if not notified and ticket in self._line:
                self._line.remove(ticket)
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._world.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock.is_owned() and not self._world.closing:
            raise RuntimeError("cannot notify on un-acquired lock")
        self._world.offer("notify", self)
        for _ in range(min(n, len(self._line))):
            self._line.popleft().called = True

    def notify_all(self) -> None:
        self.notify(len(self._line))


class Event:
    def __init__(self) -> None:
        self._world = the_world()
        self._flag = False
        self._line: list[_Ticket] = []
        self.label = self._world.label("Event")
        self.holder: Strand | None = None

    def is_set(self) -> bool:
        self._world.offer("look at", self)
        return self._flag

    def set(self) -> None:
        self._world.offer("set", self)
        self._flag = True
        for ticket in self._line:
            ticket.called = True
        self._line.clear()
        self._world.offer("has set", self)

    def clear(self) -> None:
        self._world.offer("clear", self)
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        self._world.offer("wait for", self)
        if self._flag:
            return True
        ticket = _Ticket()  # a clear right after the set does not take the wake-up back
        self._line.append(ticket)
        if self._world.wait("wait for", self, ticket.is_called, timeout):
            return True
        if ticket in self._line:
            self._line.remove(ticket)
        return ticket.called


class _Permit(Lock):
    """A parker's permit: taken means "no permit", and whoever took it last has nothing to give back."""

    def take(self) -> None:
        self.taken = True


class Parker(_sync.Parker):
    """As the real one, which waits in C, on a scripted permit, with a name of its own in reports."""

    __slots__ = ("_permit",)

    def __init__(self) -> None:
        self._permit = _Permit("Parker")
        self._permit.take()
        self.bell = None

    def park(self, timeout: float | None = None) -> bool:
        return self._permit.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def take(self) -> bool:
        return self._permit.acquire(blocking=False)

    def unpark(self) -> None:
        with suppress(RuntimeError):  # a permit is already there
            self._permit.release()
        if self.bell is not None:
            self.bell()
