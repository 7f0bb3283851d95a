"""`ReadySet` under every schedule: close, guests that come and go."""

from __future__ import annotations

import pytest

from zlink_nogil import _sync
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler.worker import Worker

from .floor import Flag, Floor
from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.scheduler.ready"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


def give_take_close(s: Scenario) -> None:
    """What was accepted before the close is given out once, with what it leads to, and every worker leaves."""
    floor = Floor(s, 2)

    def first(worker: Worker) -> None:
        floor.put(floor.job("child"), worker)
        floor.put(floor.job("pinned child"), worker, floor.workers[1])

    for worker in floor.workers:
        s.thread(f"worker {worker.index}", floor.work, worker)
    s.thread("adder", floor.add_all, floor.job("first", first), floor.job("twice", slices=2))
    s.thread("closer", floor.ready.close)
    s.check("everybody has left", lambda: floor.ready.staying == 0 and all(worker.left for worker in floor.workers))


def test_give_take_close() -> None:
    run_random(give_take_close, 150)
    run_exhaustive(give_take_close, preemptions=1, switches=0)
    run_lines(give_take_close, MODULES, 200)


def leave_while_another_takes(s: Scenario) -> None:
    """A worker that saw something ready, and did not get it, leaves all the same."""
    looks, puts, has_put = 0, _sync.Event(), _sync.Event()

    def unfinished() -> bool:
        """Asked on the way to bed: there is something just now."""
        nonlocal looks
        looks += 1
        if looks == 1:
            puts.set()
            has_put.wait()
        return False

    def first(worker: Worker) -> None:
        puts.wait()
        floor.put(floor.job("second"), worker)
        has_put.set()

    floor = Floor(s, 2, unfinished)
    floor.add(floor.job("first", first))
    floor.ready.close()
    for worker in floor.workers:
        s.thread(f"worker {worker.index}", floor.work, worker)
    s.check("everybody has left", lambda: floor.ready.staying == 0)


def test_leave_while_another_takes() -> None:
    run_random(leave_while_another_takes, 100)
    run_exhaustive(leave_while_another_takes, preemptions=1)


def close_with_something_unfinished(s: Scenario) -> None:
    """Workers stay for what will still become ready; they leave when told that it is over."""
    unfinished = [1]
    floor = Floor(s, 2, lambda: bool(unfinished))

    def last(_: Worker) -> None:
        unfinished.clear()
        floor.ready.close()

    for worker in floor.workers:
        s.thread(f"worker {worker.index}", floor.work, worker)
    s.thread("closer", floor.ready.close)
    s.thread("waker", lambda: floor.put(floor.job("last", last), None))
    s.check("everybody has left, after that", lambda: floor.ready.staying == 0 and floor.late == 0)


def test_close_with_something_unfinished() -> None:
    run_random(close_with_something_unfinished, 150)
    run_exhaustive(close_with_something_unfinished, preemptions=1, switches=0)
    run_lines(close_with_something_unfinished, MODULES, 50)


def a_guest_goes(s: Scenario) -> None:
    """A guest gives back what is at its place when it goes; who waits for it in bed is woken."""
    floor = Floor(s, 1)
    flag, guest = Flag(), floor.equip(Worker(floor.workers[0].pool, 1, guest=True))
    at_guest: list[int] = []

    def note(worker: Worker) -> None:
        s.expect(not (at_guest and worker is guest), "a guest whose wait is over goes")

    def last(worker: Worker) -> None:
        for name in ("a", "b"):
            floor.put(floor.job(name, note), worker)
        if worker is guest:
            at_guest.append(1)
        flag.up = True
        guest.parker.unpark()
        if worker is not guest:
            floor.put(floor.job("c"), worker)

    def visit() -> None:
        floor.ready.join(guest)
        floor.work(guest, flag)
        floor.ready.leave(guest)

    floor.open()
    s.thread("guest", visit)
    s.thread("adder", floor.add_all, floor.job("last", last), floor.job("other"))
    s.check("nobody is at its place any more", lambda: floor.ready.workers == floor.workers and not guest.asleep)


def test_a_guest_goes() -> None:
    run_random(a_guest_goes, 200)
    run_exhaustive(a_guest_goes, preemptions=1, switches=0)
    run_lines(a_guest_goes, MODULES, 80)


def a_guest_stays(s: Scenario) -> None:
    """What is at a busy guest's place is taken by the others."""
    floor = Floor(s, 1)
    guest = floor.equip(Worker(floor.workers[0].pool, 1, guest=True))
    ran = _sync.Event()

    def visit() -> None:
        floor.ready.join(guest)
        floor.put(floor.job("a", lambda _: ran.set()), guest)
        ran.wait()
        floor.ready.leave(guest)

    floor.open()
    s.thread("guest", visit)


def test_a_guest_stays() -> None:
    run_random(a_guest_stays, 50)


def a_guest_goes_last(s: Scenario) -> None:
    """When every worker has left, what is at a guest's place is the guest's own affair."""
    floor = Floor(s, 1)
    guest = floor.equip(Worker(floor.workers[0].pool, 1, guest=True))
    job = floor.job("a")

    def visit() -> None:
        floor.ready.join(guest)
        floor.ready.close()
        floor.work(floor.workers[0])
        floor.put(job, guest)
        s.expect(floor.ready.leave(guest) == [job], "it gets it")
        job.run_at(guest)

    s.thread("guest", visit)


def test_a_guest_goes_last() -> None:
    run_random(a_guest_goes_last, 1)


def a_guest_goes_while_one_lies_down(s: Scenario) -> None:
    """A worker that looks while what a guest leaves is on its way to everybody, and sees it nowhere, is woken."""
    asked, has_put = _sync.Event(), _sync.Event()

    def unfinished() -> bool:
        """On the way to bed, before anybody can see that."""
        if not has_put.is_set():
            asked.set()
            has_put.wait()
        return True

    floor = Floor(s, 1, unfinished)
    guest = floor.equip(Worker(floor.workers[0].pool, 1, guest=True))
    floor.ready.join(guest)
    floor.ready.close()

    def visit() -> None:
        asked.wait()
        floor.put(floor.job("a"), guest)
        has_put.set()
        floor.ready.leave(guest)

    floor.open()
    s.thread("guest", visit)


def test_a_guest_goes_while_one_lies_down() -> None:
    run_random(a_guest_goes_while_one_lies_down, 200)
