"""`WorkerPool`: a few OS threads that run whatever is ready (seed 001; design 2).

Guarantees
    Every runnable that `submit` accepted gets its slice, also when the pool is closing. A worker survives what a slice
    raises. A runnable runs on one thread at a time, and a place's thread runs one runnable at a time; one that blocks
    hands its place over (`hand_over.py`). Timers and the injector are looked at every `ROUND` items, every `LOOK`
    seconds, and before sleeping. An async generator that was dropped half-way is closed by a worker. A pool inherited
    through `os.fork` refuses work.

Order of closing
    refuse new work; run what was accepted, tasks that sleep included; at the deadline cancel the tasks that are left and
    the blocking calls that have not begun; workers leave when nothing is left; join every thread; let the watch go.
    Again: harmless.

Assumes
    A runnable is in the pool at most once at a time (it keeps that flag itself).

Ownership
    `_filled`, `closing`, `_next_home`, `_watch`   written under `_lock`
    `ready`, `places`, `_threads`, `blocking`, `tasks`   thread-safe objects of their own
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler._orphans import Orphan
from zlink_nogil.scheduler.blocking import BlockingCalls
from zlink_nogil.scheduler.hand_over import Places
from zlink_nogil.scheduler.per_process import PerProcess
from zlink_nogil.scheduler.ready import ROUND, ReadySet
from zlink_nogil.scheduler.settings import cpus_to_pin, default_workers, pinned_to, thread_per_core_asked
from zlink_nogil.scheduler.statistics import Statistics, describe, take_statistics
from zlink_nogil.scheduler.task_table import TaskTable
from zlink_nogil.scheduler.threads import ThreadCache
from zlink_nogil.scheduler.watch import Watch
from zlink_nogil.scheduler.worker import Runnable, Worker, here
from zlink_nogil.state import StateLane

if TYPE_CHECKING:
    from zlink_nogil.scheduler.completion import Completion

__all__ = ["WorkerPool", "default_pool"]

LOOK: Final = 0.005
"""Seconds of running between two looks at the timers and the injector (items may be long)."""

GRACE: Final = 1.0
"""Seconds cancelled tasks have to unwind when the time given to `close` is over."""

_log = logging.getLogger("zlink_nogil.scheduler")


class WorkerPool:
    """`workers` places (default: `ZLINK_WORKERS`, else the CPUs this process may use), filled by the first `submit`.

    `thread_per_core` (default: `ZLINK_THREAD_PER_CORE=1`) keeps each runnable at one place and each place on one CPU; then
    nothing is stolen. Thread-safe. A context manager; leaving it closes the pool.
    """

    def __init__(self, workers: int | None = None, name: str = "zlink", *, thread_per_core: bool | None = None) -> None:
        if workers is None:
            workers = default_workers()
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.workers = workers
        self.name = name
        self.thread_per_core = thread_per_core_asked() if thread_per_core is None else thread_per_core
        cpus = cpus_to_pin(workers) if self.thread_per_core else [None] * workers
        self._lock = _sync.Lock()
        self._filled = 0  # places that have been given a thread
        self.closing = False
        self._next_home = 0
        self._fork = _sync.ForkGuard()
        self.tasks = TaskTable()
        self.ready = ReadySet(tuple(Worker(self, index, cpu=cpu) for index, cpu in enumerate(cpus)), self.tasks.any)
        self._threads = ThreadCache(self, self._begin_thread)
        self.places = Places(self._threads, self._sit)
        self.blocking = BlockingCalls(self._threads)
        self._watch: Watch | None = None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- giving work ------------------------------------------------------------------------------------------------

    def submit(self, runnable: Runnable, home: Worker | None = None) -> bool:
        """Give `runnable` to the workers, or to the one at `home`; False if the pool is closed.

        `InvalidOperation` in a forked child. Raises what starting the threads raises, having accepted nothing.
        """
        self.start()
        if home is None and self.thread_per_core:
            home = self.assign_home()
        worker = here.worker
        if worker is not None and worker.pool is self and not self.closing:
            return self.ready.put(runnable, worker, home)
        return self.ready.add(runnable, home)

    def task_over(self) -> None:
        """By a task that has left the table of a closing pool: the workers may leave with the last one."""
        if not self.tasks.any():
            self.ready.close()

    def resume(self, runnable: Runnable, home: Worker | None = None) -> None:
        """As `submit`, for something accepted earlier that is ready again: taken by a closing pool, too."""
        worker = here.worker
        if worker is not None and worker.pool is not self:
            worker = None
        if not self.ready.put(runnable, worker, home):
            self.run_late(runnable.run_slice)

    def assign_home(self) -> Worker | None:
        """Where something new stays with `thread_per_core`: where its maker runs, else at the next place in turn."""
        worker = here.worker
        if worker is not None and worker.pool is self and not worker.guest:
            return worker
        with self._lock:
            self._next_home = (self._next_home + 1) % self.workers
            return self.ready.workers[self._next_home]

    def run_late(self, work: Callable[[], object]) -> None:
        """For what a closed pool did not take: run it here, where nobody else is left; but never on a state lane."""
        if StateLane.current is None:
            work()
        else:
            _sync.Thread(target=work, name=f"{self.name}-late", daemon=True).start()

    # -- asking -----------------------------------------------------------------------------------------------------

    def is_worker(self) -> bool:
        """Does the calling thread run the pool's work: is it one of its own, or a guest?"""
        return here.pool is self

    @property
    def threads(self) -> list[_sync.Thread]:
        """The threads that have been started and not been forgotten yet."""
        return self._threads.all()

    def counts(self) -> tuple[int, int]:
        """(ready runnables, idle workers) at one moment."""
        injected, queued, idle, _ = self.ready.counts()
        return injected + queued, idle

    def thread_counts(self) -> tuple[int, int]:
        """(threads, those that have nothing to do)."""
        return self._threads.counts()

    def statistics(self) -> Statistics:
        """A frozen snapshot."""
        return take_statistics(self)

    def describe(self) -> str:
        """What every worker is doing, for people."""
        return describe(self)

    def inherited(self) -> bool:
        """Was the pool made before a fork, by the parent of this process?"""
        return self._fork.inherited()

    def check_fork(self) -> None:
        """`InvalidOperation` in a process that inherited the pool through a fork (decision 16)."""
        if self._fork.inherited():
            raise InvalidOperation(f"pool {self.name!r} was started before a fork and cannot be used in the child")

    # -- opening and closing ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find a thread for every place that has none yet; nothing on a closed pool.

        Raises what starting a thread raises; those that could be filled are.
        """
        if self._filled == self.workers and not self._fork.inherited():
            return
        self.check_fork()
        with self._lock:
            if self.closing:
                return
            for worker in self.ready.workers[self._filled : self.workers]:
                worker.filled = True  # before its thread is idle or searching: a place is one of them, not two
                try:
                    self.places.fill(worker)
                except BaseException:
                    worker.filled = False
                    raise
                self._filled += 1
            first = self._watch is None
            watch = self._watch = self._watch or Watch(self)
        if first:
            watch.begin()

    def close(self, timeout: float | None = None) -> None:
        """Accept nothing new, finish what was accepted within `timeout` seconds (None: however long), join the threads.

        What is left then is cancelled. `DeadlineExceeded` naming the threads that are still busy after that (they end by
        themselves afterwards); `InvalidOperation` on one of the pool's own workers.
        """
        self.check_fork()
        if self.is_worker():
            raise InvalidOperation(f"pool {self.name!r} cannot be closed by one of its own workers")
        deadline = None if timeout is None else _sync.monotonic() + timeout
        with self._lock:  # not before a first submit has started its threads
            self.closing = True
            self.tasks.note_closing()
            self.ready.close()
            self.blocking.close()
            self._threads.close()
        busy = self._threads.join(deadline)
        if busy and self.tasks.cancel_all() + self.blocking.cancel_all():
            busy = self._threads.join(_sync.monotonic() + GRACE)
        if busy:
            raise DeadlineExceeded(f"workers still busy after {timeout} s: {', '.join(busy)}")
        self._run_deferred()
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    def _run_deferred(self) -> None:
        """What finalizers left when no worker was there any more."""
        while True:
            try:
                runnable = self.ready.deferred.popleft()
            except IndexError:
                return
            self.run_late(runnable.run_slice)

    # -- the threads ------------------------------------------------------------------------------------------------

    def _begin_thread(self) -> None:
        sys.set_asyncgen_hooks(finalizer=self._adopt)

    def _adopt(self, generator: AsyncGenerator[Any, Any], orphan: type[Orphan] = Orphan) -> None:
        self.ready.defer(orphan(generator))  # at the end of the process the module's own names are gone

    def _sit(self, worker: Worker) -> None:
        with pinned_to(worker.cpu):
            self._work(worker, None)

    def be_guest(self, until: Completion[Any]) -> None:
        """Work here, on a thread that is not the pool's, until `until` is done."""
        worker = Worker(self, len(self.ready.workers), guest=True)
        hooks = sys.get_asyncgen_hooks()
        worker.carrier, here.pool, here.worker = _sync.current_thread(), self, worker
        self.ready.join(worker)
        try:
            self._begin_thread()
            until.add_waker(lambda _: worker.parker.unpark())
            self._work(worker, until)
        finally:
            left = self.ready.leave(worker)
            here.worker = None
            for runnable in left:
                self._finish_without_place(runnable, True, worker)
            here.pool = None
            sys.set_asyncgen_hooks(*hooks)

    def _work(self, worker: Worker, until: Completion[Any] | None) -> None:
        """Run what is ready, on the thread that sits at `worker`, until the place is handed over or left."""
        me = worker.carrier
        ready, now = self.ready, _sync.monotonic
        local, pinned = worker.local, worker.pinned
        runnable: Runnable | None
        while True:
            runnable = None  # who sleeps holds nothing
            if local and not pinned and not worker.new_round and until is None:
                # The short way: nothing here is shared, and what is shared costs every worker each time (design 1.4).
                try:
                    runnable = local.popleft()
                except IndexError:  # a thief was faster
                    continue
                worker.source = local
            elif (runnable := ready.take(worker, until)) is None:
                return
            else:
                worker.since = now()  # it may have slept
            worker.running = runnable
            try:
                again = runnable.run_slice()
            except BaseException:  # a runnable breaks its promise: the worker must live
                _log.critical("a runnable raised: %r", runnable, exc_info=True)
                again = False
            if worker.carrier is not me:
                self._finish_without_place(runnable, again, worker)
                return
            worker.running = None
            worker.items += 1
            if again:
                ready.put_back(runnable, worker)
            worker.since = moment = now()
            if moment >= worker.look_at or worker.items >= worker.round_ends:
                worker.look_at, worker.round_ends = moment + LOOK, worker.items + ROUND
                worker.new_round = True  # it begins with the injector
                ready.look_round(worker)
            if until is not None:
                interrupts.raise_if_interrupted()

    def _finish_without_place(self, runnable: Runnable, again: bool, place: Worker) -> None:
        """The slice handed the place over: if it wants another one it goes where everybody finds it."""
        here.running = None
        home = place if self.thread_per_core else None
        while again and not self.ready.put(runnable, None, home):
            again = runnable.run_slice()  # the workers have left


def default_pool() -> WorkerPool:
    """The process's pool, made on first use (a new one in a forked child) and closed at interpreter exit."""
    return _pool.get()


def _make() -> WorkerPool:
    pool = WorkerPool()
    atexit.register(_close_at_exit, pool)
    return pool


def _close_at_exit(pool: WorkerPool) -> None:
    """Tasks are cancelled, whatever they do; turns of queues that are ready still run."""
    if pool.inherited():
        return
    pool.tasks.cancel_all()
    try:
        pool.close(timeout=5.0)
    except DeadlineExceeded as error:
        _log.warning("at exit: %s", error)


_pool = PerProcess(_make)
