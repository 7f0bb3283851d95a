"""`BlockingCalls` under every schedule: the line, withdrawing, closing, threads that cannot be had."""

from __future__ import annotations

import pytest

from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler import blocking as blocking_module
from zlink_nogil.scheduler.blocking import BlockingCalls
from zlink_nogil.scheduler.spawning import sleep, spawn
from zlink_nogil.scheduler.threads import ThreadCache

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .threads_that_fail import fail_to_start

MODULES = ["zlink_nogil.scheduler.blocking"]


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_module, "MOST", 1)


class Counter:
    """How many calls run at this moment, and what became of each."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.running = 0
        self.ends: list[tuple[str, str]] = []
        self.accepted: list[str] = []

    def names(self, how: str) -> list[str]:
        return [name for name, end in self.ends if end == how]


class Call:
    def __init__(self, counter: Counter, name: str) -> None:
        self.counter = counter
        self.name = name

    def run(self) -> None:
        counter = self.counter
        counter.running += 1
        counter.s.expect(counter.running <= blocking_module.MOST, "no more than the bound run")
        counter.s.step("runs")
        counter.running -= 1
        counter.ends.append((self.name, "ran"))

    def withdrawn(self) -> None:
        self.counter.ends.append((self.name, "withdrawn"))


def new_calls() -> BlockingCalls:
    return BlockingCalls(ThreadCache(WorkerPool(1), lambda: None))


def add(calls: BlockingCalls, counter: Counter, name: str) -> None:
    try:
        if calls.add(Call(counter, name), inside=True):
            counter.accepted.append(name)
    except RuntimeError:
        counter.ends.append((name, "refused"))


def one_end_each(counter: Counter, calls: BlockingCalls) -> bool:
    return (
        sorted([*counter.names("ran"), *counter.names("withdrawn")]) == sorted(counter.accepted)
        and calls.counts() == (0, 0)
        and len(counter.ends) == len(set(counter.ends))
    )


def a_line_at_the_bound(s: Scenario) -> None:
    """One at a time, first in first out; each accepted call has one end; what was withdrawn does not run."""
    calls, counter = new_calls(), Counter(s)
    third = Call(counter, "3")

    def give() -> None:
        add(calls, counter, "1")
        add(calls, counter, "2")
        if calls.add(third, inside=True):
            counter.accepted.append("3")
            s.thread_now("withdraws", withdraw)
            s.thread_now("withdraws, too", withdraw)

    def withdraw() -> None:
        if calls.withdraw(third):
            third.withdrawn()

    s.thread("gives", give)
    s.thread("another", add, calls, counter, "4")
    s.check("one end each", lambda: one_end_each(counter, calls))
    s.check("in order", lambda: [name for name in counter.names("ran") if name != "4"] in (["1", "2"], ["1", "2", "3"]))


def test_a_line_at_the_bound() -> None:
    run_random(a_line_at_the_bound, 200)
    run_exhaustive(a_line_at_the_bound, preemptions=1, switches=0)
    run_lines(a_line_at_the_bound, MODULES, 50)


def no_thread(s: Scenario) -> None:
    """A call for which no thread can be had is refused, if nobody runs; no accepted one is left in the line."""
    calls, counter = new_calls(), Counter(s)
    fail_to_start(0, 1, 2)
    for name in ("1", "2", "3"):
        s.thread(name, add, calls, counter, name)
    s.check("all are refused", lambda: sorted(counter.names("refused")) == ["1", "2", "3"] and calls.counts() == (0, 0))


def test_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_module, "MOST", 2)
    run_random(no_thread, 200)
    run_exhaustive(no_thread, preemptions=1, switches=0)
    run_lines(no_thread, MODULES, 50)


def withdraw_all(s: Scenario) -> None:
    """At the end what has not begun is withdrawn, and nothing more is accepted."""
    calls, counter = new_calls(), Counter(s)
    refused: list[bool] = []

    def cancel() -> None:
        calls.cancel_all()
        refused.append(calls.add(Call(counter, "late"), inside=True))

    for name in ("1", "2"):
        s.thread(name, add, calls, counter, name)
    s.thread("canceller", cancel)
    s.check("one end each", lambda: one_end_each(counter, calls))
    s.check("nothing after it", lambda: refused == [False])


def test_withdraw_all() -> None:
    run_random(withdraw_all, 150)
    run_exhaustive(withdraw_all, preemptions=1, switches=0)
    run_lines(withdraw_all, MODULES, 50)


def close_with_both(s: Scenario) -> None:
    """When the time to close is over, tasks and calls that have not begun are given up, both."""
    pool, counter = WorkerPool(1), Counter(s)

    class Long(Call):
        def run(self) -> None:
            s.sleep(5.5)
            super().run()

    async def sleeps() -> None:
        await sleep(1000.0)

    task = spawn(sleeps(), pool=pool)
    for call in (Long(counter, "long"), Call(counter, "waits")):
        pool.blocking.add(call, inside=True)
        counter.accepted.append(call.name)

    s.thread("closer", pool.close, 5.0)
    s.check("both are given up", lambda: counter.names("withdrawn") == ["waits"] and task.cancelled())


def test_close_with_both() -> None:
    run_random(close_with_both, 100)


def a_line_behind_a_long_call(s: Scenario) -> None:
    """No thread can be had for a second call: it waits for the first one's. Closed, only insiders may add."""
    calls, counter = new_calls(), Counter(s)
    fail_to_start(1, 2, 3)

    class Long(Call):
        def run(self) -> None:
            s.sleep(5.0)
            super().run()

    second, third = Call(counter, "2"), Call(counter, "3")

    def give() -> None:
        s.expect(calls.add(Long(counter, "1"), inside=False), "the first has a thread")
        s.sleep(1.0)
        s.expect(calls.add(second, inside=False), "the next waits in line")
        s.expect(calls.add(third, inside=False), "and the next")
        s.expect(calls.withdraw(third), "which has not begun")
        calls.close()
        s.expect(not calls.add(third, inside=False), "closed")
        s.expect(calls.add(third, inside=True), "but for insiders")
        s.sleep(10.0)

    s.thread("gives", give)
    s.check("in order", lambda: counter.names("ran") == ["1", "2", "3"] and calls.counts() == (0, 0))


def test_a_line_behind_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_module, "MOST", 2)
    run_random(a_line_behind_a_long_call, 5)


def withdrawn_twice(s: Scenario) -> None:
    """Of two who withdraw a call that waits one is told that it did."""
    calls, counter = new_calls(), Counter(s)
    ends: list[bool] = []

    class Long(Call):
        def run(self) -> None:
            s.sleep(5.0)

    call = Call(counter, "waits")
    calls.add(Long(counter, "long"), inside=True)
    calls.add(call, inside=True)
    for name in ("withdraws", "withdraws, too"):
        s.thread(name, lambda: ends.append(calls.withdraw(call)))
    s.check("one did", lambda: sorted(ends) == [False, True] and not counter.ends)


def test_withdrawn_twice() -> None:
    run_exhaustive(withdrawn_twice, preemptions=1, switches=0, lines=MODULES)
