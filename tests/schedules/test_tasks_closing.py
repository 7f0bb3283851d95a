"""Tasks under every schedule of a pool that closes."""

from __future__ import annotations

import pytest

from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.scheduler import Completion, claims
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler.spawning import sleep, spawn, yield_now
from zlink_nogil.scheduler.task_table import release
from zlink_nogil.scheduler.tasks import Task

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .steps import Steps, end_of, make_pool, nothing_left

MODULES = ["zlink_nogil.scheduler.tasks", "zlink_nogil.scheduler.task_table", "zlink_nogil.scheduler.spawning"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)


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


def a_claim_that_is_taken_back(s: Scenario) -> None:
    """A worker that saw a task in the table, and stays for it, is told when the spawn is refused."""
    pool = make_pool(s, 1)
    pool.start()

    async def body() -> None:
        """Nothing."""

    def start() -> None:
        coroutine = body()
        try:
            spawn(coroutine, pool=pool)
        except ShuttingDown:
            coroutine.close()

    s.thread("a", start)
    s.thread("closer", pool.close)
    s.check("nothing is left", lambda: nothing_left(pool))


def test_a_claim_that_is_taken_back() -> None:
    run_random(a_claim_that_is_taken_back, 100)
    run_exhaustive(a_claim_that_is_taken_back, preemptions=1, switches=1)


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


def a_task_that_ends_as_the_workers_are_told(s: Scenario) -> None:
    """A worker that is told of the close, and stays for the last task, is told of its end."""
    pool = make_pool(s, 2)
    gate: Completion[int] = Completion(pool)

    async def body() -> None:
        await gate

    def open_gate() -> None:
        s.world.wait("the workers are told", None, lambda: pool.ready.closed)
        gate.succeed(1)

    spawn(body(), pool=pool)
    s.thread("opens", open_gate)
    s.thread("closer", pool.close)
    s.check("it ended", lambda: nothing_left(pool))


def test_a_task_that_ends_as_the_workers_are_told() -> None:
    run_exhaustive(a_task_that_ends_as_the_workers_are_told, preemptions=1, switches=0)


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


def a_coroutine_that_is_given_back(s: Scenario) -> None:
    """A closing pool refuses it to one thread and takes it from another: it is in the table as long as it is not over."""
    pool = make_pool(s, 1)
    table = pool.tasks

    async def body() -> None:
        """Nothing."""

    coroutine = body()
    taken: list[bool] = []

    def take(refused: bool) -> None:
        try:
            shard = table.add(coroutine, Task(pool, coroutine))
        except InvalidOperation:
            return
        if refused:
            release(shard, coroutine)
        else:
            taken.append(True)

    def clean_up() -> bool:
        right = table.count() == len(taken)
        claims.release(coroutine)
        coroutine.close()
        return right

    s.thread("refused", take, True)
    s.thread("accepted", take, False)
    s.check("in the table", clean_up)


def test_a_coroutine_that_is_given_back() -> None:
    run_random(a_coroutine_that_is_given_back, 60)
