"""Starting tasks, and waiting without a thread (seed 001 section 5; design 2.4)."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.pool import WorkerPool, default_pool
from zlink_nogil.scheduler.suspension import Suspension, Waker
from zlink_nogil.scheduler.tasks import YIELD_NOW, LocalTask, Task
from zlink_nogil.scheduler.timers import Timer, Timers, check_seconds
from zlink_nogil.scheduler.worker import here

__all__ = ["Sleep", "block_on", "current_pool", "sleep", "spawn", "spawn_local", "yield_now"]


def current_pool() -> WorkerPool:
    """The pool whose work the calling thread runs, else the process's."""
    return here.pool or default_pool()


def _check(coroutine: Coroutine[Any, Any, Any]) -> None:
    if not isinstance(coroutine, types.CoroutineType):
        hint = "; call it" if callable(coroutine) else ""
        raise TypeError(f"a coroutine is needed, not {type(coroutine).__name__!r}{hint}")
    if coroutine.cr_suspended or coroutine.cr_running:
        raise InvalidOperation(f"somebody runs this coroutine already: {coroutine!r}")


def spawn[T](coroutine: Coroutine[Any, Any, T], *, pool: WorkerPool | None = None) -> Task[T]:
    """Run `coroutine` on the pool (default: the one the caller runs on, else the process's). Thread-safe.

    Raises `TypeError` for what is no coroutine, `InvalidOperation` for one that runs already or in a forked child,
    `ShuttingDown` when the pool is closed.
    """
    _check(coroutine)
    worker = here.worker  # shared by all threads, so looked at once (design 1.4)
    if pool is None:
        pool = worker.pool if worker is not None else current_pool()
    task = Task(pool, coroutine, pool.assign_home() if pool.thread_per_core else None)
    task.begin(worker)
    return task


def spawn_local[T](coroutine: Coroutine[Any, Any, T]) -> Task[T]:
    """As `spawn`, but every step runs at one worker: the caller's, else (outside the pool) one of them in turn.

    While the task blocks, that worker's place is not handed over.
    """
    _check(coroutine)
    pool = current_pool()
    task = LocalTask(pool, coroutine, pool.assign_home())
    task.begin(here.worker)
    return task


def block_on[T](coroutine: Coroutine[Any, Any, T], *, pool: WorkerPool | None = None) -> T:
    """Run `coroutine` from a plain thread, which works for the pool until it ends; tasks left over go on there.

    Raises what the coroutine raises; on a worker `InvalidOperation`. Ctrl-C cancels the coroutine, waits for its end, and
    raises `KeyboardInterrupt`.
    """
    if here.pool is not None:
        coroutine.close()
        raise InvalidOperation("block_on is for threads outside the pool; here: await it")
    pool = pool or default_pool()
    task = spawn(coroutine, pool=pool)
    deferred = interrupts.install()
    try:
        pool.be_guest(task)
    except KeyboardInterrupt:
        task.cancel()
        task.exception()
        raise
    finally:
        if deferred:
            interrupts.restore()
    return task.outcome()


@types.coroutine
def _suspend(suspension: Suspension) -> Generator[Suspension]:
    yield suspension


def yield_now() -> Awaitable[None]:
    """`await` it to go to the back: at least one other ready runnable goes first."""
    return _suspend(YIELD_NOW)


class Sleep(Timer, Suspension):
    """A wait for a time, by one waiter, once."""

    __slots__ = ("_seconds", "_timers")

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._timers: Timers | None = None

    def add_waker(self, waker: Waker) -> bool:
        self.callback = waker
        timers = current_pool().ready.timers
        timers.arm(self, _sync.monotonic() + self._seconds)
        self._timers = timers
        return True

    def remove_waker(self, waker: Waker) -> None:  # noqa: ARG002 - there is one
        if self._timers is not None:
            self._timers.cancel(self)


def sleep(seconds: float) -> Awaitable[None]:
    """`await` it to wait `seconds` without a thread; 0 or less: to the back of the queue. `ValueError` for NaN."""
    seconds = check_seconds(seconds)
    return _suspend(Sleep(seconds) if seconds else YIELD_NOW)
