"""The turn of a function or `async def` given to a serial queue: its outcome goes to a `Completion`."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion

__all__ = ["SubmittedTurn"]


class SubmittedTurn(Turn):
    """Runs `work()` in a copy of the submitter's context."""

    __slots__ = ("_work", "completion")

    completion: Completion[Any]

    def __init__(self, work: Callable[[], Any], payload_bytes: int) -> None:
        super().__init__(payload_bytes, contextvars.copy_context())
        self._work: Callable[[], Any] | None = work

    def describe(self) -> str:
        return super().describe() if self._work is None else getattr(self._work, "__qualname__", repr(self._work))

    def begin(self) -> Any:
        assert self._work is not None, "a turn begins once"
        return self._work()

    def succeed(self, value: Any) -> None:
        self._work = None
        self.completion.succeed(value)

    def fail(self, error: BaseException) -> None:
        self._work = None
        self.completion.fail(error)
