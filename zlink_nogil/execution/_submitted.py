"""`SubmittedTurn`: a function or `async def` given to a serial queue. Its outcome goes to a `Completion`."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zlink_nogil.execution import _waits
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait

if TYPE_CHECKING:
    from zlink_nogil.execution.queue import SerialExecutionQueue

__all__ = ["SubmittedTurn"]


class SubmittedTurn(Turn):
    """Runs `work()` in a copy of the submitter's context. A subclass may be given to a queue in place of `work`."""

    __slots__ = ("_work", "completion")

    completion: Completion[Any]

    def __init__(self, work: Callable[[], Any] | None, payload_bytes: int) -> None:
        super().__init__(payload_bytes, contextvars.copy_context())
        self._work = work

    def __call__(self) -> Any:
        """So that it is taken where work is; queues call `begin`."""
        return self.begin()

    def connect(self, queue: SerialExecutionQueue) -> None:
        """Make the completion that `begin`'s outcome goes to; the turn is about to be given to `queue`."""
        self.completion = Completion(queue.pool, functools.partial(queue.cancel, self), self.check_wait)

    def check_wait(self, completion: Completion[Any], how: Wait) -> None:
        """What the completion asks whoever begins to wait for it."""
        _waits.check(self.queue, self, completion, how)

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
