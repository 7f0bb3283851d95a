"""`Call`: an operation that has not begun (decision 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Final

from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait

__all__ = ["REQUEST_TIMEOUT", "SEND_TIMEOUT", "Call", "checked_timeout"]

SEND_TIMEOUT: Final = 1.0
REQUEST_TIMEOUT: Final = 5.0
MOST_MILLISECONDS: Final = 2**31 - 1


class Call[T]:
    """Nothing happens before one of `submit`, `await`, `yield_`, `result`; one of them, once. Thread-safe.

    A second one raises `InvalidOperation`. What the start itself refuses (`NotFound`, `CapacityExceeded`, `ShuttingDown`,
    a value that cannot be encoded) is raised by the terminator, and nothing was sent.
    """

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[Wait | None], Completion[T]]) -> None:
        self._start = [start]

    def submit(self) -> Completion[T]:
        """Begin, and do not wait."""
        return self._begin(None)

    def result(self, timeout: float | None = None) -> T:
        """Begin, and block until the outcome; `timeout` as in `Completion.result`, besides the operation's own."""
        return self._begin(Wait.BLOCK).result(timeout)

    def __await__(self) -> Generator[Completion[Any], None, T]:
        """Begin, and wait in a handler: the turn is kept."""
        return self._begin(Wait.KEEP).__await__()

    async def yield_(self) -> T:
        """Begin, and wait in a handler with the turn given back: see `Completion.yield_`.

        `InvalidOperation`, with nothing begun, but on a turn of a shared Spot gate.
        """
        turn = Turn.current
        if turn is None or not turn.queue.may_yield:
            where = "outside a turn" if turn is None else f"on a turn of {turn.queue.name!r}"
            raise InvalidOperation(f"yield_() gives back the turn of a shared Spot gate; there is none {where}: await it")
        return await self._begin(Wait.GIVE_BACK).yield_()

    def _begin(self, how: Wait | None) -> Completion[T]:
        try:
            start = self._start.pop()  # atomic: one caller gets it
        except IndexError:
            raise InvalidOperation("a call can be used once") from None
        return start(how)


def checked_timeout(timeout: float | None, default: float) -> float:
    """`timeout` in seconds, or the default; `ValueError` unless finite, positive and at most 2**31-1 ms."""
    if timeout is None:
        return default
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise ValueError(f"a timeout must be a finite, positive number of seconds, not {timeout!r}")
    if timeout > MOST_MILLISECONDS or math.ceil(timeout * 1000) > MOST_MILLISECONDS:
        raise ValueError(f"a timeout may be at most {MOST_MILLISECONDS} ms, not {timeout!r} s")
    return float(timeout)
