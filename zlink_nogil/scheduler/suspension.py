"""`Suspension`: what a coroutine of the runtime waits for. Its `__await__` yields it; who steps the coroutine adds a waker.

Tasks and the turns of a serial queue are stepped by different loops, so everything they may await speaks this. `GivenBack`
is what a turn yields that gives its gate back meanwhile; only the loop that runs the turn can tell whether it may.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from enum import Enum
from typing import Any, Final

from zlink_nogil.errors import InvalidOperation

__all__ = ["GivenBack", "Suspension", "Wait", "Waker", "hint_at_bridge", "not_awaitable"]

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


class Wait(Enum):
    """How somebody waits, told to what is waited for."""

    BLOCK = "result()"
    KEEP = "await"
    GIVE_BACK = "yield_()"
    OVER = "a wait that blocked is over"


class GivenBack:
    """Yielded by `yield_()`: wait for `awaited` with the turn given back (seed 000 section 6.7)."""

    __slots__ = ("awaited",)

    def __init__(self, awaited: Any) -> None:
        self.awaited = awaited

    def __await__(self) -> Generator[GivenBack]:
        yield self


_BRIDGE: Final = "asyncio needs a loop of its own: await task.from_asyncio(...)"


def hint_at_bridge(error: BaseException) -> None:
    """Add to asyncio's complaint about a missing loop what to do about it. Runs no code of the error's own."""
    message = error.args[0] if type(error) is RuntimeError and error.args else None
    if type(message) is str and message == "no running event loop" and _BRIDGE not in getattr(error, "__notes__", ()):
        error.add_note(_BRIDGE)


def not_awaitable(who: str, awaited: object) -> InvalidOperation:
    """What is raised in `who` ("a task") when it awaits something of somebody else's."""
    if type(awaited) is GivenBack:
        return InvalidOperation(f"yield_() gives back the turn of a shared Spot gate; {who} has none: await it")
    return InvalidOperation(
        f"{who} can await tasks, completions and calls of zlink_nogil, not {type(awaited).__name__!r}; "
        "for asyncio use task.from_asyncio(...) here, or Completion.as_future() on the asyncio side"
    )
