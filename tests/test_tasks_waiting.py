"""`join`, `race`, `timeout` (design 2.4): results, and that who gives up has cancelled and awaited what it was given."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from background import Gate
from pools import value_of
from support import PATIENCE, eventually

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation
from zlink_nogil.scheduler import Completion, WorkerPool

type Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool
        assert (pool.statistics().tasks, pool.statistics().timers) == (0, 0), "what was given up has ended"


@pytest.fixture
def run(pool: WorkerPool) -> Run:
    return lambda coroutine: task.spawn(coroutine, pool=pool).result(PATIENCE)


@pytest.fixture
def never(pool: WorkerPool) -> Iterator[Completion[Any]]:
    never: Completion[Any] = Completion(pool)
    yield never
    eventually(lambda: not never._wakers, "nothing waits for it any more")


async def failing(text: str) -> None:
    raise ValueError(text)


class Child:
    """Waits for ever; cancelled, it takes its time to unwind, and then says so."""

    def __init__(self, never: Completion[Any]) -> None:
        self.never = never
        self.begun = threading.Event()
        self.unwinding = threading.Event()
        self.ended = False
        self.let_go: Completion[None] = Completion(never._pool)

    async def __call__(self) -> None:
        try:
            self.begun.set()
            await self.never
        finally:
            self.unwinding.set()
            await self.let_go
            self.ended = True


@pytest.fixture
def child(never: Completion[Any]) -> Child:
    return Child(never)


# -- join -----------------------------------------------------------------------------------------------------------


def test_join_gives_the_results_in_order(run, pool):
    completion: Completion[str] = Completion(pool)

    async def main() -> list[Any]:
        completion.succeed("completion")
        return await task.join(value_of("coroutine"), task.spawn(value_of("task")), completion, task.sleep(0.001))

    assert run(main()) == ["coroutine", "task", "completion", None]
    assert run(task.join()) == []


def test_join_waits_for_all_and_raises_the_first_error_in_order(run):
    ran: list[str] = []

    async def slow() -> None:
        await task.sleep(0.01)
        ran.append("slow")

    async def main() -> None:
        await task.join(slow(), failing("first"), failing("second"))

    task.report_unseen_failures_to(lambda *_: None)  # of the second
    with pytest.raises(ValueError, match="first"):
        run(main())
    assert ran == ["slow"]


def test_join_and_race_take_the_same_one_twice(run):
    async def main() -> tuple[Any, Any]:
        child = task.spawn(value_of(1))
        return await task.join(child, child), await task.race(child, child)

    assert run(main()) == ([1, 1], 1)


@pytest.mark.parametrize("together", [task.join, task.race])
@pytest.mark.parametrize("wrong", [3, None, value_of])
def test_a_wrong_one_is_refused_and_those_before_it_are_given_up(run, child, together, wrong):
    child.let_go.succeed(None)

    async def main() -> None:
        first = task.spawn(child())
        with pytest.raises(TypeError, match="awaitable"):
            await together(first, wrong)
        assert first.done(), "cancelled and awaited"

    run(main())


def test_a_coroutine_given_twice_is_refused_and_given_up(run):
    async def main() -> None:
        coroutine = task.sleep(3600)
        slow = waits(coroutine)
        with pytest.raises(InvalidOperation, match="already"):
            await task.join(slow, slow)

    run(main())


async def waits(awaitable: Any) -> Any:
    return await awaitable


# -- race -----------------------------------------------------------------------------------------------------------


def test_the_first_wins_and_the_others_have_ended_when_race_returns(run, child):
    child.let_go.succeed(None)

    async def main() -> Any:
        winner = await task.race(child(), winning())
        assert child.ended
        return winner

    async def winning() -> str:
        while not child.begun.is_set():
            await task.yield_now()
        return "won"

    assert run(main()) == "won"


def test_an_error_wins_too(run, never):
    with pytest.raises(ValueError, match="x"):
        run(task.race(waits(never), failing("x")))


def test_a_race_of_one_over_already_and_of_none(run, never, pool):
    over: Completion[int] = Completion(pool)
    over.succeed(1)
    assert run(task.race(over)) == 1
    assert run(task.race(over, waits(never))) == 1
    assert run(task.race(waits(never), over)) == 1
    with pytest.raises(ValueError, match="none"):
        run(task.race())


def test_a_race_of_sleeps(run):
    assert run(task.race(task.sleep(3600), task.sleep(0.001))) is None


def test_a_hundred_races_at_once(run):
    async def main() -> list[int]:
        return await task.join(*[task.race(value_of(n), task.sleep(3600), task.sleep(3600)) for n in range(100)])

    assert run(main()) == list(range(100))


# -- timeout --------------------------------------------------------------------------------------------------------


def test_in_time_the_result_is_given(run):
    async def main() -> list[Any]:
        done = task.spawn(value_of("task"))
        await done
        return [
            await task.timeout(3600, value_of("coroutine")),
            await task.timeout(3600, done),
            await task.timeout(0, done),
            await task.timeout(math.inf, task.sleep(0.001)),
        ]

    assert run(main()) == ["coroutine", "task", "task", None]


def test_in_time_the_error_is_raised(run):
    with pytest.raises(ValueError, match="x"):
        run(task.timeout(3600, failing("x")))


@pytest.mark.parametrize("seconds", [0, -1, -math.inf, 1e-9, 0.01])
def test_past_the_limit_it_is_cancelled_and_has_ended(run, child, seconds):
    child.let_go.succeed(None)

    async def main() -> None:
        inner = task.spawn(child())
        while not child.begun.is_set():
            await task.yield_now()
        with pytest.raises(TimeoutError) as caught:
            await task.timeout(seconds, inner)
        assert isinstance(caught.value, DeadlineExceeded)
        assert inner.cancelled()
        assert child.ended

    run(main())


@pytest.mark.parametrize(
    ("wrong", "error"), [(math.nan, ValueError), ("1", TypeError), (True, TypeError), (None, TypeError)]
)
def test_a_limit_is_a_number(run, pool, wrong, error):
    inner: Completion[None] = Completion(pool)
    with pytest.raises(error, match="seconds"):
        run(task.timeout(wrong, inner))
    assert not inner.done(), "left alone"


def test_nested_limits_are_told_apart(run, never):
    async def inner() -> str:
        with pytest.raises(TimeoutError, match="within"):
            await task.timeout(0.01, waits(never))
        return "goes on"

    assert run(task.timeout(3600, inner())) == "goes on"


# -- giving up ------------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "join": task.join,
    "race": task.race,
    "timeout": lambda child: task.timeout(3600, child),
}


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_it_cancels_its_children_and_awaits_them(pool, child, way):
    waiting = task.spawn(WAYS[way](child()), pool=pool)
    assert child.begun.wait(PATIENCE)
    eventually(lambda: "waiting" in repr(waiting))
    waiting.cancel()
    assert child.unwinding.wait(PATIENCE)
    eventually(lambda: "waiting" in repr(waiting))
    assert not waiting.done(), "its child has not ended"
    child.let_go.succeed(None)
    assert isinstance(waiting.exception(PATIENCE), Cancelled)
    assert child.ended


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_again_it_goes_on_waiting_for_its_children(pool, child, way):
    waiting = task.spawn(WAYS[way](child()), pool=pool)
    assert child.begun.wait(PATIENCE)
    for _ in range(3):
        eventually(lambda: "waiting" in repr(waiting))
        waiting.cancel()
        assert child.unwinding.wait(PATIENCE)
        eventually(lambda: not waiting._cancelling)
    eventually(lambda: "waiting" in repr(waiting))
    assert not waiting.done(), "its child has not ended"
    child.let_go.succeed(None)
    assert isinstance(waiting.exception(PATIENCE), Cancelled)
    assert child.ended


def test_cancelled_while_it_awaits_the_losers_it_has_ended_after_them(pool, child):
    async def winning() -> None:
        while not child.begun.is_set():
            await task.yield_now()

    racing = task.spawn(task.race(child(), winning()), pool=pool)
    assert child.unwinding.wait(PATIENCE)
    eventually(lambda: "waiting" in repr(racing))
    racing.cancel()
    eventually(lambda: not racing._cancelling)
    eventually(lambda: "waiting" in repr(racing))
    child.let_go.succeed(None)
    assert isinstance(racing.exception(PATIENCE), Cancelled)
    assert child.ended


def test_a_blocking_call_that_has_begun_is_awaited(run, pool):
    gate = Gate()

    async def main() -> str:
        opening = task.spawn(open_gate())
        with pytest.raises(TimeoutError):
            await task.timeout(0.001, task.spawn_blocking(gate))
        await opening
        return "after its end"

    async def open_gate() -> None:
        while not gate.begun():
            await task.sleep(0.001)
        await task.sleep(0.01)
        gate.open()

    assert run(main()) == "after its end"
    eventually(lambda: pool.statistics().calls_running == 0)
