"""`thread.spawn`: a real OS thread outside the pool (seed 001 section 6)."""

from __future__ import annotations

import contextvars
from collections.abc import Callable

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.scheduler.completion import Completion

__all__ = ["JoinHandle", "spawn"]


class JoinHandle[T]:
    """The thread and, in the end, its outcome. All members are thread-safe."""

    __slots__ = ("_outcome", "_thread")

    def __init__(self, outcome: Completion[T], thread: _sync.Thread) -> None:
        self._outcome = outcome
        self._thread = thread

    @property
    def name(self) -> str:
        return self._thread.name

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> T:
        """Wait until the thread has ended; what its function returned or raised. `DeadlineExceeded` after `timeout` s."""
        try:
            self._outcome.exception(timeout)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"thread {self.name!r} still runs after {timeout} s") from None
        self._thread.join()
        return self._outcome.outcome()


def spawn[**P, T](function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> JoinHandle[T]:
    """Run `function` on a new thread, in a copy of the caller's context. Raises what starting a thread raises."""
    outcome: Completion[T] = Completion()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(function, *args, **kwargs)
        except BaseException as error:  # given to who joins
            outcome.fail(error)
        else:
            outcome.succeed(value)

    thread = _sync.Thread(target=run, name=f"zlink-{getattr(function, '__name__', 'thread')}")
    thread.start()
    return JoinHandle(outcome, thread)
