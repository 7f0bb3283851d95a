"""`Suspension`: what a coroutine of the runtime waits for. Its `__await__` yields it; who steps the coroutine adds a waker.

Tasks and the turns of a serial queue are stepped by different loops, so everything they may await speaks this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

__all__ = ["Suspension", "Waker"]

type Waker = Callable[[Suspension], None]
"""Called with what was awaited. Short, and takes no lock but leaves: it runs on the stack of whoever ends the wait."""


class Suspension:
    """A wait that is over at some time: completions, tasks, sleeps. Base class."""

    __slots__ = ()

    @abstractmethod
    def add_waker(self, waker: Waker) -> bool:
        """Call `waker(self)` once, when the wait is over; False (and no call) if it is over already. Thread-safe."""

    @abstractmethod
    def remove_waker(self, waker: Waker) -> None:
        """Forget a waker that was not called yet, and what it holds; harmless otherwise. Thread-safe."""
