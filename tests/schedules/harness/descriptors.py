"""Stand-ins for `Epoll` and `EventFd`, and scripted descriptors to poll.

Guarantees
    Readiness is level-triggered unless EPOLLET is asked for: then each `Descriptor.raise_` (one message in a socket,
    one write to an eventfd) is one edge, and an edge is reported once. A descriptor that is closed leaves every epoll
    set. Closing an epoll set does not wake who polls it, as with the real one.

Ownership: all fields belong to the holder of the baton.
"""

from __future__ import annotations

import errno
import os
import select
from typing import Self

from .locks import the_world
from .strand import Strand

__all__ = ["Descriptor", "Epoll", "EventFd"]

_FIRST = 1000
"""Far from the process's real descriptors, so that one taken for the other is an error at once."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Descriptor:
    """Something to poll. `state` holds the EPOLL* bits that are true now. `number` is that of one that was closed."""

    def __init__(self, kind: str = "Descriptor", number: int | None = None) -> None:
        self.world = world = the_world()
        self.label = world.label(kind)
        self.holder: Strand | None = None
        self.state = 0
        self.edges = 0
        self.closed = False
        self._fd = _FIRST + len(world.descriptors) if number is None else number
        world.descriptors[self._fd] = self

    def fileno(self) -> int:
        return self._fd

    def bits(self) -> int:
        return self.state

    def raise_(self, bits: int = select.EPOLLIN) -> None:
        """Something arrived: true until `lower`, and one edge."""
        self.state |= bits
        self.edges += 1

    def lower(self, bits: int = select.EPOLLIN) -> None:
        self.state &= ~bits

    def close(self) -> None:
        self.world.offer("close", self)
        self.closed = True


class EventFd(Descriptor):
    def __init__(self) -> None:
        super().__init__("EventFd")

    def set(self) -> None:
        self.world.offer("set", self)
        if self.closed:
            raise _error(errno.EBADF)
        self.raise_()
        self.world.offer("has set", self)

    def clear(self) -> None:
        self.world.offer("clear", self)
        if self.closed:
            raise _error(errno.EBADF)
        self.lower()


class _Interest:
    __slots__ = ("descriptor", "mask", "seen")

    def __init__(self, descriptor: Descriptor, mask: int) -> None:
        self.descriptor = descriptor
        self.mask = mask
        self.seen = -1

    def events(self) -> int:
        descriptor = self.descriptor
        if descriptor.closed or (self.mask & select.EPOLLET and self.seen == descriptor.edges):
            return 0
        return descriptor.bits() & self.mask

    def report(self) -> int:
        events = self.events()
        self.seen = self.descriptor.edges
        if self.mask & select.EPOLLONESHOT:
            self.mask = 0
        return events


class Epoll(Descriptor):
    """Itself something to poll: readable while something in it is ready."""

    def __init__(self, sizehint: int = -1, flags: int = 0) -> None:  # noqa: ARG002 - the real signature
        super().__init__("Epoll")
        self._interests: dict[int, _Interest] = {}

    def bits(self) -> int:
        return select.EPOLLIN if not self.closed and self._is_ready() else 0

    def register(self, fd: int, eventmask: int = select.EPOLLIN | select.EPOLLPRI | select.EPOLLOUT) -> None:
        descriptor = self._look_up("register", fd)
        if fd in self._interests:
            raise _error(errno.EEXIST)
        if isinstance(descriptor, Epoll) and eventmask & select.EPOLLET:
            raise NotImplementedError("the edges of an epoll set are not counted")
        self._interests[fd] = _Interest(descriptor, eventmask)

    def modify(self, fd: int, eventmask: int) -> None:
        descriptor = self._look_up("modify", fd)
        if fd not in self._interests:
            raise _error(errno.ENOENT)
        self._interests[fd] = _Interest(descriptor, eventmask)

    def unregister(self, fd: int) -> None:
        self._look_up("unregister", fd)
        if self._interests.pop(fd, None) is None:
            raise _error(errno.ENOENT)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")
        self.world.wait("poll", self, self._is_ready, None if timeout is None or timeout < 0 else timeout)
        ready = [(fd, interest) for fd, interest in self._interests.items() if interest.events()]
        return [(fd, interest.report()) for fd, interest in ready[: maxevents if maxevents > 0 else None]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_ready(self) -> bool:
        return any(interest.events() for interest in self._interests.values())

    def _look_up(self, op: str, fd: int) -> Descriptor:
        self.world.offer(op, self)
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")
        descriptor: Descriptor | None = self.world.descriptors.get(fd)
        if descriptor is None or descriptor.closed:
            raise _error(errno.EBADF)
        if fd in self._interests and self._interests[fd].descriptor is not descriptor:
            del self._interests[fd]  # it left when it was closed
        return descriptor
