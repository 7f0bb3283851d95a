"""`WorkerPool`: a few OS threads that run whatever is ready (seed 001; design 2.1).

Guarantees
    Every runnable that `submit` accepted gets its slice, also when the pool is closing. A worker survives what a slice
    raises. `close` joins every worker; a second close is harmless. A pool inherited through `os.fork` refuses work.
    An async generator that was dropped half-way is closed by a worker, after its present slice or at `close`.

Assumes
    A runnable is in the pool at most once at a time (it keeps that flag itself).

Ownership
    `_ready`    the shared set (`ready.py`)
    `_threads`  written under `_lock`, once, by the first submit; read-only afterwards
    `_closed`   under `_lock`
    `_orphans`  async generators nobody finished, appended by finalizers (no lock may be taken there), taken by workers
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation
from zlink_nogil.scheduler.ready import ReadySet, Runnable
from zlink_nogil.state import StateLane

__all__ = ["WorkerPool", "default_pool"]

_log = logging.getLogger("zlink_nogil.scheduler")


class WorkerPool:
    """`workers` OS threads (default: the CPUs this process may use), started by the first `submit`. Thread-safe.

    A context manager; leaving it closes the pool.
    """

    def __init__(self, workers: int | None = None, name: str = "zlink") -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.workers = workers or os.process_cpu_count() or 1
        self.name = name
        self._lock = _sync.Lock()
        self._ready = ReadySet()
        self._threads: tuple[_sync.Thread, ...] = ()
        self._closed = False
        self._orphans: deque[AsyncGenerator[Any, Any]] = deque()
        self._fork = _sync.ForkGuard()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, runnable: Runnable) -> bool:
        """Give `runnable` to the workers; False if the pool is closed. `InvalidOperation` in a forked child."""
        self.check_fork()
        if not self._threads:
            self._start()
        return self._ready.add(runnable)

    def run_late(self, work: Callable[[], object]) -> None:
        """For what a closed pool did not take: run it here, where nobody else is left; but never on a state lane."""
        if StateLane.current is None:
            work()
        else:
            _sync.Thread(target=work, name=f"{self.name}-late", daemon=True).start()

    def close(self, timeout: float | None = None) -> None:
        """Accept nothing new, run what was accepted, join the workers.

        `DeadlineExceeded` when workers are still busy after `timeout` seconds (they end by themselves afterwards);
        `InvalidOperation` on one of the pool's own workers.
        """
        self.check_fork()
        if self.is_worker():
            raise InvalidOperation(f"pool {self.name!r} cannot be closed by one of its own workers")
        with self._lock:  # not before a first submit has started its threads
            self._closed = True
            self._ready.close()
        deadline = None if timeout is None else _sync.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - _sync.monotonic()))
        busy = [thread.name for thread in self._threads if thread.is_alive()]
        if busy:
            raise DeadlineExceeded(f"workers still busy after {timeout} s: {', '.join(busy)}")

    def is_worker(self) -> bool:
        """Is the calling thread one of the pool's workers?"""
        return _sync.current_thread() in self._threads

    def counts(self) -> tuple[int, int]:
        """(ready runnables, idle workers) at one moment."""
        return self._ready.counts()

    def inherited(self) -> bool:
        """Was the pool made before a fork, by the parent of this process?"""
        return self._fork.inherited()

    def check_fork(self) -> None:
        """`InvalidOperation` in a process that inherited the pool through a fork (decision 16)."""
        if self.inherited():
            raise InvalidOperation(f"pool {self.name!r} was started before a fork and cannot be used in the child")

    def _start(self) -> None:
        with self._lock:
            if self._threads or self._closed:
                return
            threads = tuple(
                _sync.Thread(target=self._work, name=f"{self.name}-worker-{index}", daemon=True)
                for index in range(self.workers)
            )
            for thread in threads:
                thread.start()
            self._threads = threads

    def _work(self) -> None:
        sys.set_asyncgen_hooks(finalizer=self._orphans.append)
        ready = self._ready
        parker = _sync.Parker()
        while (runnable := ready.take(parker)) is not None:
            try:
                again = runnable.run_slice()
            except BaseException:  # a runnable breaks its promise: the worker must live
                _log.critical("a runnable raised: %r", runnable, exc_info=True)
                again = False
            if again:
                ready.put_back(runnable)
            self._finish_orphans()
        self._finish_orphans()

    def _finish_orphans(self) -> None:
        while self._orphans:
            contextvars.Context().run(self._finish_orphan)

    def _finish_orphan(self) -> None:
        """Run the `finally` blocks of an async generator that was dropped half-way, up to its first wait."""
        try:
            orphan = self._orphans.popleft()
        except IndexError:
            return  # another worker was faster
        closing = orphan.aclose()
        try:
            closing.send(None)
        except StopIteration:
            return
        except BaseException:  # user code
            _log.exception("closing a dropped async generator failed: %r", orphan)
            return
        _log.error("a dropped async generator waits in its clean-up and is given up: %r", orphan)
        try:
            closing.close()
        except BaseException:  # user code
            _log.exception("a dropped async generator goes on waiting: %r", orphan)


_default_lock = _sync.Lock()
_default: WorkerPool | None = None


def default_pool() -> WorkerPool:
    """The process's pool, made on first use (a new one in a forked child) and closed at interpreter exit."""
    global _default, _default_lock
    if _default is not None and _default.inherited():
        _default_lock, _default = _sync.Lock(), None  # the child has one thread: nobody else is here
    with _default_lock:
        if _default is None:
            _default = WorkerPool()
            atexit.register(_close_at_exit, _default)
        return _default


def _close_at_exit(pool: WorkerPool) -> None:
    if pool.inherited():
        return
    try:
        pool.close(timeout=5.0)
    except DeadlineExceeded as error:
        _log.warning("at exit: %s", error)
