"""Tasks (design 2.4): spawn, yield, sleep, block_on, spawn_local, what they are given, and what becomes of it."""

from __future__ import annotations

import contextvars
import math
import threading
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from background import Gate
from pools import value_of
from support import PATIENCE, eventually, together

from zlink_nogil import task
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool


async def failing(error: BaseException) -> None:
    raise error


async def thread_of() -> threading.Thread:
    return threading.current_thread()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


@pytest.fixture
def run(pool: WorkerPool) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """In a task on the pool, not on the calling thread."""
    return lambda coroutine: task.spawn(coroutine, pool=pool).result(PATIENCE)


@pytest.fixture
def never(pool: WorkerPool) -> Completion[Any]:
    return Completion(pool)


# -- results --------------------------------------------------------------------------------------------------------


def test_a_task_gives_what_its_coroutine_returns(pool):
    spawned = task.spawn(value_of("x"), pool=pool)
    assert spawned.result(PATIENCE) == "x"
    assert (spawned.done(), spawned.cancelled(), spawned.exception()) == (True, False, None)


def test_a_task_is_awaited_by_many_at_once(run):
    async def main() -> list[int]:
        children = [task.spawn(value_of(1)) for _ in range(3)]
        return [await child for child in (*children, *children)]

    assert run(main()) == [1] * 6


def test_a_failure_is_raised_where_it_is_awaited_each_time_afresh(run):
    async def main() -> None:
        child = task.spawn(failing(ValueError("x")))
        seen = []
        for _ in range(2):
            with pytest.raises(ValueError, match="x") as caught:
                await child
            seen.append(caught.value)
        assert seen[0] is not seen[1]

    run(main())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_any_exception_is_the_tasks_and_not_the_workers(pool, error):
    assert type(task.spawn(failing(error), pool=pool).exception(PATIENCE)) is type(error)
    assert task.spawn(value_of(), pool=pool).result(PATIENCE) == 1


def test_stop_iteration_out_of_a_coroutine_is_a_runtime_error(pool):
    assert isinstance(task.spawn(failing(StopIteration(1)), pool=pool).exception(PATIENCE), RuntimeError)


class Peculiar(Exception):
    """Neither copied nor pickled: holds a lock, wants two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def test_an_error_that_can_be_neither_copied_nor_pickled_gets_through(pool):
    error = task.spawn(failing(Peculiar(1, 2)), pool=pool).exception(PATIENCE)
    assert isinstance(error, Peculiar)
    assert str(error) == "1 and 2"


def test_a_callback_and_a_future_of_a_task(pool):
    called: list[Any] = []
    spawned = task.spawn(value_of(5), pool=pool)
    spawned.add_done_callback(lambda done: called.append(done.result()))
    assert spawned.as_future().result(PATIENCE) == 5
    eventually(lambda: called == [5])


def test_the_name_and_the_state_are_told(pool):
    gate = Gate()

    async def held() -> None:
        gate()

    spawned = task.spawn(held(), pool=pool)
    gate.wait_begun()
    assert "held" in spawned.name
    assert "running" in repr(spawned)
    gate.open()
    spawned.result(PATIENCE)
    assert "succeeded" in repr(spawned)


# -- wrong arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [task.spawn, task.spawn_local, task.block_on])
@pytest.mark.parametrize(
    ("wrong", "hint"), [(value_of, "call it"), (3, "int"), (None, "None"), ((x for x in ()), "generator")]
)
def test_what_is_no_coroutine_is_refused_by_name(start, wrong, hint):
    with pytest.raises(TypeError, match=hint):
        start(wrong)


def test_a_coroutine_somebody_steps_is_refused(pool):
    @types.coroutine
    def pause() -> Iterator[None]:
        yield

    async def stepped() -> None:
        await pause()

    coroutine = stepped()
    coroutine.send(None)
    with pytest.raises(InvalidOperation, match="already"):
        task.spawn(coroutine, pool=pool)
    coroutine.close()


def test_the_same_coroutine_is_taken_once(pool):
    gate = Gate()

    async def held() -> int:
        gate()
        return 1

    coroutine = held()
    *outcomes, first = together(*[lambda: task.spawn(coroutine, pool=pool)] * 8, lambda: task.spawn(coroutine, pool=pool))
    tasks = [outcome for outcome in (*outcomes, first) if isinstance(outcome, task.Task)]
    assert len(tasks) == 1
    assert sum(isinstance(outcome, InvalidOperation) for outcome in (*outcomes, first)) == 8
    gate.wait_begun()
    with pytest.raises(InvalidOperation, match="already"):
        task.spawn(coroutine, pool=pool)
    gate.open()
    assert tasks[0].result(PATIENCE) == 1
    with pytest.raises(RuntimeError, match="already"):
        task.spawn(coroutine, pool=pool).result(PATIENCE)
    assert pool.statistics().tasks == 0


@pytest.mark.parametrize("wrong", ["1", None, True, False, 1j, [1]])
def test_a_time_is_a_number(wrong):
    with pytest.raises(TypeError, match="number"):
        task.sleep(wrong)


def test_a_time_is_not_nan_nor_too_big_for_a_float():
    with pytest.raises(ValueError, match="NaN"):
        task.sleep(math.nan)
    with pytest.raises(OverflowError):
        task.sleep(10**400)


def test_a_closed_pool_refuses_tasks():
    pool = WorkerPool(1)
    pool.close()
    coroutine = value_of()
    with pytest.raises(ShuttingDown, match="closed"):
        task.spawn(coroutine, pool=pool)
    assert pool.statistics().tasks == 0
    coroutine.close()


# -- yielding and sleeping ------------------------------------------------------------------------------------------


def test_yield_now_lets_another_one_go_first():
    ran: list[str] = []

    async def note(name: str, times: int) -> None:
        for _ in range(times):
            ran.append(name)
            await task.yield_now()

    async def main() -> None:
        await task.join(note("a", 3), note("b", 3))

    with WorkerPool(1) as pool:
        task.spawn(main(), pool=pool).result(PATIENCE)
    assert ran == ["a", "b"] * 3


@pytest.mark.parametrize("seconds", [0, 0.0, -1, -math.inf, 1e-9, 0.01])
def test_sleep_comes_back(run, seconds):
    async def main() -> str:
        await task.sleep(seconds)
        return "awake"

    assert run(main()) == "awake"


@pytest.mark.parametrize("seconds", [1e12, 1e300, math.inf])
def test_a_sleep_longer_than_any_clock_can_be_cancelled_and_delays_nobody(pool, seconds):
    async def main() -> None:
        await task.sleep(seconds)

    sleeper = task.spawn(main(), pool=pool)
    eventually(lambda: pool.statistics().timers == 1)

    async def canary() -> None:
        await task.sleep(0.001)

    task.spawn(canary(), pool=pool).result(PATIENCE)
    assert sleeper.cancel()
    sleeper.exception(PATIENCE)
    assert sleeper.cancelled()
    assert pool.statistics().timers == 0


def test_who_sleeps_less_wakes_first(run):
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await task.sleep(seconds)
        woken.append(seconds)

    async def main() -> None:
        await task.join(*[sleeper(seconds) for seconds in (0.06, 0.03, 0.0)])

    run(main())
    assert woken == [0.0, 0.03, 0.06]


# -- what may be awaited --------------------------------------------------------------------------------------------


def test_a_task_that_awaits_itself_is_told(pool):
    given: list[task.Task[Any]] = []
    known = Gate()

    async def selfish(wait: Callable[[], Any]) -> None:
        known()
        with pytest.raises(InvalidOperation, match="itself"):
            await given[-1]
        with pytest.raises(InvalidOperation, match="itself"):
            given[-1].result()
        with pytest.raises(InvalidOperation, match="itself"):
            task.run_blocking(wait)
        with pytest.raises(InvalidOperation, match="itself"):
            given[-1].result()  # with or without its place

    given.append(task.spawn(selfish(lambda: given[-1].result()), pool=pool))  # noqa: PLW0108 - not there yet
    known.open()
    given[-1].result(PATIENCE)


def test_a_strange_awaitable_is_an_error_that_names_the_bridge(run):
    @types.coroutine
    def strange() -> Iterator[str]:
        yield "for another loop"

    async def main() -> str:
        for _ in range(2):
            with pytest.raises(InvalidOperation, match="from_asyncio"):
                await strange()
        return "goes on"

    assert run(main()) == "goes on"


def test_asyncio_without_its_loop_is_an_error_that_names_the_bridge(pool):
    import asyncio

    error = task.spawn(asyncio.sleep(1), pool=pool).exception(PATIENCE)
    assert isinstance(error, RuntimeError)
    assert "from_asyncio" in str(error.__notes__)


def test_deep_chains(run, pool):
    async def nested(depth: int) -> int:
        if depth == 0:
            await task.yield_now()
            return 0
        return await nested(depth - 1) + 1

    async def chained(depth: int) -> int:
        return await task.spawn(chained(depth - 1)) + 1 if depth else 0

    async def broken(depth: int) -> int:
        if depth == 0:
            raise ValueError("deep")
        return await task.spawn(broken(depth - 1))

    assert run(nested(300)) == 300
    assert run(chained(2000)) == 2000
    with pytest.raises(ValueError, match="deep"):
        run(broken(300))
    assert pool.statistics().tasks == 0


def test_ten_thousand_children(run, pool):
    async def child(number: int) -> int:
        await task.yield_now()
        return number

    async def main() -> int:
        children = [task.spawn(child(number)) for number in range(10_000)]
        return sum([await child for child in children])

    assert run(main()) == sum(range(10_000))
    assert pool.statistics().tasks == 0


# -- context variables, generators ----------------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


def test_context_variables_follow_a_task_and_do_not_leak(run):
    async def child(name: str) -> str:
        assert variable.get() == "parent's"
        variable.set(name)
        for _ in range(20):
            await task.yield_now()
            assert variable.get() == name
        return task.run_blocking(variable.get)

    async def main() -> None:
        variable.set("parent's")
        names = [f"child {number}" for number in range(20)]
        assert await task.join(*[child(name) for name in names]) == names
        assert variable.get() == "parent's"
        assert await task.spawn_blocking(variable.get) == "parent's"

    run(main())
    assert variable.get() == "nobody's"
    assert run(value_of_variable()) == "nobody's"


async def value_of_variable() -> str:
    return variable.get()


def test_finally_blocks_of_generators_run():
    closed: list[str] = []

    async def numbers(name: str) -> AsyncGenerator[int]:
        try:
            while True:
                await task.yield_now()
                yield 1
        finally:
            closed.append(name)

    def plain() -> Iterator[int]:
        try:
            yield 1
        finally:
            closed.append("plain")

    async def main() -> None:
        async for _ in numbers("left"):
            break
        generator = plain()
        next(generator)
        async for _ in numbers("raised"):
            raise ValueError

    with WorkerPool(1) as pool:
        assert isinstance(task.spawn(main(), pool=pool).exception(PATIENCE), ValueError)
        # What a sleeping thread made and another one dropped goes when that thread wakes: biased reference counts.
        task.spawn(value_of(), pool=pool).result(PATIENCE)
        eventually(lambda: sorted(closed) == ["left", "plain", "raised"])
