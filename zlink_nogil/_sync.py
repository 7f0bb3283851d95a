"""The seam: every lock, condition, event, thread, clock and wait the runtime uses comes from here.

Guarantees
    In production these names *are* the real classes, so the seam costs nothing. A test replaces them
    (``_sync.Lock = Scripted``) before it builds the objects under test and then decides who runs next at every
    blocking point (design, decision 20).

Assumes
    Modules import this module, not its names (``_sync.Lock()`` at construction), and bind the clock at
    construction (``self._now = _sync.monotonic``) where a loop needs it.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Condition, Event, Lock, Thread, current_thread, get_ident, local, main_thread
from time import monotonic

__all__ = [
    "Condition",
    "Epoll",
    "Event",
    "EventFd",
    "ForkGuard",
    "Lock",
    "Parker",
    "Thread",
    "current_thread",
    "get_ident",
    "local",
    "look_up",
    "main_thread",
    "monotonic",
    "read_by_many",
]

Epoll = select.epoll


class Parker:
    """Parking place of one thread: any thread may unpark it, and an unpark that comes first is kept.

    Holds at most one permit; each holder keeps its own parker, so no other wait can eat the permit.

    A queue, not a lock: a lock of 3.13t gives the CPU away up to forty times before it sleeps. With a core for each thread
    that is a little faster; where threads share one, or the machine is busy, it takes twice as long.
    """

    __slots__ = ("_permits", "bell")

    bell: Callable[[], None] | None
    """Set by the thread it belongs to while that sleeps in an epoll set instead: `unpark` calls it when the permit is there.
    Whoever sets it and then finds no permit is rung for the next one."""

    def __init__(self) -> None:
        self._permits: SimpleQueue[None] = SimpleQueue()
        self.bell = None

    def park(self, timeout: float | None = None) -> bool:
        """Wait for a permit and take it; False when `timeout` seconds passed without one."""
        permits = self._permits
        try:
            permits.get(timeout=None if timeout is None else max(0.0, min(timeout, TIMEOUT_MAX)))
            while not permits.empty():  # given at the same moment by two threads
                permits.get()  # nobody else takes
        except Empty:
            return False
        return True

    def take(self) -> bool:
        """Take the permit if it is there."""
        permits = self._permits
        if permits.empty():
            return False
        permits.get()  # nobody else takes
        return True

    def unpark(self) -> None:
        """Give the permit; a second one before the park merges with the first. Takes no lock that a caller could hold."""
        permits = self._permits
        if permits.empty():
            permits.put(None)
        bell = self.bell
        if bell is not None:
            bell()


class EventFd:
    """A descriptor any thread can make readable: wakes a thread that waits in epoll. Thread-safe until `close`."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return  # nobody had set it

    def close(self) -> None:
        os.close(self._fd)


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class ForkGuard:
    """Tells whether the object that holds it was inherited through `os.fork` (decision 16). Written only in the child."""

    __slots__ = ("_born",)

    def __init__(self) -> None:
        self._born = _forks

    def inherited(self) -> bool:
        """Is this process a fork of the one that made the object: its threads are gone, its locks undefined?"""
        return self._born != _forks


def look_up[K, V](table: Mapping[K, V], key: K) -> V | None:
    """`table.get(key)`, at a tenth of a microsecond.

    `dict.get` of 3.13t takes the dict's lock, and where the key is equal but not the same object, or another thread has made
    what is found, takes it once more inside: it waits for itself, and only goes on when it has given the CPU away forty
    times and been parked - 16 us, with nobody else near. `table[key]` and `key in table` do not. A miss costs an exception.
    """
    try:
        return table[key]
    except KeyError:
        return None


def read_by_many[T](value: T) -> T:
    """Returns `value`, which will be looked up in a dict by many threads at once; it must take weak references.

    A lookup counts references on the value, and on a key that is equal but not the same. It does so without the dict's lock
    only if other threads hold one at the moment, or the object has ever been weakly referenced, or never dies, as interned
    strings (3.13t). Else all threads stand in line for that lock.
    """
    weakref.ref(value)
    return value
