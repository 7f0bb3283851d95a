"""`WorkerPool` under every schedule: what runs at which place, on which thread, and when its turn comes."""

from __future__ import annotations

from typing import Any

import pytest

from zlink_nogil import _sync
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler import worker as worker_module
from zlink_nogil.scheduler.spawning import block_on
from zlink_nogil.scheduler.timers import Timer
from zlink_nogil.state import StateLane

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .test_pool import Job
from .threads_that_fail import fail_to_start

MODULES = ["zlink_nogil.scheduler.ready", "zlink_nogil.scheduler.pool"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


def a_place_is_counted_once(s: Scenario) -> None:
    """At any moment it is idle, searching, busy or vacant; without a thread it is vacant."""
    pool = WorkerPool(1)

    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        places, _, idle, searching, vacant = pool.ready.snapshot()
        s.expect(idle + searching + vacant <= len(places), "none is counted twice")

    def look_often() -> None:
        for _ in range(20):
            look()

    def look_when_it_sleeps() -> None:
        s.world.wait("it sleeps", None, lambda: bool(pool.ready._idle))
        look()

    def start() -> None:
        fail_to_start(0)
        with pytest.raises(RuntimeError):
            pool.start()
        s.expect(pool.ready.snapshot()[4] == 1, "it has no thread")
        s.thread_now("looks", look_often)
        s.world.wait("somebody looks", None, lambda: bool(looks))
        pool.start()

    s.thread("looks late", look_when_it_sleeps)
    s.thread("starts", start)
    s.check("it has one", lambda: pool.ready.snapshot()[4] == 0)


def test_a_place_is_counted_once() -> None:
    run_random(a_place_is_counted_once, 80)
    run_lines(a_place_is_counted_once, MODULES[:1], 80)


def two_pools(s: Scenario) -> None:
    """What a worker of one pool gives to another one runs there."""
    pools = WorkerPool(1), WorkerPool(1)
    ran_in: list[object] = []
    second = Job(s, lambda: ran_in.append(worker_module.here.pool))
    pools[1].start()
    s.thread("submits", pools[0].submit, Job(s, lambda: pools[1].resume(second)))
    s.check("there", lambda: ran_in == [pools[1]])


def test_two_pools() -> None:
    run_random(two_pools, 5)


def a_place_for_each(s: Scenario) -> None:
    """Thread-per-core: what comes from outside goes round, what a runnable makes stays with it."""
    pool = WorkerPool(2, thread_per_core=True)
    for worker in pool.ready.workers:
        worker.cpu = None
    ran_at: list[int] = []

    def place() -> int:
        worker = worker_module.here.worker
        assert worker is not None
        return worker.index

    def parent() -> None:
        ran_at.append(mine := place())
        pool.submit(Job(s, lambda: s.expect(place() == mine, "it stays with its maker")))

    for name in ("submits", "submits, too"):
        s.thread(name, pool.submit, Job(s, parent))
    s.check("one each", lambda: sorted(ran_at) == [0, 1])


def test_a_place_for_each() -> None:
    run_random(a_place_for_each, 60)


def homes_in_turn(s: Scenario) -> None:
    """Two who look for a place at the same time get two."""
    pool = WorkerPool(2, thread_per_core=True)
    homes: list[object] = []
    for name in ("one", "other"):
        s.thread(name, lambda: homes.append(pool.assign_home()))
    s.check("two", lambda: len(set(homes)) == 2)


def test_homes_in_turn() -> None:
    run_exhaustive(homes_in_turn, preemptions=1, switches=0, lines=MODULES[1:])


def every_turn_comes(s: Scenario) -> None:
    """A worker that always has something at its own place looks at the injector and the timers all the same."""
    pool = WorkerPool(1)
    waiting, slices = {"other", "timer"}, 0

    class Busy:
        def run_slice(self) -> bool:
            nonlocal slices
            if slices == 3:  # its first round has ended
                pool.ready.add(Job(s, lambda: waiting.discard("other")))
                pool.ready.timers.arm(Timer(lambda _: waiting.discard("timer")), s.now)
            slices += 1
            s.expect(slices < 2 * ready_module.ROUND, "their turn comes")
            return bool(waiting)

    s.thread("submits", pool.submit, Busy())
    s.check("they have", lambda: not waiting)


def test_every_turn_comes() -> None:
    run_random(every_turn_comes, 10)


def its_own_turn_comes(s: Scenario) -> None:
    """A worker that always finds something in the injector runs what is at its own place all the same."""
    pool = WorkerPool(1)
    waiting, slices = {"own"}, 0

    class Busy:
        def run_slice(self) -> bool:
            nonlocal slices
            if slices == 3:
                pool.resume(Job(s, lambda: waiting.discard("own")))
            slices += 1
            s.expect(slices < 2 * ready_module.ROUND, "its turn comes")
            if waiting:
                pool.ready.add(Busy())
            return False

    s.thread("submits", pool.submit, Busy())
    s.check("it has", lambda: not waiting)


def test_its_own_turn_comes() -> None:
    run_random(its_own_turn_comes, 10)


def after_what_is_pinned(s: Scenario) -> None:
    """What anybody may run is not kept at a place because the one before it was."""
    pool = WorkerPool(1)
    place = pool.ready.workers[0]
    free = Job(s, lambda: s.expect(place.source is place.local, "it goes back to where others find it"), slices=2)
    pinned = Job(s, lambda: pinned.left or pool.submit(free), slices=2)
    s.thread("submits", pool.submit, pinned, place)
    s.check("both ran", lambda: (pinned.ran, free.ran) == (2, 2))


def test_after_what_is_pinned() -> None:
    run_random(after_what_is_pinned, 10)


def since_when(s: Scenario) -> None:
    """A worker that has slept has not run what it runs for all that time."""
    pool = WorkerPool(1)
    place = pool.ready.workers[0]

    def submit() -> None:
        pool.submit(Job(s))
        s.sleep(10.0)
        pool.submit(Job(s, lambda: s.expect(s.now - place.since < 1.0, "since it began")))

    s.thread("submits", submit)


def test_since_when() -> None:
    run_random(since_when, 5)


def a_guest_that_blocks(s: Scenario) -> None:
    """What a guest has submitted is taken by the workers."""
    pool = WorkerPool(1)
    ran = _sync.Event()

    async def body() -> None:
        pool.submit(Job(s, ran.set))
        ran.wait()

    s.thread("guest", lambda: block_on(body(), pool=pool))


def test_a_guest_that_blocks() -> None:
    run_random(a_guest_that_blocks, 20)


def a_guest_goes_last(s: Scenario) -> None:
    """What a guest has in hand when every worker has left runs to its end there, with what it leads to."""
    pool = WorkerPool(1)
    gate, after = Completion[int](pool), Job(s)

    def work() -> None:
        place = worker_module.here.worker
        if not job.left:
            pool.resume(after)
        else:
            gate.succeed(1)
            if place is not None and place.guest:
                s.world.wait("the worker leaves", None, lambda: not pool.ready.staying)

    async def body() -> None:
        pool.submit(job)
        s.thread_now("closer", pool.close)
        await gate

    job = Job(s, work, slices=2)
    s.thread("guest", lambda: block_on(body(), pool=pool))
    s.check("both ran", lambda: (job.ran, after.ran) == (2, 1))


def test_a_guest_goes_last() -> None:
    run_random(a_guest_goes_last, 60)


def after_the_close(s: Scenario) -> None:
    """What becomes ready when no worker is left runs at once, but never on a lane."""
    pool, lane = WorkerPool(1), StateLane("lane")
    here, elsewhere = Job(s), Job(s, lambda: s.expect(StateLane.current is None, "not on a lane"))

    def close() -> None:
        pool.start()
        pool.close()
        pool.resume(here)
        s.expect(here.ran == 1, "at once")
        lane.run(lambda: pool.resume(elsewhere))

    s.thread("closer", close)
    s.check("both ran", lambda: (here.ran, elsewhere.ran) == (1, 1))


def test_after_the_close() -> None:
    run_random(after_the_close, 5)


class Watched(WorkerPool):
    """Finding its watch is a place to switch."""

    def __init__(self, s: Scenario) -> None:
        self.found = 0
        self.watch: Any = None
        super().__init__(1)
        self.start()
        self.s, self.found = s, 0

    @property
    def _watch(self) -> Any:
        watch = self.watch
        if watch is not None:
            self.found += 1
            self.s.step("finds the watch")
        return watch

    @_watch.setter
    def _watch(self, watch: Any) -> None:
        self.watch = watch


def two_who_close(s: Scenario) -> None:
    """One of them lets the watch go."""
    pool = Watched(s)
    s.thread("closer", pool.close)
    s.thread("closer, too", pool.close)
    s.check("once", lambda: pool.found == 1)


def test_two_who_close() -> None:
    run_exhaustive(two_who_close, preemptions=1, switches=0)
