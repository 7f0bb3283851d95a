"""`Call`: a send or request that has not begun (decision 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Final

from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import Completion

__all__ = ["REQUEST_TIMEOUT", "SEND_TIMEOUT", "Call", "checked_timeout"]

SEND_TIMEOUT: Final = 1.0
REQUEST_TIMEOUT: Final = 5.0
MOST_MILLISECONDS: Final = 2**31 - 1


class Call[T]:
    """Nothing happens before one of `submit`, `await`, `result`; one of them, once. Thread-safe.

    A second one raises `InvalidOperation`. What the start itself refuses (`NotFound`, `CapacityExceeded`, `ShuttingDown`,
    a value that cannot be encoded) is raised by the terminator, and nothing was sent.
    """

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[bool], Completion[T]]) -> None:
        self._start = [start]

    def submit(self) -> Completion[T]:
        """Begin, and do not wait."""
        return self._begin(waits=False)

    def result(self, timeout: float | None = None) -> T:
        """Begin, and block until the outcome; `timeout` as in `Completion.result`, besides the operation's own."""
        return self._begin(waits=True).result(timeout)

    def __await__(self) -> Generator[Completion[Any], None, T]:
        """Begin, and wait in a handler: the turn is kept."""
        return self._begin(waits=True).__await__()

    def _begin(self, *, waits: bool) -> Completion[T]:
        try:
            start = self._start.pop()  # atomic: one caller gets it
        except IndexError:
            raise InvalidOperation("a call can be used once") from None
        return start(waits)


def checked_timeout(timeout: float | None, default: float) -> float:
    """`timeout` in seconds, or the default; `ValueError` unless finite, positive and at most 2**31-1 ms."""
    if timeout is None:
        return default
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise ValueError(f"a timeout must be a finite, positive number of seconds, not {timeout!r}")
    if timeout > MOST_MILLISECONDS or math.ceil(timeout * 1000) > MOST_MILLISECONDS:
        raise ValueError(f"a timeout may be at most {MOST_MILLISECONDS} ms, not {timeout!r} s")
    return float(timeout)
