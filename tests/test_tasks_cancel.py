"""Cancelling a task (design 2.4, decision 14): at its next wait, once, `finally` included; and failures nobody looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from background import Gate
from pools import value_of
from support import PATIENCE, eventually, outcome, together

from zlink_nogil import task
from zlink_nogil.errors import Cancelled
from zlink_nogil.scheduler import Completion, WorkerPool

type Spawn = Callable[[Coroutine[Any, Any, Any]], task.Task[Any]]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, "tested") as pool:
        yield pool
        eventually(lambda: (pool.statistics().tasks, pool.statistics().timers) == (0, 0), "nothing is left")


@pytest.fixture
def spawn(pool: WorkerPool) -> Spawn:
    return lambda coroutine: task.spawn(coroutine, pool=pool)


@pytest.fixture
def never(pool: WorkerPool) -> Iterator[Completion[Any]]:
    never: Completion[Any] = Completion(pool)
    yield never
    eventually(lambda: not never._wakers, "nothing waits for it any more")


def assert_cancelled(cancelled: task.Task[Any]) -> None:
    assert isinstance(cancelled.exception(PATIENCE), Cancelled)
    assert cancelled.cancelled()
    assert not cancelled.cancel(), "it is over"
    with pytest.raises(Cancelled):
        cancelled.result()


# -- when the cancel comes ------------------------------------------------------------------------------------------


def test_before_it_begins_nothing_of_it_runs(spawn):
    gate, ran = Gate(), []

    async def held() -> None:
        gate()

    async def note() -> None:
        ran.append(1)

    spawn(held())
    gate.wait_begun()
    waiting = spawn(note())
    assert waiting.cancel()
    assert waiting.cancel(), "again: harmless"
    gate.open()
    assert_cancelled(waiting)
    assert ran == []


@pytest.mark.parametrize("kind", ["a completion", "a task", "a sleep", "a join", "a race", "a timeout", "a blocking call"])
def test_while_it_waits_its_finally_blocks_run(spawn, never, kind):
    begun, cleaned, gate = threading.Event(), [], Gate()

    async def wait_for_ever() -> None:
        try:
            begun.set()
            match kind:
                case "a completion":
                    await never
                case "a task":
                    await task.spawn(waits(never))
                case "a sleep":
                    await task.sleep(3600)
                case "a join":
                    await task.join(waits(never), waits(never))
                case "a race":
                    await task.race(waits(never), task.sleep(3600))
                case "a timeout":
                    await task.timeout(3600, waits(never))
                case "a blocking call":
                    await task.spawn_blocking(gate)
        finally:
            await task.yield_now()
            await task.sleep(0.001)
            cleaned.append(kind)

    waiting = spawn(wait_for_ever())
    assert begun.wait(PATIENCE)
    eventually(lambda: "waiting" in repr(waiting))
    assert waiting.cancel()
    assert_cancelled(waiting)
    assert cleaned == [kind]
    gate.open()
    never.abandon()  # the task that nobody owned


async def waits(completion: Completion[Any]) -> None:
    await completion


def test_while_it_runs_it_ends_at_the_next_wait(spawn):
    gate, ran = Gate(), []

    async def running() -> None:
        gate()
        ran.append("to the next wait")
        await task.yield_now()
        ran.append("further")

    cancelled = spawn(running())
    gate.wait_begun()
    assert cancelled.cancel()
    gate.open()
    assert_cancelled(cancelled)
    assert ran == ["to the next wait"]


def test_while_it_runs_for_the_last_time_it_is_too_late(spawn):
    gate = Gate("done")

    async def running() -> str:
        return gate()

    late = spawn(running())
    gate.wait_begun()
    late.cancel()
    gate.open()
    assert late.result(PATIENCE) == "done"
    assert not late.cancel()


def test_before_a_wait_that_is_over_already(spawn):
    gate = Gate()
    over: Completion[int] = Completion()
    over.succeed(1)

    async def running() -> int:
        gate()
        one = await over  # does not wait
        await task.sleep(0)
        return one

    cancelled = spawn(running())
    gate.wait_begun()
    cancelled.cancel()
    gate.open()
    assert_cancelled(cancelled)


def test_in_a_finally_block_it_interrupts_the_wait_there(spawn, never):
    in_finally, ran = threading.Event(), []

    async def unwinding() -> None:
        try:
            await never
        finally:
            try:
                in_finally.set()
                await never
            finally:
                ran.append("inner")

    cancelled = spawn(unwinding())
    eventually(lambda: "waiting" in repr(cancelled))
    cancelled.cancel()
    assert in_finally.wait(PATIENCE)
    eventually(lambda: "waiting" in repr(cancelled))
    cancelled.cancel()
    assert_cancelled(cancelled)
    assert ran == ["inner"]


def test_swallowed_it_is_over_and_the_task_goes_on(spawn, never):
    async def stubborn() -> list[str]:
        heard = []
        for _ in range(3):
            try:
                await never
            except Cancelled:
                heard.append("cancelled")
        await task.yield_now()
        return heard

    going_on = spawn(stubborn())
    for _ in range(3):
        eventually(lambda: "waiting" in repr(going_on))
        assert going_on.cancel()
        eventually(lambda: not going_on._cancelling)
    assert going_on.result(PATIENCE) == ["cancelled"] * 3
    assert not going_on.cancelled()


def test_except_exception_does_not_swallow_it(spawn, never):
    async def careless() -> None:
        try:
            await never
        except Exception:
            pytest.fail("it is no Exception")

    cancelled = spawn(careless())
    eventually(lambda: "waiting" in repr(cancelled))
    cancelled.cancel()
    assert_cancelled(cancelled)


def test_replaced_by_another_error_the_task_has_failed(spawn, never):
    async def replacing() -> None:
        try:
            await never
        finally:
            raise ValueError("in the clean-up")

    failed = spawn(replacing())
    eventually(lambda: "waiting" in repr(failed))
    failed.cancel()
    assert isinstance(failed.exception(PATIENCE), ValueError)
    assert not failed.cancelled()


def test_a_task_that_raises_it_itself_is_cancelled(spawn):
    async def giving_up() -> None:
        raise Cancelled

    assert_cancelled(spawn(giving_up()))


def test_a_task_may_cancel_itself(spawn):
    me: list[task.Task[Any]] = []
    gate = Gate()

    async def suicidal() -> None:
        gate()
        assert me[0].cancel()
        await task.sleep(3600)

    me.append(spawn(suicidal()))
    gate.open()
    assert_cancelled(me[0])


def test_who_awaits_a_cancelled_task_is_not_cancelled_itself(spawn, never):
    async def parent() -> str:
        child = task.spawn(waits(never))
        await task.yield_now()
        child.cancel()
        try:
            await child
        except Cancelled:
            return "heard"
        return "nothing"

    assert spawn(parent()).result(PATIENCE) == "heard"


def test_a_thousand_sleepers_are_cancelled_from_many_threads_at_once(spawn, pool):
    async def sleeper() -> None:
        await task.sleep(3600)

    sleepers = [spawn(sleeper()) for _ in range(1000)]

    def cancel_all() -> int:
        return sum(sleeper.cancel() for sleeper in sleepers)

    assert all(isinstance(count, int) for count in together(*[cancel_all] * 4))
    for sleeping in sleepers:
        assert_cancelled(sleeping)
    assert pool.statistics().timers == 0


def test_the_future_of_a_task_cancels_it(spawn, never):
    waiting = spawn(waits(never))
    eventually(lambda: "waiting" in repr(waiting))
    future = waiting.as_future()
    assert future.cancel()
    assert_cancelled(waiting)


# -- failures nobody looked at --------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[list[tuple[str, str]]]:
    told: list[tuple[str, str]] = []
    task.report_unseen_failures_to(lambda name, error: told.append((name, str(error))))
    yield told
    task.report_unseen_failures_to(None)


async def failing(text: str = "x") -> None:
    raise ValueError(text)


def ran_everything(spawn: Spawn) -> bool:
    """The one worker has woken, and had a look at what finalizers left."""
    for _ in range(2):
        spawn(value_of()).result(PATIENCE)
    return True


def test_a_failure_nobody_looked_at_is_reported_once(spawn, told):
    spawn(failing("forgotten"))
    eventually(lambda: ran_everything(spawn) and told == [("failing", "forgotten")])
    ran_everything(spawn)
    assert len(told) == 1


def test_a_failure_is_reported_when_the_last_one_who_could_look_drops_it(spawn, told):
    kept = spawn(failing("kept"))
    eventually(kept.done)
    ran_everything(spawn)
    assert told == []
    del kept
    eventually(lambda: ran_everything(spawn) and told == [("failing", "kept")])


LOOKS: dict[str, Callable[[Spawn, task.Task[Any]], object]] = {
    "exception": lambda _, failed: failed.exception(PATIENCE),
    "result": lambda _, failed: outcome(failed),
    "join": lambda spawn, failed: spawn(task.join(failed)).exception(PATIENCE),
    "timeout": lambda spawn, failed: spawn(task.timeout(5, failed)).exception(PATIENCE),
    "future": lambda _, failed: failed.as_future().exception(PATIENCE),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_failure_somebody_looked_at_is_not_reported(spawn, told, look):
    failed = spawn(failing("seen"))
    LOOKS[look](spawn, failed)
    del failed
    ran_everything(spawn)
    assert told == []


def test_a_cancelled_task_is_not_reported(spawn, told, never):
    waiting = spawn(waits(never))
    eventually(lambda: never._wakers)
    waiting.cancel()
    del waiting
    ran_everything(spawn)
    assert told == []


def test_a_hook_that_fails_is_logged_and_harms_nobody(spawn, caplog):
    def hook(*_: object) -> None:
        raise RuntimeError("the hook")

    task.report_unseen_failures_to(hook)
    spawn(failing())
    eventually(lambda: ran_everything(spawn) and "hook for unseen failures failed" in caplog.text)
    task.report_unseen_failures_to(None)
    spawn(failing("by default"))
    eventually(lambda: ran_everything(spawn) and "by default" in caplog.text)


def test_a_failure_that_is_dropped_when_the_pool_is_closed_is_reported_at_the_latest_by_the_next_close(told):
    pool = WorkerPool(1)
    kept = task.spawn(failing("late"), pool=pool)
    pool.close()
    del kept
    pool.close()
    assert told == [("failing", "late")]


def test_a_failure_that_was_forgotten_is_reported_when_close_returns(told):
    for number in range(20):
        with WorkerPool(2) as pool:
            task.spawn(failing(str(number)), pool=pool)
        assert told[-1] == ("failing", str(number)), "by the last worker, or by who closes"
    assert len(told) == 20
