"""`Reactor`: waits for the readiness of descriptors, without a thread each (design 2.3; seed 001 section 8).

Guarantees
    A wait ends once: when its descriptor is ready (or hung up, or in error, which ends both directions), when it is
    cancelled, or when the descriptor is closed. Who gives a wait up leaves no interest behind. A number that is used again
    is another descriptor: its first wait ends what still waits for the old one. Readiness needs no worker: the stand-by
    thread ends the waits. With nothing ready there is no CPU use.

Assumes
    `notify_closing` comes before the close of a descriptor somebody waits for: the kernel reports a closed one to nobody.
    Readiness is a hint, as in the kernel: who was woken tries, and waits again on `BlockingIOError`.

How
    The reactor is a driver of the stand-by whose one descriptor is an epoll set of its own: readable while something in it
    is ready. So any thread asks the kernel by itself, one shot at a time, and wakes nobody. The set is read under the lock
    under which it is changed, so no event is older than the wait it ends.

Ownership
    `_waits`, `_closed`, the interest in `_epoll`  under `_lock`
    `_led`                                         written under `_starting`, which is taken before `_lock`
"""

from __future__ import annotations

import select
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.scheduler.completion import Completion
from zlink_nogil.scheduler.per_process import PerProcess
from zlink_nogil.scheduler.readiness import HasFileno, Readiness, closed, descriptor_of, end, ready
from zlink_nogil.scheduler.standby import StandBy, default_standby

__all__ = ["Reactor", "default_reactor", "notify_closing", "wait_readable", "wait_writable"]

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLHUP | select.EPOLLERR


class Reactor:
    """All members are thread-safe. Led by `standby` from its first wait until `close`."""

    def __init__(self, standby: StandBy | None = None) -> None:
        self._standby = standby or default_standby()
        self._lock = _sync.Lock()
        self._starting = _sync.Lock()
        self._led = False
        self._closed = False
        self._waits: dict[int, tuple[Readiness, ...]] = {}  # by descriptor, at least one and at most one per direction
        self._epoll = _sync.Epoll()
        self._fork = _sync.ForkGuard()

    def wait(self, target: int | HasFileno, direction: int) -> Readiness:
        """Begin to wait. Raises as `wait_readable` says."""
        if self._fork.inherited():
            raise InvalidOperation("the reactor was made before a fork and cannot be used in the child")
        wait = Readiness(self, descriptor_of(target), direction)
        if not self._led:
            self._get_led()
        gone: list[Readiness] = []
        try:
            with self._lock:
                self._claim(wait, gone)
        except PermissionError as error:
            raise InvalidOperation(f"descriptor {wait.fd} is a file: always ready, there is nothing to wait for") from error
        finally:
            end(gone, closed)
        return wait

    def give_up(self, wait: Readiness) -> bool:
        """End `wait` as cancelled; False if it is over."""
        if self._fork.inherited():  # the epoll set is the parent's, and its lock may be nobody's
            return False
        with self._lock:
            waits = self._waits.get(wait.fd, ())
            if wait not in waits:
                return False
            gone = self._go_on(wait.fd, tuple(other for other in waits if other is not wait))
        wait.abandon()
        end(gone, closed)
        return True

    def notify_closing(self, target: int | HasFileno) -> None:
        """`target` is about to be closed: its waits end with `Unavailable`."""
        fd = descriptor_of(target)
        if self._fork.inherited():  # nobody waits here, and the epoll set is the parent's
            return
        with self._lock:
            if self._closed:
                return
            gone = self._waits.pop(fd, ())
            self._forget(fd)
        end(gone, closed)

    def close(self) -> None:
        """End every wait with `ShuttingDown`, refuse others, and leave the stand-by. Again: harmless."""
        if self._fork.inherited():
            return
        with self._starting:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                gone = [wait for waits in self._waits.values() for wait in waits]
                self._waits.clear()
            if self._led:
                self._standby.remove(self)
            self._epoll.close()
        end(gone, lambda wait: wait.fail(ShuttingDown("the reactor is closed")))

    def waiting(self) -> int:
        """How many waits there are."""
        with self._lock:
            return sum(map(len, self._waits.values()))

    def inherited(self) -> bool:
        return self._fork.inherited()

    # -- driver -----------------------------------------------------------------------------------------------------

    def descriptors(self) -> Collection[int]:
        return (self._epoll.fileno(),)

    def rotate(self, _: Collection[int] | None = None, /) -> None:
        """End the waits whose descriptors are ready."""
        over: list[Readiness] = []
        gone: list[Readiness] = []
        with self._lock:
            for fd, events in () if self._closed else self._epoll.poll(0):
                waits = self._waits.get(fd, ())
                over += [wait for wait in waits if events & (wait.direction | BROKEN)]
                gone += self._go_on(fd, tuple(wait for wait in waits if not events & (wait.direction | BROKEN)), keep=True)
        end(over, ready)
        end(gone, closed)

    def wake(self) -> None:
        """Nobody has to: the kernel does."""

    # -- the interest -----------------------------------------------------------------------------------------------

    def _get_led(self) -> None:
        with self._starting:
            if not self._led and not self._closed:
                self._standby.add(self)
                self._led = True

    def _claim(self, wait: Readiness, gone: list[Readiness]) -> None:
        """Under the lock: ask the kernel, and find out who `fd` is. What waited for a former one comes into `gone`."""
        if self._closed:
            raise ShuttingDown("the reactor is closed")
        fd = wait.fd
        others = self._waits.get(fd, ())
        try:
            self._epoll.modify(fd, _mask((*others, wait)))
        except OSError as error:  # not in the set: it is new, or others wait for one that was closed
            gone += self._waits.pop(fd, ())
            if not isinstance(error, FileNotFoundError):
                raise
            others = ()
            self._epoll.register(fd, _mask((wait,)))
        if any(other.direction == wait.direction for other in others):
            raise InvalidOperation(f"somebody waits for this direction of descriptor {fd} already")
        self._waits[fd] = (*others, wait)

    def _go_on(self, fd: int, left: tuple[Readiness, ...], keep: bool = False) -> tuple[Readiness, ...]:
        """Under the lock: wait for `left` from now on. Returns those of a descriptor that was closed.

        `keep` what was reported and is asleep: the next wait is cheaper. The kernel forgets it with the descriptor.
        """
        self._waits.pop(fd, None)
        if left:
            try:
                self._epoll.modify(fd, _mask(left))
            except OSError:
                return left
            self._waits[fd] = left
        elif not keep:
            self._forget(fd)
        return ()

    def _forget(self, fd: int) -> None:
        with suppress(OSError):  # it is not in the set, or was closed
            self._epoll.unregister(fd)


def _mask(waits: Iterable[Readiness]) -> int:
    mask = select.EPOLLONESHOT | BROKEN
    for wait in waits:
        mask |= wait.direction
    return mask


# -- the process's reactor ------------------------------------------------------------------------------------------

_reactor = PerProcess(Reactor)


def default_reactor() -> Reactor:
    """The process's reactor (a new one in a forked child)."""
    return _reactor.get()


def wait_readable(target: int | HasFileno) -> Completion[None]:
    """Wait until a read from `target`, a descriptor or something with `fileno()`, would not block. Thread-safe.

    The wait begins with the call and is a `Completion`: `await` it in a task or a handler, or `result(timeout)` elsewhere
    and `cancel` what is given up. Also over at the end of the stream and on an error of the descriptor, which the read
    tells. The descriptor should be non-blocking: try first, wait on `BlockingIOError`, and try again.

    Raises `InvalidOperation` when somebody waits for it already, or for a file (always ready); `ValueError` or `OSError`
    for what is no open descriptor, `TypeError` for what is none at all. Ends with `Unavailable` on `notify_closing`.
    """
    return default_reactor().wait(target, READABLE)


def wait_writable(target: int | HasFileno) -> Completion[None]:
    """As `wait_readable`: wait until a write to `target` would not block. One may wait for each direction."""
    return default_reactor().wait(target, WRITABLE)


def notify_closing(target: int | HasFileno) -> None:
    """Call it before `target` is closed while somebody may wait for it: the waits end with `Unavailable`. Thread-safe.

    Raises `ValueError` when it is closed already.
    """
    default_reactor().notify_closing(target)
