"""`Readiness`: one wait for one direction of one descriptor (design 2.3). The reactor makes it and ends it.

Ownership: `fd` and `direction` are set at birth; the rest is `Completion`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from zlink_nogil.errors import Unavailable
from zlink_nogil.scheduler.completion import Completion
from zlink_nogil.scheduler.spawning import current_pool

if TYPE_CHECKING:
    from zlink_nogil.scheduler.reactor import Reactor

__all__ = ["HasFileno", "Readiness", "closed", "descriptor_of", "end", "ready"]

LARGEST: Final = 2**31 - 1

_log = logging.getLogger("zlink_nogil.scheduler")


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Readiness(Completion[None]):
    """One wait for one direction of one descriptor. Giving up its `await` cancels it."""

    __slots__ = ("_reactor", "direction", "fd")

    def __init__(self, reactor: Reactor, fd: int, direction: int) -> None:
        super().__init__(current_pool(), canceller=self._cancel)
        self._reactor = reactor
        self.fd = fd
        self.direction = direction

    def __await__(self) -> Generator[Completion[Any]]:
        try:
            yield from super().__await__()
        finally:
            if not self.done():
                self._cancel()

    def _cancel(self) -> bool:
        return self._reactor.give_up(self)


def descriptor_of(target: int | HasFileno) -> int:
    """Its number. `TypeError` or `ValueError` for what has none."""
    fd = target if isinstance(target, int) and not isinstance(target, bool) else getattr(target, "fileno", bool)()
    if not isinstance(fd, int) or isinstance(fd, bool):
        raise TypeError(f"a descriptor, or something with fileno(), is needed, not {target!r}")
    if not 0 <= fd <= LARGEST:
        raise ValueError(f"not an open descriptor: {fd}")
    return fd


def end(waits: Iterable[Readiness], how: Callable[[Readiness], object]) -> None:
    """End them as `how` says. Without the reactor's lock: it wakes who waits."""
    for wait in waits:
        try:
            how(wait)
        except BaseException:  # the others must be woken
            _log.critical("a waker raised: %r", wait, exc_info=True)


def ready(wait: Readiness) -> None:
    wait.succeed(None)


def closed(wait: Readiness) -> None:
    wait.fail(Unavailable(f"descriptor {wait.fd} was closed"))
