"""`ReadySet` under every schedule: give, take, steal, park, wake."""

from __future__ import annotations

import functools

import pytest

from zlink_nogil import _sync
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler.worker import Worker

from .floor import Floor, Job
from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.scheduler.ready"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking again and again before lying down only makes the schedules longer."""
    monkeypatch.setattr(ready_module, "SPINS", 1)


def steal_while_one_lies_down(s: Scenario) -> None:
    """What a busy worker has put at its own place is taken by another, also by one that is just lying down."""
    floor = Floor(s, 2)
    ran = _sync.Event()
    second = floor.job("second", lambda _: ran.set())

    def first(worker: Worker) -> None:
        floor.put(second, worker)
        ran.wait()

    floor.open()
    s.thread("adder", lambda: floor.add(floor.job("first", first)))
    s.check("one was stolen", lambda: sum(worker.steals for worker in floor.workers) == 1)
    s.check("both sleep, and have begun to", lambda: all(worker.parks for worker in floor.workers))


def test_steal_while_one_lies_down() -> None:
    run_random(steal_while_one_lies_down, 150)
    run_exhaustive(steal_while_one_lies_down, preemptions=1, switches=0)
    run_lines(steal_while_one_lies_down, MODULES, 80)


def every_sleeper_can_be_woken(s: Scenario) -> None:
    """Two jobs that need each other, on two workers: a wake-up that is left out while somebody searches is passed on."""
    floor = Floor(s, 2)
    events = _sync.Event(), _sync.Event()

    def meet(mine: int) -> None:
        events[mine].set()
        events[1 - mine].wait()

    floor.open()
    for index in (0, 1):
        s.thread(f"adder {index}", lambda index=index: floor.add(floor.job(f"{index}", lambda _: meet(index))))


def test_every_sleeper_can_be_woken() -> None:
    run_random(every_sleeper_can_be_woken, 150)
    run_exhaustive(every_sleeper_can_be_woken, preemptions=1, switches=0)


def a_searcher_wakes_the_next(s: Scenario) -> None:
    """Two more become ready at a place that stays busy: both sleepers come, though only one is woken for them."""
    floor = Floor(s, 3)
    events = _sync.Event(), _sync.Event()

    def meet(mine: int, _: Worker) -> None:
        events[mine].set()
        events[1 - mine].wait()

    def first(worker: Worker) -> None:
        for index in (0, 1):
            floor.put(floor.job(f"{index}", functools.partial(meet, index)), worker)
        for event in events:
            event.wait()

    floor.open()
    s.thread("adder", lambda: floor.add(floor.job("first", first)))


def test_a_searcher_wakes_the_next() -> None:
    run_random(a_searcher_wakes_the_next, 150)


def a_share_on_its_way(s: Scenario) -> None:
    """What a worker moves from the injector to its own place is found by who looked for it in between and saw nothing."""
    floor = Floor(s, 2)
    ran = _sync.Event()
    floor.add(floor.job("first", lambda _: ran.wait()))
    floor.add(floor.job("second", lambda _: ran.set()))
    floor.open()


def test_a_share_on_its_way() -> None:
    run_random(a_share_on_its_way, 100)
    run_exhaustive(a_share_on_its_way, preemptions=1, switches=0)


def a_slice_that_goes_back(s: Scenario) -> None:
    """A runnable that is put back may be needed by the one its worker runs next: a sleeper takes it."""
    floor = Floor(s, 2)
    ran = _sync.Event()

    def slice_(worker: Worker) -> None:
        if floor.ran.count("again") == 2:
            ran.set()
        else:
            floor.put(floor.job("waits", lambda _: ran.wait()), worker, worker)
            s.sleep(1.0)

    def first(worker: Worker) -> None:
        floor.put(floor.job("again", slice_, slices=2), worker)

    floor.open()
    s.thread("adder", lambda: floor.add(floor.job("first", first)))
    s.thread("waits", s.sleep, 5.0)


def test_a_slice_that_goes_back() -> None:
    run_random(a_slice_that_goes_back, 150)
    run_exhaustive(a_slice_that_goes_back, preemptions=1, switches=0)


def work_with_a_home(s: Scenario) -> None:
    """What belongs to one worker runs there and wakes that one, whoever gives it; what goes back stays there."""
    floor = Floor(s, 2)
    at_home: list[int] = []
    ran = _sync.Event()
    home = floor.workers[0]

    def note(worker: Worker) -> None:
        at_home.append(worker.index)
        if len(at_home) == 3:
            ran.set()

    def first(worker: Worker) -> None:
        floor.put(floor.job("put", note), worker, home)
        if worker is not home:
            ran.wait()

    floor.open()
    s.thread("adder", lambda: floor.add(floor.job("added", note, slices=2), home))
    s.thread("another", lambda: floor.add(floor.job("first", first)))
    s.check("at home", lambda: at_home == [0, 0, 0])


def test_work_with_a_home() -> None:
    run_random(work_with_a_home, 150)
    run_exhaustive(work_with_a_home, preemptions=1, switches=0)
    run_lines(work_with_a_home, MODULES, 50)


def what_finalizers_leave(s: Scenario) -> None:
    """A worker that sleeps, or is about to, takes what a finalizer leaves."""
    floor = Floor(s, 1)

    def defer(name: str) -> None:
        floor.given.append(name)
        floor.ready.defer(floor.job(name))

    floor.open()
    s.thread("finalizer 1", defer, "a")
    s.thread("finalizer 2", defer, "b")
    s.thread("adder", lambda: floor.add(floor.job("c")))


def test_what_finalizers_leave() -> None:
    run_random(what_finalizers_leave, 150)
    run_exhaustive(what_finalizers_leave, preemptions=1, switches=0)


def what_a_finalizer_leaves_at_a_busy_place(s: Scenario) -> None:
    """A worker that takes it in and stays busy leaves it to the others."""
    floor = Floor(s, 2)
    ran = _sync.Event()

    def busy(worker: Worker) -> None:
        for name, work in (("left", lambda _: ran.set()), ("too", None)):
            floor.given.append(name)
            floor.ready.defer(floor.job(name, work))
        floor.ready.look_round(worker)
        s.expect(not floor.ready.deferred, "all of it is taken in")
        ran.wait()

    floor.open()
    s.thread("adder", lambda: floor.add(floor.job("busy", busy)))


def test_what_a_finalizer_leaves_at_a_busy_place() -> None:
    run_random(what_a_finalizer_leaves_at_a_busy_place, 100)


def rounds(s: Scenario) -> None:
    """A round begins with the injector, and goes on at the worker's own place; what goes back is anybody's again."""
    floor = Floor(s, 1)
    worker = floor.workers[0]

    def take() -> None:
        job = floor.ready.take(worker)
        assert isinstance(job, Job)
        if job.run_at(worker):
            floor.ready.put_back(job, worker)

    def work() -> None:
        floor.add(floor.job("pinned"), worker)
        take()
        floor.add_all(floor.job("a", slices=2), floor.job("b"))
        worker.new_round = True
        take()
        floor.add(floor.job("c"))
        take()
        worker.new_round = True
        s.expect(not worker.pinned, "what came from everybody does not stay here")
        take()
        take()

    s.thread("works", work)
    s.check("in order", lambda: floor.ran == ["pinned", "a", "b", "c", "a"])


def test_rounds() -> None:
    run_random(rounds, 1)
