"""`Task` under every schedule: wakers, timers, cancel, finish."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from zlink_nogil.errors import Cancelled, InvalidOperation
from zlink_nogil.scheduler import Completion, claims
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler import tasks as tasks_module
from zlink_nogil.scheduler.spawning import sleep, spawn, yield_now
from zlink_nogil.scheduler.suspension import Suspension, Waker
from zlink_nogil.scheduler.tasks import Task

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .steps import Steps, end_of, make_pool, nothing_left

MODULES = ["zlink_nogil.scheduler.tasks", "zlink_nogil.scheduler.task_table", "zlink_nogil.scheduler.spawning"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


def wake_and_cancel(s: Scenario) -> None:
    """Reply, cancel and a second cancel at once: each step runs once, the task ends once, nothing stays behind."""
    pool = make_pool(s, 2)
    first: Completion[int] = Completion(pool)
    steps = Steps(s)
    ends: list[str] = []

    async def body() -> str:
        steps.step("begin")
        try:
            await first
            steps.step("first")
            await yield_now()
            steps.step("second")
        finally:
            steps.step("end")
        return "value"

    task = spawn(body(), pool=pool)
    s.thread("reply", first.succeed, 1)
    s.thread("canceller", task.cancel)
    s.thread("another", task.cancel)
    s.thread("waiter", lambda: ends.append(end_of(task)))
    s.check("each step once", lambda: len(set(steps.log)) == len(steps.log))
    s.check("one end", lambda: ends[0] == ("value" if "second" in steps.log else "cancelled"))
    s.check("its clean-up ran if it began", lambda: ("begin" in steps.log) == ("end" in steps.log))
    s.check("nothing is left", lambda: nothing_left(pool) and not first._wakers)
    s.check("a cancel comes too late", lambda: not task.cancel())


def test_wake_and_cancel() -> None:
    run_random(wake_and_cancel, 200)
    run_lines(wake_and_cancel, MODULES)


def timer_against_cancel(s: Scenario) -> None:
    """A sleep that ends and a cancel at once: one of the two, in time; the canceller gets no error, no timer is left."""
    pool = make_pool(s, 1)
    steps = Steps(s)
    began = s.now

    async def body() -> str:
        await sleep(1.0)
        steps.step("slept")
        await sleep(1000.0)
        return "value"

    task = spawn(body(), pool=pool)

    def cancel(seconds: float) -> None:
        s.sleep(seconds)
        task.cancel()
        s.expect(end_of(task) == "cancelled", "the second sleep is long")
        s.expect(s.now - began < 2.0, "in time")
        s.expect(pool.ready.timers.armed() == 0, "its timer has gone with it")

    s.thread("at the deadline", cancel, 1.0)
    s.thread("at once", cancel, 0.0)
    s.check("nothing is left", lambda: nothing_left(pool))
    s.check("the count of dead timers is right", lambda: pool.ready.timers._dead == len(pool.ready.timers._heap) == 0)


def test_timer_against_cancel() -> None:
    run_random(timer_against_cancel, 200)
    run_exhaustive(timer_against_cancel, preemptions=1, switches=0)
    run_lines(timer_against_cancel, MODULES)


def cancel_again(s: Scenario) -> None:
    """A task that goes on after a cancel waits for the next thing; what it gave up does not wake it."""
    pool = make_pool(s, 1)
    first, second = Completion[int](pool), Completion[int](pool)
    steps = Steps(s)

    async def body() -> str:
        try:
            await first
        except Cancelled:
            steps.step("cancelled")
        await second
        s.expect(second.done(), "a wait ends when it is over")
        steps.step("second")
        return "value"

    task = spawn(body(), pool=pool)
    s.thread("canceller", task.cancel)
    s.thread("first", first.succeed, 1)
    s.thread("second", second.succeed, 2)
    s.check("it ended", lambda: task.done() and steps.log.count("second") <= 1)
    s.check("nothing is left", lambda: nothing_left(pool) and not first._wakers and not second._wakers)
    s.check("what it awaited is let go", lambda: task._awaiting is None)


def test_cancel_again() -> None:
    run_random(cancel_again, 200)
    run_exhaustive(cancel_again, preemptions=1, switches=0)
    run_lines(cancel_again, MODULES)


def cancel_against_the_wait(s: Scenario) -> None:
    """A cancel just before, in, or after the beginning of a wait that never ends: cancelled, and no waker stays behind."""
    pool = make_pool(s, 1)
    never: Completion[int] = Completion(pool)

    async def body() -> None:
        await never

    task = spawn(body(), pool=pool)
    s.thread("canceller", task.cancel)
    s.thread("waiter", lambda: s.expect(end_of(task) == "cancelled", "cancelled"))
    s.check("nothing is left", lambda: nothing_left(pool) and not never._wakers)


def test_cancel_against_the_wait() -> None:
    run_random(cancel_against_the_wait, 150)
    run_exhaustive(cancel_against_the_wait, preemptions=1, switches=1)


class Stubborn(Suspension):
    """Its end is on the way already when a waker is taken back."""

    def __init__(self) -> None:
        self.wakers: list[Waker] = []

    def add_waker(self, waker: Waker) -> bool:
        self.wakers.append(waker)
        return True

    def remove_waker(self, waker: Waker) -> None:
        """Too late."""

    def __await__(self) -> Generator[Suspension]:
        yield self


def a_late_end(s: Scenario) -> None:
    """The end of a wait that was given up does not end the next one."""
    pool = make_pool(s, 1)
    first, second = Stubborn(), Completion[int](pool)
    ended: list[bool] = []

    async def body() -> None:
        try:
            await first
        except Cancelled:
            await second
        s.expect(second.done(), "a wait ends when it is over")
        ended.append(True)

    task = spawn(body(), pool=pool)

    def cancel() -> None:
        s.sleep(1.0)  # until it waits
        task.cancel()
        s.sleep(1.0)
        for waker in first.wakers:
            waker(first)
        s.sleep(1.0)
        s.thread_now("second", second.succeed, 1)

    s.thread("canceller", cancel)
    s.check("in order", lambda: task.done() and ended == [True])


def test_a_late_end() -> None:
    run_random(a_late_end, 150)
    run_exhaustive(a_late_end, preemptions=1)


def one_coroutine_two_tasks(s: Scenario) -> None:
    """Two threads spawn the same coroutine: one of them gets it, the other one an error."""
    pool = make_pool(s, 1)
    steps = Steps(s)
    ends: list[str] = []

    gate: Completion[int] = Completion(pool)

    async def body() -> str:
        steps.step("begin")
        await gate
        return "value"

    def start(coroutine: Coroutine[Any, Any, str]) -> None:
        try:
            task = spawn(coroutine, pool=pool)
        except InvalidOperation:
            ends.append("refused")
            gate.succeed(1)
        else:
            ends.append(end_of(task))
            s.expect(pool.tasks.count() == 0, "who sees the outcome finds the coroutine released")

    coroutine = body()
    claims_before = claims.count()
    s.thread("a", start, coroutine)
    s.thread("b", start, coroutine)
    s.check("one wins", lambda: sorted(ends) == ["refused", "value"])
    s.check("it ran once", lambda: steps.log == ["begin"])
    s.check("nobody keeps a claim", lambda: claims.count() == claims_before)
    s.check("nothing is left", lambda: nothing_left(pool))


def test_one_coroutine_two_tasks() -> None:
    run_random(one_coroutine_two_tasks, 150)
    run_lines(one_coroutine_two_tasks, MODULES)


def failures_seen_and_unseen(s: Scenario) -> None:
    """A failure that somebody looks at as soon as there is one is not reported, one that nobody looks at is, once."""
    pool = make_pool(s, 1)
    told: list[str] = []
    tasks_module.report_unseen_failures_to(lambda name, _: told.append(name.rsplit(".")[-1]))

    async def seen(self: list[Task[None]]) -> None:
        while not self:
            await yield_now()
        with pytest.raises(InvalidOperation):
            self.pop().result()
        spawn(unseen())  # here: on the thread that drops it, or the interpreter lets it live until this one runs again
        raise ValueError

    async def unseen() -> None:
        raise ValueError

    def look() -> None:
        known: list[Task[None]] = []
        task = spawn(seen(known), pool=pool)
        known.append(task)
        with pytest.raises(ValueError):  # noqa: PT011
            task.result()

    s.thread("looks", look)

    def reported() -> bool:
        pool.close()
        return told == ["unseen"]

    s.check("one is told", reported)


def test_failures_seen_and_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "_hook", tasks_module._hook)
    run_random(failures_seen_and_unseen, 40)
    run_lines(failures_seen_and_unseen, MODULES[:1], 30)
