"""`HandOver` and `ThreadCache` under every schedule: block, come back, retire, close, threads that cannot be had."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import pytest

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler import hand_over as hand_over_module
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler import threads as threads_module
from zlink_nogil.scheduler import worker as worker_module
from zlink_nogil.scheduler.hand_over import HandOver, Places
from zlink_nogil.scheduler.threads import ThreadCache

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .threads_that_fail import fail_to_start

MODULES = ["zlink_nogil.scheduler.hand_over", "zlink_nogil.scheduler.threads"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


class Job:
    """Each slice calls `work`, never on two threads at once."""

    def __init__(self, s: Scenario, work: Callable[[], object], *, slices: int = 1) -> None:
        self.s = s
        self.work = work
        self.left = slices
        self.ran = 0
        self.refused = 0
        self.inside: set[int] = set()

    def run_slice(self) -> bool:
        with self.s.alone(self.inside, "one runnable never runs on two threads at once"):
            self.left -= 1
            self.work()
            self.ran += 1
        return self.left > 0

    def block(self, event: _sync.Event) -> None:
        """Who has a place after the block sits there with this job."""
        place = worker_module.here.worker
        source = None if place is None else place.source
        try:
            with HandOver():
                self.s.expect(worker_module.here.worker is None, "the place is left")
                if place is not None:
                    blocked = place.pool.places._blocked
                    self.s.expect(self in blocked.values(), "it is known to be blocked")
                    self.s.expect(len(blocked) <= hand_over_module.MOST_BLOCKED, "no more than the bound are blocked")
                    self.s.expect(place.carrier is not _sync.current_thread(), "nobody is said to sit there")
                event.wait()
        except (RuntimeError, CapacityExceeded):
            self.refused += 1
            self.s.expect(worker_module.here.worker is place, "nothing has changed")
        worker = worker_module.here.worker
        if worker is not None:
            self.s.expect(worker.carrier is _sync.current_thread(), "it sits there")
            self.s.expect(worker.running is self, "with what it was doing")
            self.s.expect(worker.source is source, "which goes back to where it came from")


def blocker(s: Scenario, event: _sync.Event, *, slices: int = 1) -> Job:
    job = Job(s, lambda: job.block(event), slices=slices)
    return job


def close_and_look(s: Scenario, pool: WorkerPool) -> None:
    """Everything is over: nothing is blocked, offered or ready, and no thread is left."""

    def over() -> bool:
        pool.close()
        return (
            not any(thread.is_alive() for thread in pool.threads)
            and not pool.places.blocked()
            and not pool.places._offered
            and pool.ready.counts() == (0, 0, 0, 0)
            and pool.ready.staying == 0
        )

    s.check("everything is over", over)


def block_and_come_back(s: Scenario) -> None:
    """What waits behind a job that blocks runs meanwhile; the job goes on after it, with its place or without."""
    pool = WorkerPool(1)
    event = _sync.Event()

    def work() -> None:
        job.block(event)
        s.expect(worker_module.here.worker is not None or not pool.places._offered, "it sits down if nobody has")

    job = Job(s, work, slices=2)
    behind = Job(s, event.set)
    s.thread("a", pool.submit, job)
    s.thread("b", pool.submit, behind)
    s.check("each slice once", lambda: (job.ran, behind.ran) == (2, 1))
    close_and_look(s, pool)


def test_block_and_come_back() -> None:
    run_random(block_and_come_back, 150)
    run_exhaustive(block_and_come_back, preemptions=1, switches=0)
    run_lines(block_and_come_back, MODULES, 50)


def a_thread_without_a_place_holds_nothing(s: Scenario) -> None:
    """What a thread was in the middle of when it lost its place can go once it has ended, though the thread stays."""
    pool = WorkerPool(1)
    event = _sync.Event()

    class Blocks:
        def run_slice(self) -> bool:
            with HandOver():
                event.wait()
            return False

    job = Blocks()
    gone = weakref.ref(job)
    pool.submit(job)
    pool.submit(Job(s, event.set))
    del job
    s.thread("waits", s.sleep, 1.0)
    s.check("gone", lambda: gone() is None)


def test_a_thread_without_a_place_holds_nothing() -> None:
    run_random(a_thread_without_a_place_holds_nothing, 30)


def a_thread_that_comes_too_late(s: Scenario) -> None:
    """A short block is over before the thread it called has come; the next block gets a thread all the same."""
    pool = WorkerPool(1)
    event, over = _sync.Event(), _sync.Event()
    over.set()

    def work() -> None:
        job.block(over)
        s.sleep(1.0)
        job.block(event)

    job, behind = Job(s, work), Job(s, event.set)
    pool.submit(job)
    pool.submit(behind)
    s.thread("waits", s.sleep, 3.0)
    s.check("each once", lambda: (job.ran, behind.ran) == (1, 1))
    close_and_look(s, pool)


def test_a_thread_that_comes_too_late() -> None:
    run_random(a_thread_that_comes_too_late, 40)


def two_who_block(s: Scenario) -> None:
    """Two jobs of one place block, the second on its spare thread: whoever comes back takes the place as it left it."""
    pool = WorkerPool(1)
    events = _sync.Event(), _sync.Event()
    jobs = [blocker(s, event, slices=2) for event in events]
    home = pool.ready.workers[0]
    pool.submit(jobs[0])
    pool.submit(jobs[1], home)
    for event in events:
        s.thread("waker", event.set)
    s.check("each slice once", lambda: [job.ran for job in jobs] == [2, 2])
    close_and_look(s, pool)


def test_two_who_block() -> None:
    run_random(two_who_block, 300)
    run_lines(two_who_block, MODULES, 50)


def close_meanwhile(s: Scenario) -> None:
    """A close while a job blocks waits for it, and for what it leads to."""
    pool = WorkerPool(1)
    event = _sync.Event()
    behind = Job(s, lambda: None)

    def work() -> None:
        job.block(event)
        if job.ran == 0:
            pool.resume(behind)

    job = Job(s, work, slices=2)
    pool.submit(job)

    def close() -> None:
        pool.close()
        s.expect((job.ran, behind.ran) == (2, 1), "what was accepted has run when close returns")

    s.thread("closer", close)
    s.thread("waker", event.set)
    close_and_look(s, pool)


def test_close_meanwhile() -> None:
    run_random(close_meanwhile, 200)
    run_exhaustive(close_meanwhile, preemptions=1, switches=0)
    run_lines(close_meanwhile, MODULES, 50)


def no_thread_for_one(s: Scenario) -> None:
    """Two places are left at once and one thread can be had: one of the two gets it, the other one does not block."""
    pool = WorkerPool(2)
    pool.start()
    fail_to_start(1, 2, 3)
    run = pool._threads.run
    calls: list[int] = []

    def hesitate(job: Callable[[], None]) -> None:
        calls.append(1)
        if len(calls) == 1:
            s.sleep(1.0)
        run(job)

    pool._threads.run = hesitate  # type: ignore[method-assign]
    events = _sync.Event(), _sync.Event()
    jobs = [blocker(s, event) for event in events]
    behind = [Job(s, event.set) for event in events]
    for number, home in enumerate(pool.ready.workers):
        s.thread(f"a{number}", lambda n=number, home=home: (pool.submit(jobs[n], home), pool.submit(behind[n], home)))
    s.thread("waits", s.sleep, 5.0)
    s.check("everything ran once", lambda: [job.ran for job in (*jobs, *behind)] == [1, 1, 1, 1])
    s.check("at most one was refused", lambda: sum(job.refused for job in jobs) <= 1)
    close_and_look(s, pool)


def test_no_thread_for_one() -> None:
    run_random(no_thread_for_one, 150)


def too_many_block(s: Scenario) -> None:
    """More than the bound may not block; the others are counted right."""
    pool = WorkerPool(2)
    event = _sync.Event()
    jobs = [blocker(s, event) for _ in range(2)]
    for job in jobs:
        s.thread("adder", pool.submit, job)
    s.thread("waker", event.set)
    s.check("everything ran once", lambda: [job.ran for job in jobs] == [1, 1])
    s.check("one may block", lambda: sum(job.refused for job in jobs) <= 1)
    close_and_look(s, pool)


def test_too_many_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over_module, "MOST_BLOCKED", 1)
    run_random(too_many_block, 150)


def a_thread_retires(s: Scenario) -> None:
    """A job given while the idle thread gives up waiting runs all the same, on that thread or a new one."""
    pool = WorkerPool(1)
    cache = ThreadCache(pool, lambda: None)
    ran: list[int] = []
    s.timeouts_race()

    def give(number: int) -> None:
        cache.run(lambda: ran.append(number))

    def give_two() -> None:
        ran.append(3)
        give(4)

    def close() -> None:
        s.sleep(3.0)
        cache.close()
        cache.run(give_two)
        s.expect(cache.join(None) == [], "join waits for every thread")
        s.expect({3, 4} <= set(ran), "jobs are still accepted, and what they lead to")
        s.expect(cache.counts()[1] == 0, "nobody is idle")

    s.thread("a", give, 1)
    s.thread("b", give, 2)
    s.thread("closer", close)
    s.check("each ran once", lambda: sorted(ran) == [1, 2, 3, 4])
    s.check("nobody is idle", lambda: cache.counts()[1] == 0)


def test_a_thread_retires() -> None:
    run_random(a_thread_retires, 200)
    run_exhaustive(a_thread_retires, preemptions=1, switches=0)
    run_lines(a_thread_retires, MODULES, 50)


def a_job_for_a_thread_that_retires(s: Scenario) -> None:
    """A job that comes as the one idle thread gives up waiting for it, and not a step later."""
    cache = ThreadCache(WorkerPool(1), lambda: None)
    ran: list[int] = []

    def give() -> None:
        cache.run(functools.partial(ran.append, 1))
        s.sleep(threads_module.KEEP)
        cache.run(functools.partial(ran.append, 2))
        s.sleep(1.0)

    s.thread("gives", give)
    s.check("both ran", lambda: ran == [1, 2])


def test_a_job_for_a_thread_that_retires() -> None:
    run_exhaustive(a_job_for_a_thread_that_retires, preemptions=1, lines=MODULES[1:])


def closing_takes_no_time(s: Scenario) -> None:
    """An idle thread, and one that is about to be idle, end when the cache closes, not when their time is over."""
    cache = ThreadCache(WorkerPool(1), lambda: None)
    ran: list[int] = []
    began = s.now

    def close() -> None:
        cache.close()
        s.expect(cache.join(None) == [], "join waits for every thread")
        s.expect(s.now - began < 1.0, "at once")

    cache.run(functools.partial(ran.append, 1))
    s.thread("closer", close)
    s.check("it ran", lambda: ran == [1])


def test_closing_takes_no_time() -> None:
    run_random(closing_takes_no_time, 100)
    run_exhaustive(closing_takes_no_time, preemptions=1)
    run_lines(closing_takes_no_time, MODULES, 50)


def threads_are_used_again(s: Scenario) -> None:
    """One job after another needs one thread; without a job it ends in time."""
    cache = ThreadCache(WorkerPool(1), lambda: None)
    ran: list[int] = []

    def give() -> None:
        for number in (1, 2):
            cache.run(functools.partial(ran.append, number))
            s.sleep(1.0)
        s.expect(cache.counts() == (1, 1), "one thread, idle")
        s.sleep(10.0)
        s.expect(cache.counts() == (0, 0), "it has ended")

    s.thread("gives", give)
    s.check("each ran once", lambda: ran == [1, 2])


def test_threads_are_used_again() -> None:
    run_random(threads_are_used_again, 20)


def a_place_that_is_left_for_good(s: Scenario) -> None:
    """Who has left a place is at none for its next job, on the same thread."""
    pool = WorkerPool(1)
    cache = ThreadCache(pool, lambda: None)
    places = Places(cache, lambda _: None)
    found: list[object] = []

    def give() -> None:
        places.fill(pool.ready.workers[0])
        s.sleep(1.0)
        cache.run(lambda: found.append((worker_module.here.pool, worker_module.here.worker)))

    s.thread("gives", give)
    s.check("of the pool, at no place", lambda: found == [(pool, None)])


def test_a_place_that_is_left_for_good() -> None:
    run_random(a_place_that_is_left_for_good, 5)


def threads_are_counted(s: Scenario) -> None:
    """The two numbers are of one moment."""
    cache = ThreadCache(WorkerPool(1), lambda: None)

    def count() -> None:
        threads, idle = cache.counts()
        s.expect(idle <= threads, "an idle one is one of them")

    cache.run(lambda: None)
    s.thread("counts", count)
    s.thread("gives", cache.run, lambda: None)


def test_threads_are_counted() -> None:
    run_exhaustive(threads_are_counted, preemptions=1)
