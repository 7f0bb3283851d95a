"""`Task` under every schedule: wakers, timers, cancel, finish, close."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler.spawning import sleep, spawn, yield_now
from zlink_nogil.scheduler.tasks import Task

from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.scheduler.tasks", "zlink_nogil.scheduler.task_table", "zlink_nogil.scheduler.spawning"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


class Steps:
    """What a coroutine did: never on two threads at once."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.inside: set[int] = set()
        self.log: list[str] = []

    def step(self, name: str) -> None:
        with self.s.alone(self.inside, "one thread steps a coroutine at a time"):
            self.log.append(name)


class Shard(dict[int, Any]):
    """A part of the table whose operations are places to switch."""

    s: Scenario

    def setdefault(self, key: int, default: Any = None) -> Any:
        self.s.step("claim")
        return super().setdefault(key, default)

    def pop(self, key: int, *default: Any) -> Any:
        self.s.step("pop")
        return super().pop(key, *default)

    def __setitem__(self, key: int, value: Any) -> None:
        self.s.step("mark")
        super().__setitem__(key, value)

    def values(self) -> Any:
        self.s.step("values")
        return super().values()


class One(tuple[Any, ...]):
    """All coroutines are in one shard, whatever their addresses."""

    def __getitem__(self, index: Any) -> Any:
        return next(iter(self))


def make_pool(s: Scenario, workers: int) -> WorkerPool:
    pool = WorkerPool(workers)
    shard = Shard()
    shard.s = s
    pool.tasks._shards = One((shard,))
    return pool


def end_of(task: Task[Any]) -> str:
    try:
        return str(task.result())
    except Cancelled:
        return "cancelled"


def nothing_left(pool: WorkerPool) -> bool:
    return pool.tasks.count() == 0 and pool.ready.timers.armed() == 0 and not pool.tasks.any()


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


def test_cancel_again() -> None:
    run_random(cancel_again, 200)
    run_exhaustive(cancel_again, preemptions=1, switches=0)
    run_lines(cancel_again, MODULES)


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

    coroutine = body()
    s.thread("a", start, coroutine)
    s.thread("b", start, coroutine)
    s.check("one wins", lambda: sorted(ends) == ["refused", "value"])
    s.check("it ran once", lambda: steps.log == ["begin"])
    s.check("nothing is left", lambda: nothing_left(pool))


def test_one_coroutine_two_tasks() -> None:
    run_random(one_coroutine_two_tasks, 150)
    run_lines(one_coroutine_two_tasks, MODULES)


def spawn_against_close(s: Scenario) -> None:
    """A spawn that races the close is refused or runs to its end; every worker leaves."""
    pool = make_pool(s, 2)
    ends: list[str] = []

    async def child() -> str:
        await yield_now()
        return "child"

    async def body() -> str:
        await sleep(1.0)
        return str(await spawn(child()))

    def start() -> None:
        coroutine = body()
        try:
            ends.append(end_of(spawn(coroutine, pool=pool)))
        except ShuttingDown:
            coroutine.close()
            ends.append("refused")

    s.thread("a", start)
    s.thread("b", start)
    s.thread("closer", pool.close)
    s.check("one end each", lambda: len(ends) == 2 and set(ends) <= {"child", "refused"})
    s.check("nothing is left", lambda: nothing_left(pool))
    s.check("every worker has left", lambda: not any(thread.is_alive() for thread in pool.threads))


def test_spawn_against_close() -> None:
    run_random(spawn_against_close, 200)
    run_exhaustive(spawn_against_close, preemptions=1, switches=0)
    run_lines(spawn_against_close, [*MODULES, "zlink_nogil.scheduler.pool"], 50)


def close_with_sleepers(s: Scenario) -> None:
    """Tasks that sleep past the time given to close are cancelled, their clean-up runs, and every thread is joined."""
    pool = make_pool(s, 2)
    steps = Steps(s), Steps(s)
    ends: list[str] = []
    never: Completion[int] = Completion(pool)

    async def sleeps(name: str, steps: Steps) -> None:
        try:
            await (sleep(100.0) if name == "a" else never)
        finally:
            await yield_now()
            steps.step(name)

    def start(name: str, steps: Steps) -> None:
        coroutine = sleeps(name, steps)
        try:
            ends.append(end_of(spawn(coroutine, pool=pool)))
        except ShuttingDown:
            coroutine.close()
            ends.append("refused")

    def close() -> None:
        pool.close(5.0)
        s.expect(not any(thread.is_alive() for thread in pool.threads), "close joins every worker")

    start_now = s.now
    s.thread("a", start, "a", steps[0])
    s.thread("b", start, "b", steps[1])
    s.thread("closer", close)
    s.check("one end each", lambda: len(ends) == 2 and set(ends) <= {"cancelled", "refused"})
    s.check("cleaned up", lambda: len(steps[0].log) + len(steps[1].log) == ends.count("cancelled"))
    s.check("in time", lambda: s.now - start_now < 7.0)
    s.check("nothing is left", lambda: nothing_left(pool))


def test_close_with_sleepers() -> None:
    run_random(close_with_sleepers, 200)
    run_exhaustive(close_with_sleepers, preemptions=1, switches=0)


def spawn_against_cancel_all(s: Scenario) -> None:
    """A spawn that races the end of all tasks is refused or cancelled: none is left to wait for ever."""
    pool = make_pool(s, 1)
    never: Completion[int] = Completion(pool)
    ends: list[str] = []

    async def body() -> None:
        await never

    def start() -> None:
        coroutine = body()
        try:
            ends.append(end_of(spawn(coroutine, pool=pool)))
        except ShuttingDown:
            coroutine.close()
            ends.append("refused")

    s.thread("a", start)
    s.thread("canceller", pool.tasks.cancel_all)
    s.check("one of the two", lambda: ends in (["refused"], ["cancelled"]))
    s.check("nothing is left", lambda: nothing_left(pool))


def test_spawn_against_cancel_all() -> None:
    run_random(spawn_against_cancel_all, 100)
    run_exhaustive(spawn_against_cancel_all, preemptions=1)
    run_lines(spawn_against_cancel_all, ["zlink_nogil.scheduler.task_table"], 100)


def a_task_that_ends_while_the_pool_closes(s: Scenario) -> None:
    """A worker that stays for the last task is told of its end, however late the close is with its mark."""
    pool = make_pool(s, 2)
    gate: Completion[int] = Completion(pool)

    async def body() -> None:
        await gate

    spawn(body(), pool=pool)
    s.thread("closer", pool.close)
    s.thread("opens", gate.succeed, 1)
    s.check("it ended", lambda: nothing_left(pool))


def test_a_task_that_ends_while_the_pool_closes() -> None:
    run_random(a_task_that_ends_while_the_pool_closes, 100)
    run_exhaustive(a_task_that_ends_while_the_pool_closes, preemptions=1, switches=0)


def tasks_that_end_while_the_pool_closes(s: Scenario) -> None:
    """The last of several tasks to end lets the workers go, whichever it is."""
    pool = make_pool(s, 2)
    gate: Completion[int] = Completion(pool)
    ended: list[int] = []

    async def body(number: int) -> None:
        await gate
        ended.append(number)

    for number in (1, 2):
        spawn(body(number), pool=pool)
    s.thread("opens", gate.succeed, 1)
    s.thread("closer", pool.close)
    s.thread("closer, too", pool.close)
    s.check("both ended", lambda: sorted(ended) == [1, 2] and nothing_left(pool))


def test_tasks_that_end_while_the_pool_closes() -> None:
    run_random(tasks_that_end_while_the_pool_closes, 200)
    run_lines(tasks_that_end_while_the_pool_closes, [*MODULES, "zlink_nogil.scheduler.ready"], 50)
