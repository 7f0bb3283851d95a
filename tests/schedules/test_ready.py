"""`ReadySet` and `WorkerPool` under every schedule: add, take, park, put back, close."""

from __future__ import annotations

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.scheduler.pool import WorkerPool
from zlink_nogil.scheduler.ready import ReadySet

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .harness.strand import Strand

MODULES = ["zlink_nogil.scheduler.ready", "zlink_nogil.scheduler.pool"]


class Job:
    """Runs `slices` times, never on two threads at once."""

    def __init__(self, s: Scenario, name: str, slices: int = 1) -> None:
        self.s = s
        self.name = name
        self.left = slices
        self.inside: set[int] = set()

    def run_slice(self) -> bool:
        with self.s.alone(self.inside, "one runnable never runs on two workers at once"):
            self.left -= 1
            return self.left > 0


def add_take_park_close(s: Scenario) -> None:
    """What `add` accepted is given out exactly once, and nobody sleeps while something is ready."""
    ready = ReadySet()
    accepted: list[str] = []
    given: list[str] = []

    def work() -> None:
        parker = _sync.Parker()
        while (job := ready.take(parker)) is not None:
            assert isinstance(job, Job)
            given.append(job.name)
            if job.run_slice():
                ready.put_back(job)

    def add() -> None:
        if ready.add(Job(s, "twice", slices=2)):
            accepted.extend(["twice", "twice"])
        if ready.add(Job(s, "once")):
            accepted.append("once")

    s.thread("worker 1", work)
    s.thread("worker 2", work)
    s.thread("adder", add)
    s.thread("closer", ready.close)
    s.check("given out once each", lambda: sorted(given) == sorted(accepted))
    s.check("nothing and nobody is left", lambda: ready.counts() == (0, 0))


def test_add_take_park_close() -> None:
    run_random(add_take_park_close)
    run_exhaustive(add_take_park_close, preemptions=1, switches=1)
    run_lines(add_take_park_close, MODULES)


def every_sleeper_can_be_woken(s: Scenario) -> None:
    """Two jobs that need each other, on two workers: each add wakes a sleeper of its own."""
    ready = ReadySet()
    first, second = _sync.Event(), _sync.Event()

    class Meeting:
        def __init__(self, mine: _sync.Event, other: _sync.Event) -> None:
            self.mine = mine
            self.other = other

        def run_slice(self) -> bool:
            self.mine.set()
            self.other.wait()
            return False

    def work() -> None:
        job = ready.take(_sync.Parker())
        if job is not None:
            job.run_slice()

    s.thread("worker 1", work)
    s.thread("worker 2", work)
    s.thread("adder 1", ready.add, Meeting(first, second))
    s.thread("adder 2", ready.add, Meeting(second, first))


def test_every_sleeper_can_be_woken() -> None:
    run_random(every_sleeper_can_be_woken)
    run_exhaustive(every_sleeper_can_be_woken, preemptions=1)


def submit_and_close_a_pool(s: Scenario) -> None:
    """What `submit` accepted has run when `close` returns or soon after; no worker is left."""
    pool = WorkerPool(2)
    ran: list[str] = []
    accepted: list[str] = []
    closed: list[Strand] = []

    class Note(Job):
        def run_slice(self) -> bool:
            ran.append(self.name)
            return super().run_slice()

    def submit(name: str) -> None:
        if pool.submit(Note(s, name)):
            accepted.append(name)

    def workers() -> list[Strand]:
        return [strand for strand in s.world.strands if "worker" in strand.name]

    def close() -> None:
        pool.close()
        closed.extend(workers())
        s.expect(len(closed) in (0, pool.workers), "the threads are started once")
        s.expect(all(worker.ended for worker in closed), "close joins every worker")
        s.expect(set(accepted) <= set(ran), "what was accepted has run when close returns")

    s.thread("a", submit, "a")
    s.thread("b", submit, "b")
    s.thread("closer", close)
    s.check("exactly once", lambda: sorted(ran) == sorted(accepted))
    s.check("nothing and nobody is left", lambda: pool.counts() == (0, 0))
    s.check("no worker comes after the close", lambda: workers() == closed)


def test_submit_and_close_a_pool() -> None:
    run_random(submit_and_close_a_pool)
    run_exhaustive(submit_and_close_a_pool, preemptions=1, switches=1)
    run_lines(submit_and_close_a_pool, MODULES)


def closing_a_busy_pool(s: Scenario) -> None:
    """A close that runs out of time says so; a second one waits for the rest."""
    pool = WorkerPool(1)
    ended = _sync.Event()

    class Long:
        def run_slice(self) -> bool:
            s.sleep(10.0)
            ended.set()
            return False

    def close() -> None:
        try:
            pool.close(timeout=1.0)
        except DeadlineExceeded:
            s.expect(not ended.is_set(), "in time")
        pool.close()
        s.expect(ended.is_set(), "a close without a timeout waits for what runs")

    pool.submit(Long())
    s.thread("closer 1", close)
    s.thread("closer 2", close)


def test_closing_a_busy_pool() -> None:
    run_random(closing_a_busy_pool)
    run_exhaustive(closing_a_busy_pool, preemptions=1)


def a_slice_that_goes_back_wakes_a_sleeper(s: Scenario) -> None:
    """A worker that puts its runnable back may be busy elsewhere next: who sleeps is woken for it."""
    ready = ReadySet()
    taken: list[str] = []

    def put_and_leave() -> None:
        ready.put_back(Job(s, "again"))

    def work() -> None:
        job = ready.take(_sync.Parker())
        assert isinstance(job, Job)
        taken.append(job.name)

    s.thread("sleeper", work)
    s.thread("leaver", put_and_leave)
    s.check("it runs", lambda: taken == ["again"])


def test_a_slice_that_goes_back_wakes_a_sleeper() -> None:
    run_random(a_slice_that_goes_back_wakes_a_sleeper, 100)
    run_exhaustive(a_slice_that_goes_back_wakes_a_sleeper, preemptions=2)
