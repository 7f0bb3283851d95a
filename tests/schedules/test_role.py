"""Who leads, under every schedule: callers and workers take a role, leave it, and are asked to (decision 7)."""

from __future__ import annotations

import functools
from collections.abc import Collection

import pytest

from zlink_nogil import _sync
from zlink_nogil.scheduler import StandBy
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler.role import LED, OVER, Role
from zlink_nogil.scheduler.worker import Worker

from .floor import Flag, Floor
from .harness import Scenario, run_exhaustive, run_lines, run_random
from .mailbox import Mailbox, rest

MODULES = ["zlink_nogil.scheduler.role", "zlink_nogil.scheduler.standby"]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking again and again before lying down only makes the schedules longer."""
    monkeypatch.setattr(ready_module, "SPINS", 1)


class Answers(Mailbox):
    """Every letter ends one caller's wait, the oldest first."""

    def __init__(self, s: Scenario) -> None:
        super().__init__(s, "answers")
        self.asked: list[tuple[Flag, _sync.Parker]] = []
        self.by_standby = 0
        self.all_asked = _sync.Event()

    def rotate(self, ready: Collection[int] | None = None, /) -> float | None:
        self.by_standby += "standby" in self.s.world.current.name
        return super().rotate(ready)

    def deliver(self, letters: int) -> None:
        for flag, parker in self.asked[:letters]:
            flag.up = True
            parker.unpark()
        del self.asked[:letters]

    def ask(self, role: Role, timeout: float | None = None) -> bool:
        """Wait as `Completion.result` does."""
        flag, parker = Flag(), _sync.Parker()
        self.asked.append((flag, parker))
        if len(self.asked) == 2:
            self.all_asked.set()
        role.wait_for(flag, parker, timeout)
        return flag.up


def callers_lead(s: Scenario) -> None:
    """Two callers, two answers: whoever leads wakes the other one too; then the role is over and nobody touches it."""
    standby, answers = StandBy(), Answers(s)

    def caller(role: Role) -> None:
        s.expect(answers.ask(role), "the answer came")

    def write() -> None:
        answers.all_asked.wait()
        for _ in range(2):
            answers.post()
            s.step()

    def run() -> None:
        role = standby.add(answers)
        callers = [_sync.Thread(target=caller, args=(role,), name=f"caller {n}") for n in range(2)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
        standby.remove(answers)
        answers.removed = True
        s.expect(role.state == OVER, "it is over")

    s.thread("run", run)
    s.thread("writer", write)


def test_callers_lead() -> None:
    run_random(callers_lead, 150)
    run_exhaustive(callers_lead, preemptions=1, switches=0)
    run_lines(callers_lead, MODULES, 60)


def who_waits_leads(s: Scenario) -> None:
    """However the stand-by and a caller met: once both are at rest the caller leads, and the stand-by is left to sleep."""
    standby, answers = StandBy(), Answers(s)

    def write(role: Role) -> None:
        s.sleep(1.0)
        s.expect(role.state == LED, "the one who waits leads")
        before = answers.by_standby
        answers.post()
        s.sleep(1.0)
        s.expect(answers.by_standby == before, "what comes wakes nobody else")

    def run() -> None:
        role = standby.add(answers)
        s.thread_now("writer", write, role)
        s.expect(answers.ask(role, 100.0), "the answer came")
        s.expect(s.now < 1003.0, "at once")
        s.sleep(5.0)
        standby.remove(answers)

    s.thread("caller", run)


def test_who_waits_leads() -> None:
    run_random(who_waits_leads, 80)
    run_exhaustive(who_waits_leads, preemptions=1, switches=1)
    run_lines(who_waits_leads, MODULES, 40)


def what_comes_after_the_leader_left(s: Scenario) -> None:
    """A caller gives up; the letter and the deadline that come then are the stand-by's, in time."""
    standby, answers = StandBy(), Answers(s)

    def run() -> None:
        role = standby.add(answers)
        s.sleep(1.0)
        answers.due = s.now + 4.0
        answers.wake()  # a leader's rotation learns the new deadline; the stand-by sleeps past it
        s.expect(not answers.ask(role, 1.0), "nothing came")
        rotations = answers.rotations
        s.sleep(2.5)
        s.expect(answers.rotations == rotations, "not before it is due")
        answers.due = None
        s.sleep(1.0)
        s.expect(answers.rotations == rotations + 1, "when it was due")
        answers.post()
        answers.read.wait()
        standby.remove(answers)

    s.thread("caller", run)


def test_what_comes_after_the_leader_left() -> None:
    run_random(what_comes_after_the_leader_left, 50)
    run_exhaustive(what_comes_after_the_leader_left, preemptions=1, switches=1)


def removed_under_a_leader(s: Scenario) -> None:
    """The removal returns when the caller that leads has let go; the caller goes on waiting, for somebody else to end it."""
    standby, answers = StandBy(), Answers(s)
    flag, parker = Flag(), _sync.Parker()

    def run() -> None:
        role = standby.add(answers)
        s.thread_now("caller", functools.partial(role.wait_for, flag, parker, None))
        standby.remove(answers)
        answers.removed = True
        answers.post()
        s.expect(role.state == OVER, "it is over")
        s.expect(not role.take(_sync.Parker()), "nobody can take it")
        flag.up = True
        parker.unpark()

    s.thread("run", run)


def test_removed_under_a_leader() -> None:
    run_random(removed_under_a_leader, 100)
    run_exhaustive(removed_under_a_leader, preemptions=1, switches=1)
    run_lines(removed_under_a_leader, MODULES, 60)


def ended_by_somebody_else(s: Scenario) -> None:
    """What a leader waits for ends in another way, at any moment: it gets up, and leaves."""
    standby, answers = StandBy(), Answers(s)
    flag, parker = Flag(), _sync.Parker()

    def end() -> None:
        flag.up = True
        parker.unpark()

    def run() -> None:
        role = standby.add(answers)
        s.thread_now("other", end)
        role.wait_for(flag, parker, None)
        standby.remove(answers)

    s.thread("caller", run)


def test_ended_by_somebody_else() -> None:
    run_random(ended_by_somebody_else, 50)
    run_exhaustive(ended_by_somebody_else, preemptions=1, switches=1, lines=["zlink_nogil.scheduler.role"])


class Orders(Mailbox):
    """Every letter is a job for whoever leads, as records are."""

    def __init__(self, s: Scenario, floor: Floor, ran: _sync.Event) -> None:
        super().__init__(s, "orders")
        self.floor = floor
        self.ran = ran
        self.leaders: list[str] = []

    def deliver(self, letters: int) -> None:
        leader = self.s.world.current.name
        self.leaders.append(leader)
        worker = next((worker for worker in self.floor.workers if leader == f"worker {worker.index}"), None)
        for _ in range(letters):
            self.floor.put(self.floor.job("order", lambda _: self.ran.set()), worker)


def a_worker_leads(s: Scenario) -> None:
    """A letter that comes while every worker sleeps is read by one of them, which runs what it brought; work from elsewhere
    wakes the one that sleeps in the sockets, too."""
    floor = Floor(s, 1)
    standby, ran, added = StandBy(), _sync.Event(), _sync.Event()
    orders = Orders(s, floor, ran)

    def run() -> None:
        role = standby.add(orders)
        floor.ready.roles.add(role)
        floor.add(floor.job("first", lambda _: None))  # who was asleep before there was a role takes it at the next sleep
        s.sleep(1.0)
        s.expect(role.state == LED, "a sleeping worker leads")
        orders.leaders.clear()
        orders.post()
        ran.wait()
        s.expect(orders.leaders and "standby" not in orders.leaders[0], "the worker has read it")
        floor.add(floor.job("local", lambda _: added.set()))
        added.wait()
        rest(s, 1.0)
        floor.ready.roles.remove(role)
        standby.remove(orders)
        orders.removed = True

    floor.open()
    s.thread("run", run)


def test_a_worker_leads() -> None:
    run_random(a_worker_leads, 100)
    run_exhaustive(a_worker_leads, preemptions=1, switches=0)
    run_lines(a_worker_leads, MODULES, 60)


def a_busy_leader(s: Scenario) -> None:
    """The worker that led is busy with what it read: what comes meanwhile is the stand-by's, and finds the other worker."""
    floor = Floor(s, 2)
    standby, ran = StandBy(), _sync.Event()
    orders = Orders(s, floor, ran)

    def hold(_: Worker) -> None:
        orders.post()
        ran.wait()

    def run() -> None:
        role = standby.add(orders)
        floor.ready.roles.add(role)
        floor.add(floor.job("holds", hold))
        ran.wait()
        floor.ready.roles.remove(role)
        standby.remove(orders)
        orders.removed = True

    floor.open()
    s.thread("run", run)


def test_a_busy_leader() -> None:
    run_random(a_busy_leader, 100)
    run_exhaustive(a_busy_leader, preemptions=1, switches=0)
