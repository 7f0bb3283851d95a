"""`WorkerPool` under every schedule: submit, close, guests, Ctrl-C."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool, interrupts
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler import worker as worker_module
from zlink_nogil.scheduler.spawning import block_on, yield_now

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .harness.strand import Strand
from .threads_that_fail import fail_to_start

MODULES = ["zlink_nogil.scheduler.ready", "zlink_nogil.scheduler.pool"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


class Job:
    """Runs `slices` times, never on two threads at once; each slice calls `work`."""

    def __init__(self, s: Scenario, work: Callable[[], object] = lambda: None, *, slices: int = 1) -> None:
        self.s = s
        self.work = work
        self.left = slices
        self.ran = 0
        self.inside: set[int] = set()

    def run_slice(self) -> bool:
        with self.s.alone(self.inside, "one runnable never runs on two threads at once"):
            self.left -= 1
            self.work()
            self.ran += 1
        return self.left > 0


def submit_and_close_a_pool(s: Scenario) -> None:
    """What `submit` accepted has run when `close` returns or soon after; no worker is left."""
    pool = WorkerPool(2)
    jobs = [Job(s, slices=2), Job(s)]
    accepted: list[Job] = []
    closed: list[Strand] = []

    def submit(job: Job) -> None:
        if pool.submit(job):
            accepted.append(job)

    def workers() -> list[Strand]:
        return [strand for strand in s.world.strands if "worker" in strand.name]

    def close() -> None:
        pool.close()
        closed.extend(workers())
        s.expect(len(closed) in (0, pool.workers), "the threads are started once")
        s.expect(all(worker.ended for worker in closed), "close joins every worker")
        s.expect(all(job.left == 0 for job in accepted), "what was accepted has run when close returns")

    for job in jobs:
        s.thread("submits", submit, job)
    s.thread("closer", close)
    s.check(
        "exactly once", lambda: all(job.left == 0 for job in accepted) and sum(job.ran > 0 for job in jobs) == len(accepted)
    )
    s.check("nothing and nobody is left", lambda: pool.ready.counts() == (0, 0, 0, 0))
    s.check("no worker comes after the close", lambda: workers() == closed)


def test_submit_and_close_a_pool() -> None:
    run_random(submit_and_close_a_pool, 150)
    run_exhaustive(submit_and_close_a_pool, preemptions=1, switches=0)
    run_lines(submit_and_close_a_pool, MODULES, 50)


def closing_a_busy_pool(s: Scenario) -> None:
    """A close that runs out of time says so; a second one waits for the rest."""
    pool = WorkerPool(1)
    ended = _sync.Event()

    def close() -> None:
        try:
            pool.close(timeout=1.0)
        except DeadlineExceeded:
            s.expect(not ended.is_set(), "in time")
        pool.close()
        s.expect(ended.is_set(), "a close without a timeout waits for what runs")

    def work() -> None:
        with pytest.raises(InvalidOperation):
            pool.close()
        s.sleep(10.0)
        ended.set()

    pool.submit(Job(s, work))
    s.thread("closer 1", close)
    s.thread("closer 2", close)


def test_closing_a_busy_pool() -> None:
    run_random(closing_a_busy_pool, 100)
    run_exhaustive(closing_a_busy_pool, preemptions=1, switches=0)


def threads_that_cannot_be_had(s: Scenario) -> None:
    """A submit for which a thread is missing accepts nothing; the next one fills the place."""
    pool = WorkerPool(2)
    fail_to_start(1)
    jobs = [Job(s), Job(s)]
    ends: list[str] = []

    def submit(job: Job) -> None:
        try:
            ends.append("accepted" if pool.submit(job) else "closed")
        except RuntimeError:
            ends.append("refused")
            s.expect(pool.submit(job), "the next one")

    for job in jobs:
        s.thread("submits", submit, job)
    s.check("one is refused", lambda: sorted(ends) == ["accepted", "refused"])
    s.check("each ran once", lambda: [job.ran for job in jobs] == [1, 1])
    s.check("every place is filled", lambda: len(pool.threads) == 2)


def test_threads_that_cannot_be_had() -> None:
    run_random(threads_that_cannot_be_had, 150)
    run_exhaustive(threads_that_cannot_be_had, preemptions=1, switches=0)


def a_guest_while_the_pool_closes(s: Scenario) -> None:
    """Whatever a guest has in hand when everybody else has left runs to its end."""
    pool = WorkerPool(1)
    after = Job(s)
    accepted: list[bool] = []

    def work() -> None:
        if job.left == 0:
            pool.resume(after)

    job = Job(s, work, slices=3)

    async def body() -> str:
        await yield_now()
        return "value"

    def visit() -> None:
        coroutine = body()
        try:
            s.expect(block_on(coroutine, pool=pool) == "value", "its own outcome")
        except ShuttingDown:
            coroutine.close()
        here = worker_module.here
        s.expect(here.worker is None and here.pool is None, "who was a guest is none any more")

    s.thread("guest", visit)
    s.thread("submits", lambda: accepted.append(pool.submit(job)))
    s.thread("closer", pool.close)
    s.check("it ran to its end if it was accepted", lambda: job.ran == 3 * accepted[0])
    s.check("with what it led to", lambda: after.ran == accepted[0])
    s.check("nobody is left", lambda: pool.ready.workers == pool.ready.workers[:1] and not pool.tasks.any())


def test_a_guest_while_the_pool_closes() -> None:
    run_random(a_guest_while_the_pool_closes, 200)
    run_exhaustive(a_guest_while_the_pool_closes, preemptions=1, switches=0)
    run_lines(a_guest_while_the_pool_closes, MODULES, 150)


def ctrl_c_in_a_guest(s: Scenario) -> None:
    """An interrupt ends the guest's wait, not its work: the coroutine is cancelled and unwound, what it held goes on."""
    pool = WorkerPool(1)
    job, never = Job(s, slices=2), Completion[int](pool)
    unwound: list[str] = []

    async def body() -> None:
        pool.submit(job)
        try:
            await never
        finally:
            unwound.append("yes")

    def visit() -> None:
        me = _sync.current_thread()
        _sync.main_thread = lambda: cast(Any, me)
        with pytest.raises(KeyboardInterrupt):
            block_on(body(), pool=pool)
        s.expect(len(unwound) <= 1, "unwound")

    def interrupt() -> None:
        interrupts._pending = True

    s.thread("guest", visit)
    s.thread("ctrl-c", interrupt)
    s.thread("waits", s.sleep, 5.0)
    s.check("what it submitted ran", lambda: job.ran == 2 * len(unwound))
    s.check("nothing is left", lambda: pool.ready.counts()[:2] == (0, 0) and len(pool.ready.workers) == 1)
    s.check("no task is left", lambda: not pool.tasks.any() and not never._wakers)


def test_ctrl_c_in_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "install", lambda: False)
    run_random(ctrl_c_in_a_guest, 150)


def a_worker_that_sleeps_holds_nothing(s: Scenario) -> None:
    """What it ran last can go."""
    pool = WorkerPool(2)
    job = Job(s)
    gone = weakref.ref(job)
    pool.submit(job)
    del job
    s.thread("waits", s.sleep, 1.0)
    s.check("gone", lambda: gone() is None)


def test_a_worker_that_sleeps_holds_nothing() -> None:
    run_random(a_worker_that_sleeps_holds_nothing, 20)
