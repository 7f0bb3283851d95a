"""`Task`: a coroutine on the pool (seed 001 sections 5, 11, 12; design 2.4, decision 14).

Guarantees
    One thread steps the coroutine at a time, whatever wakes it: only a step that found it READY runs, and only the end of
    a wait that is still the present one, or a cancel, makes it READY again. Its context variables follow it. It ends
    once: with a value, an error, or cancelled. A failure nobody looked at is reported once.

Ownership
    `_stage`, `_awaiting`, `_cancelling`  under the completion's lock, but READY to RUNNING and back (`yield_now`), and
                                          `_awaiting` before its waker is added: by the thread that steps it, as nobody
                                          else acts on either
    `_coroutine`, `_context`, `_guard`    the thread that steps it
    `home`                                set at birth
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown
from zlink_nogil.scheduler.completion import SUCCEEDED, Completion
from zlink_nogil.scheduler.pool import WorkerPool
from zlink_nogil.scheduler.suspension import Suspension, Waker, hint_at_bridge, not_awaitable
from zlink_nogil.scheduler.task_table import release
from zlink_nogil.scheduler.worker import Worker, here

__all__ = ["YIELD_NOW", "LocalTask", "Task", "report_unseen_failures_to"]

_log = logging.getLogger("zlink_nogil.scheduler")


# Small integers, as in `completion.py`.
READY: Final = 0  # in the ready set
RUNNING: Final = 1
WAITING: Final = 2  # for `_awaiting`
_NAMES: Final = ("ready", "running", "waiting")
# READY -> RUNNING -> WAITING -> READY, RUNNING -> READY (yield_now, cancelled before its wait began)


class _YieldNow(Suspension):
    """To the back of the queue. Never waited for: tasks know it, and a turn of a queue has nobody to let past."""

    __slots__ = ()

    def add_waker(self, waker: Waker) -> bool:  # noqa: ARG002
        return False

    def remove_waker(self, waker: Waker) -> None:
        """None is ever added."""


YIELD_NOW = _YieldNow()


class Task[T](Completion[T]):
    """A coroutine that runs. Everything a `Completion` has; made by `task.spawn`. All members are thread-safe."""

    __slots__ = ("_awaiting", "_cancelling", "_context", "_coroutine", "_guard", "_shard", "_stage", "home")

    def __init__(self, pool: WorkerPool, coroutine: Coroutine[Any, Any, T], home: Worker | None = None) -> None:
        Completion.__init__(self, pool)  # through `super()` it shows in the price of a spawn
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._stage = READY
        self._awaiting: Suspension | None = None
        self._cancelling = False
        self.home = home

    def __repr__(self) -> str:
        state = super().__repr__().split()[-1].rstrip(">") if self.done() else _NAMES[self._stage]
        return f"<Task {self.name} {state}>"

    @property
    def name(self) -> str:
        return self._coroutine.__qualname__

    def begin(self, worker: Worker | None) -> None:
        """Give it to the pool: once, by the thread at `worker` (None: at no place).

        `ShuttingDown` when the pool is closed, but for the work of its own workers.
        """
        pool, coroutine = self._pool, self._coroutine
        pool.start()
        self._shard = pool.tasks.add(coroutine, self)
        if pool.tasks.refusing:
            accepted = False
        elif worker is not None and worker.pool is pool:
            accepted = pool.ready.put(self, worker, self.home)
        elif here.pool is pool:  # its thread has left its place
            accepted = pool.ready.put(self, None, self.home)
        else:
            accepted = pool.ready.add(self, self.home)
        if not accepted:
            if release(self._shard, coroutine):
                pool.task_over()  # a worker may have seen it in the table
            raise ShuttingDown(f"pool {pool.name!r} is closed")

    def cancel(self) -> bool:
        """Raise `Cancelled` in the coroutine at its present wait, or its next one; False if it is over."""
        self._pool.check_fork()
        with self._lock:
            if self.done():
                return False
            self._cancelling = True
            if self._stage != WAITING:
                return True
            awaiting, self._awaiting = self._awaiting, None
            self._stage = READY
        assert awaiting is not None
        awaiting.remove_waker(self._woken)
        self._pool.resume(self, self.home)
        return True

    def _resolve(self) -> tuple[T | None, BaseException | None]:
        value, error = super()._resolve()
        if error is not None and not self.cancelled():
            self._guard.seen = True
        return value, error

    def _wait(self, timeout: float | None) -> None:
        worker = here.worker
        if (worker.running if worker is not None else here.running) is self:
            raise InvalidOperation(f"{self!r} cannot wait for itself")
        super()._wait(timeout)

    # -- steps ------------------------------------------------------------------------------------------------------

    def run_slice(self) -> bool:
        """One step, up to the next wait."""
        self._stage = RUNNING
        run, coroutine = self._context.run, self._coroutine
        interruption: BaseException | None = None
        if self._cancelling:
            self._cancelling, interruption = False, Cancelled()
        try:
            while True:
                awaited = run(coroutine.send, None) if interruption is None else run(coroutine.throw, interruption)
                if isinstance(awaited, Suspension) and awaited is not self:
                    break
                interruption = _cannot_await(awaited, self)
        except StopIteration as end:
            self._leave_table()
            self._finish(SUCCEEDED, end.value)
            return False
        except BaseException as error:  # the outcome of user code, whatever it is
            self._leave_table()
            self._fail(error)
            del self, run, coroutine  # the error's traceback keeps this frame, and must not keep the task that keeps it
            return False
        return self._suspend(awaited)

    def _suspend(self, awaited: Suspension) -> bool:
        """True when it is ready again already. From the moment it waits the coroutine may be another thread's."""
        if awaited is YIELD_NOW:
            self._stage = READY
            return True
        self._awaiting = awaited
        waits = awaited.add_waker(self._woken)
        with self._lock:
            woken = self._awaiting is None
            if waits and not woken and not self._cancelling:
                self._stage = WAITING
                return False
            self._awaiting = None
            self._stage = READY
        if waits and not woken:
            awaited.remove_waker(self._woken)
        return True

    def _woken(self, awaited: Suspension) -> None:
        """A wait is over. One that was given up for a cancel finds something else awaited, one that ends before its
        step has ended leaves it to that thread to go on."""
        with self._lock:
            if self._awaiting is not awaited:
                return
            self._awaiting = None
            if self._stage != WAITING:
                return
            self._stage = READY
        self._pool.resume(self, self.home)

    def _leave_table(self) -> None:
        """Before anybody can see the outcome."""
        if release(self._shard, self._coroutine):
            self._pool.task_over()
        del self._context  # and what the caller's variables hold

    def _fail(self, error: BaseException) -> None:
        hint_at_bridge(error)
        self._guard = _Unseen(self._pool, _Report(self.name, error), seen=isinstance(error, Cancelled))
        self.fail(error)


class LocalTask[T](Task[T]):
    """A task that stays at one worker, whose thread keeps the place while the task blocks."""

    __slots__ = ()
    keeps_worker = True


def _cannot_await(awaited: object, task: Task[Any]) -> InvalidOperation:
    if awaited is task:
        return InvalidOperation(f"{task!r} cannot wait for itself")
    return not_awaitable("a task", awaited)


# -- failures nobody looked at --------------------------------------------------------------------------------------


def _log_failure(name: str, error: BaseException) -> None:
    _log.error("task %s failed and nobody looked at it", name, exc_info=error)


_hook: Callable[[str, BaseException], object] = _log_failure


def report_unseen_failures_to(hook: Callable[[str, BaseException], object] | None) -> None:
    """Call `hook(name, error)`, on a worker, for each task that failed and was dropped unseen; None: log it (default)."""
    global _hook
    _hook = hook or _log_failure


class _Unseen:
    """Goes with a failed task. Its end runs in whatever thread drops the task, so the report is left to a worker."""

    __slots__ = ("_pool", "_report", "seen")

    def __init__(self, pool: WorkerPool, report: _Report, seen: bool) -> None:
        self._pool = pool
        self._report = report
        self.seen = seen

    def __del__(self) -> None:
        if not self.seen:
            self._pool.ready.defer(self._report)


class _Report:
    """A runnable."""

    __slots__ = ("_error", "_name")

    def __init__(self, name: str, error: BaseException) -> None:
        self._name = name
        self._error = error

    def run_slice(self) -> bool:
        try:
            _hook(self._name, self._error)
        except BaseException:  # user code
            _log.exception("the hook for unseen failures failed")
        return False
