"""Functions that block: `run_blocking` here, `spawn_blocking` on a thread of its own (seed 001 section 7; design 2.3)."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from zlink_nogil.errors import ShuttingDown
from zlink_nogil.scheduler.completion import Completion
from zlink_nogil.scheduler.hand_over import HandOver
from zlink_nogil.scheduler.pool import WorkerPool
from zlink_nogil.scheduler.spawning import current_pool

__all__ = ["run_blocking", "spawn_blocking"]


def run_blocking[**P, T](function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` here and now, while a spare thread takes this worker's place; elsewhere just call it.

    Raises what it raises; `CapacityExceeded` when too many threads block already, `RuntimeError` when no thread can be
    started: then it was not called.
    """
    with HandOver():
        return function(*args, **kwargs)


def spawn_blocking[**P, T](function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Completion[T]:
    """Call `function` on a thread for blocking calls, in a copy of the caller's context; at most 512 run at a time.

    Cancelling withdraws a call that has not begun. `ShuttingDown` when the pool is closed.
    """
    pool = current_pool()
    pool.check_fork()
    call: _Call[T] = _Call(pool, lambda: function(*args, **kwargs))
    if not pool.blocking.add(call, inside=pool.is_worker()):
        raise ShuttingDown(f"pool {pool.name!r} is closed")
    return call


class _Call[T](Completion[T]):
    __slots__ = ("_context", "_function")

    def __init__(self, pool: WorkerPool, function: Callable[[], T]) -> None:
        super().__init__(pool, self._withdraw)
        self._context = contextvars.copy_context()
        self._function: Callable[[], T] | None = function

    def _withdraw(self) -> bool:
        if not self._pool.blocking.withdraw(self):
            return False
        self.withdrawn()
        return True

    def withdrawn(self) -> None:
        self._function = None
        self.abandon()

    def run(self) -> None:
        function, self._function = self._function, None
        assert function is not None, "called once"
        try:
            value: Any = self._context.run(function)
        except BaseException as error:  # the outcome of user code, whatever it is
            self.fail(error)
        else:
            self.succeed(value)
