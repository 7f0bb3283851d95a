"""`Operations` under every schedule: each is ended at its deadline, neither early nor late."""

from __future__ import annotations

from zlink_nogil.errors import DeadlineExceeded

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .pending import MODULES, Watched


def an_earlier_deadline(s: Scenario) -> None:
    """An operation that is due before all others wakes who sleeps until the next deadline."""
    watched = Watched(s)
    ended: list[float] = []

    def ask(timeout: float) -> None:
        began = s.now
        operation = watched.request(timeout)
        assert operation is not None
        operation.exception()
        s.expect(timeout <= s.now - began <= timeout + 0.1, "neither early nor late")
        ended.append(timeout)

    def ask_twice() -> None:
        ask(1.0)
        ask(1.0)

    s.thread("patient", ask, 5.0)
    s.thread("hasty", ask_twice)
    s.thread("leader", watched.expire, s.now + 6.0)
    s.check("all ended, in order", lambda: ended == [1.0, 1.0, 5.0])


def the_next_deadline(s: Scenario) -> None:
    """Who sleeps without a deadline is woken for the next one, however late that is."""
    watched = Watched(s)

    def ask() -> None:
        for _ in range(2):
            began = s.now
            operation = watched.request(1.0)
            assert operation is not None
            operation.exception()
            s.expect(s.now - began <= 1.1, "not late")

    s.thread("asker", ask)
    s.thread("leader", watched.expire, s.now + 6.0)


def test_an_earlier_deadline() -> None:
    run_random(an_earlier_deadline)
    run_exhaustive(an_earlier_deadline, preemptions=1, switches=1)
    run_lines(an_earlier_deadline, MODULES, 100)
    run_random(the_next_deadline, 100)


def one_that_ended_before_its_deadline(s: Scenario) -> None:
    """Its empty bucket does not hide the deadlines behind it."""
    watched = Watched(s)
    hasty, patient = watched.request(1.0), watched.request(2.0)
    assert hasty is not None
    assert patient is not None
    began = s.now

    def wait() -> None:
        s.expect(isinstance(patient.exception(), DeadlineExceeded), "nobody answers")
        s.expect(s.now - began <= 2.1, "not late")

    s.thread("canceller", hasty.cancel)
    s.thread("waiter", wait)
    s.thread("leader", watched.expire, s.now + 5.0)


def test_one_that_ended_before_its_deadline() -> None:
    run_random(one_that_ended_before_its_deadline, 100)


def one_tick(s: Scenario) -> None:
    """Operations that are due in the same tick all expire, in it and not before their deadlines."""
    watched = Watched(s)

    def ask(timeout: float) -> None:
        began = s.now
        operation = watched.request(timeout)
        assert operation is not None
        s.expect(isinstance(operation.exception(), DeadlineExceeded), "nobody answers")
        s.expect(timeout <= s.now - began <= timeout + 0.1, "neither early nor late")

    s.thread("a", ask, 1.004)
    s.thread("b", ask, 1.006)
    s.thread("leader", watched.expire, s.now + 3.0)


def test_one_tick() -> None:
    run_random(one_tick)
    run_exhaustive(one_tick, preemptions=1, switches=1)
