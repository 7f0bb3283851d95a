"""Deadlines of operations inside this process (decision 11: local asks carry the request timeout, too).

Guarantees
    The operation's completion ends at the deadline at the latest. When it has ended its alarm is gone.

Ownership
    `Alarm._timers` is set by whoever starts the operation, before anybody else knows it
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.execution._submitted import SubmittedTurn
from zlink_nogil.scheduler import Completion
from zlink_nogil.scheduler.timers import Timer, Timers

__all__ = ["Alarm", "TimedTurn", "too_late"]


def too_late() -> DeadlineExceeded:
    return DeadlineExceeded("no answer before the deadline")


def _end_late(completion: Completion[Any]) -> None:
    completion.fail(too_late())


class Alarm(Timer):
    __slots__ = ("_timers",)

    def __init__(self) -> None:
        super().__init__()
        self._timers: Timers | None = None

    def completion(self, queue: SerialExecutionQueue, turn: SubmittedTurn, deadline: float) -> Completion[Any]:
        """The completion of `turn`, which is about to be given to `queue`: it fails at `deadline` (monotonic)."""
        completion = _Timed(queue.pool, partial(queue.cancel, turn), turn.check_wait)
        completion.alarm = self
        self.callback = lambda _: _end_late(completion)
        self._timers = queue.pool.ready.timers
        self._timers.arm(self, deadline)
        return completion

    def cancel(self) -> None:
        if self._timers is not None:
            self._timers.cancel(self)


class _Timed(Completion[Any]):
    __slots__ = ("alarm",)

    alarm: Alarm

    def settled(self) -> None:
        self.alarm.cancel()


class TimedTurn(SubmittedTurn):
    """Work that is interrupted at its deadline, `timeout` seconds from now."""

    __slots__ = ("_alarm", "_deadline")

    def __init__(self, work: Callable[[], Any], timeout: float) -> None:
        super().__init__(work, 0)
        self._deadline = _sync.monotonic() + timeout
        self._alarm = Alarm()

    def connect(self, queue: SerialExecutionQueue) -> None:
        self.completion = completion = self._alarm.completion(queue, self, self._deadline)
        completion.add_waker(partial(self._interrupt, queue))

    def forget(self) -> None:
        """It was refused."""
        self._alarm.cancel()

    def begin(self) -> Any:
        if self.completion.done():
            raise too_late()  # told already
        return super().begin()

    def _interrupt(self, queue: SerialExecutionQueue, _: object) -> None:
        if hasattr(self, "lane"):  # else it is not in the queue yet, and does not begin when it is
            queue.cancel(self)  # False, and nothing done, when the work is what ended it
