"""`SerialExecutionQueue` with `async def` handlers (design 3.4): suspending, resuming, cancelling, closing."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, outcome, together

from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation, ShuttingDown, Unavailable
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Of one worker: when something else has run on it, whoever was before that has suspended or ended."""
    with WorkerPool(1) as pool:
        yield pool


def let_others_run(pool: WorkerPool) -> None:
    assert SerialExecutionQueue(pool=pool).enqueue(lambda: "others run").result(PATIENCE) == "others run"


class Waiting:
    """A queue whose handler is suspended in `await self.awaited`, by default; it notes what happens to it."""

    def __init__(self, pool: WorkerPool, body: Callable[[Waiting], Coroutine[Any, Any, Any]] | None = None) -> None:
        self.pool = pool
        self.queue = SerialExecutionQueue(pool=pool, name="waiting")
        self.awaited: Completion[Any] = Completion(pool)
        self.second: Completion[Any] = Completion(pool)
        self.seen: list[Any] = []
        self._body = body
        self.handled = self.queue.enqueue(self._handle)
        let_others_run(pool)

    async def _handle(self) -> Any:
        try:
            return await (self.awaited if self._body is None else self._body(self))
        except BaseException as error:
            self.seen.append(type(error))
            raise
        finally:
            self.seen.append("cleaned up" if self.queue.is_current() else "cleaned up off the turn")

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.seen.append(name)

    def next_runs(self) -> None:
        """One resume, not none and not two: the queue goes on."""
        assert self.queue.enqueue(lambda: "next").result(PATIENCE) == "next"
        self.queue.await_quiescence().result(PATIENCE)
        assert self.queue.is_idle()
        assert self.queue.reserved() == (0, 0)


# -- suspending and resuming ----------------------------------------------------------------------------------------


def test_await_keeps_the_turn_and_lets_other_owners_go_on(pool):
    waiting = Waiting(pool)
    for enqueue in (waiting.queue.enqueue, waiting.queue.enqueue_lifecycle, waiting.queue.enqueue_barrier_next):
        enqueue(waiting.note(enqueue.__name__))
    let_others_run(pool)
    assert (waiting.seen, waiting.handled.done()) == ([], False)
    assert waiting.queue.reserved()[0] == 4, "the suspended one has not finished"
    waiting.awaited.succeed(7)
    assert waiting.handled.result(PATIENCE) == 7
    waiting.queue.await_quiescence().result(PATIENCE)
    assert waiting.seen == ["cleaned up", "enqueue_barrier_next", "enqueue_lifecycle", "enqueue"]
    waiting.next_runs()


def test_the_awaited_error_is_raised_at_the_await(pool):
    async def body(waiting: Waiting) -> str:
        with pytest.raises(Unavailable, match="gone"):
            await waiting.awaited
        return await waiting.second

    waiting = Waiting(pool, body)
    waiting.awaited.fail(Unavailable("gone"))
    waiting.second.succeed("caught")
    assert waiting.handled.result(PATIENCE) == "caught"


@pytest.mark.parametrize("error", [ValueError("after the wait"), SystemExit("after the wait")])
def test_a_handler_that_fails_after_a_wait_does_not_stop_its_queue(pool, error):
    async def body(waiting: Waiting) -> None:
        await waiting.awaited
        raise error

    waiting = Waiting(pool, body)
    waiting.awaited.succeed(1)
    assert type(outcome(waiting.handled)) is type(error)
    waiting.next_runs()


def test_awaiting_what_is_there_already_does_not_suspend(pool):
    async def body(waiting: Waiting) -> int:
        waiting.awaited.succeed(1)
        waiting.queue.enqueue_barrier_next(waiting.note("barrier"))
        total = sum([await waiting.awaited for _ in range(100)])
        waiting.seen.append("summed")
        return total

    waiting = Waiting(pool, body)
    assert waiting.handled.result(PATIENCE) == 100
    waiting.next_runs()
    assert waiting.seen == ["summed", "cleaned up", "barrier"]


def test_wakes_and_cancels_at_the_same_instant_step_it_once():
    with WorkerPool(2) as pool:
        for _ in range(25):
            steps: list[str] = []
            queue, awaited = SerialExecutionQueue(pool=pool), Completion[int](pool)

            async def handler(awaited: Completion[int] = awaited, steps: list[str] = steps) -> None:
                try:
                    await awaited
                finally:
                    steps.append("stepped")

            handled = queue.enqueue(handler)
            ends = together(*[lambda a=awaited: a.succeed(1)] * 3, handled.cancel, handled.cancel)
            assert ends[:3].count(True) == 1
            ended = outcome(handled)
            assert ended is None or (isinstance(ended, Cancelled) and True in ends[3:])
            assert queue.enqueue(lambda: "next").result(PATIENCE) == "next"
            assert steps in ([], ["stepped"])
            assert steps or isinstance(ended, Cancelled), "cancelled before it began"


def test_context_variables_stay_with_the_handler_and_do_not_leak(pool):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")

    async def body(waiting: Waiting) -> list[str]:
        seen = [variable.get()]
        variable.set("the handler's")
        await waiting.awaited
        return [*seen, variable.get()]

    waiting = contextvars.copy_context().run(lambda: (variable.set("the submitter's"), Waiting(pool, body))[1])
    assert SerialExecutionQueue(pool=pool).enqueue(variable.get).result(PATIENCE) == "nobody's"
    contextvars.copy_context().run(lambda: (variable.set("the completer's"), waiting.awaited.succeed(1)))
    assert waiting.handled.result(PATIENCE) == ["the submitter's", "the handler's"]
    assert waiting.queue.enqueue(variable.get).result(PATIENCE) == "nobody's"


# -- what cannot be awaited -----------------------------------------------------------------------------------------


class Yields:
    def __await__(self) -> Generator[object]:
        yield object()


def asyncio_future() -> asyncio.Future[None]:
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


@pytest.mark.parametrize("awaitable", [asyncio_future, Yields, lambda: asyncio.sleep(0)])
def test_a_foreign_awaitable_is_an_error_that_names_the_bridge_not_a_hang(pool, awaitable):
    async def body(waiting: Waiting) -> Any:
        with pytest.raises(InvalidOperation, match="as_future"):
            await awaitable()
        return await waiting.second

    waiting = Waiting(pool, body)
    waiting.second.succeed("the handler goes on")
    assert waiting.handled.result(PATIENCE) == "the handler goes on"
    waiting.next_runs()


@pytest.mark.parametrize("way", ["await", "result", "quiescence"])
def test_waiting_for_oneself_raises_at_the_wait(pool, way):
    quiet: list[Completion[None]] = []

    async def body(waiting: Waiting) -> Completion[Any]:
        await waiting.awaited
        submitted = waiting.queue.enqueue(lambda: "submitting is legal")
        with pytest.raises(InvalidOperation, match="'waiting'"):
            await {"await": submitted, "quiescence": quiet[0]}[way] if way != "result" else submitted.result()
        return submitted

    waiting = Waiting(pool, body)
    quiet.append(waiting.queue.await_quiescence())
    waiting.awaited.succeed(1)
    assert waiting.handled.result(PATIENCE).result(PATIENCE) == "submitting is legal"
    quiet[0].result(PATIENCE)


def test_a_coroutine_that_another_turn_runs_is_refused(pool):
    awaited = Completion[int](pool)

    async def handler() -> int:
        return await awaited

    shared = handler()

    async def awaits_it() -> int:
        return await shared

    first, second, third = (SerialExecutionQueue(pool=pool) for _ in range(3))
    running = first.enqueue(lambda: shared)
    let_others_run(pool)
    with pytest.raises(InvalidOperation, match="somebody runs"):
        second.enqueue(lambda: shared).result(PATIENCE)
    with pytest.raises(RuntimeError, match="awaited already"):
        third.enqueue(awaits_it).result(PATIENCE)
    awaited.succeed(7)
    assert running.result(PATIENCE) == 7, "not disturbed"


def test_an_async_generator_driven_by_two_turns_is_a_clean_error(pool):
    async def numbers(awaited: Completion[int]) -> AsyncGenerator[int]:
        yield await awaited

    awaited = Completion[int](pool)
    steps = numbers(awaited)

    async def step() -> int:
        return await anext(steps)

    first = SerialExecutionQueue(pool=pool).enqueue(step)
    let_others_run(pool)
    with pytest.raises(RuntimeError, match="already running"):
        SerialExecutionQueue(pool=pool).enqueue(step).result(PATIENCE)
    awaited.succeed(7)
    assert first.result(PATIENCE) == 7


# -- cancelling -----------------------------------------------------------------------------------------------------


def test_cancelled_while_waiting_it_ends_before_the_next_turn_begins(pool):
    waiting = Waiting(pool)
    waiting.queue.enqueue_lifecycle(waiting.note("stop hook"))
    assert waiting.handled.cancel()
    assert isinstance(outcome(waiting.handled), Cancelled)
    waiting.queue.await_quiescence().result(PATIENCE)
    assert waiting.seen == [Cancelled, "cleaned up", "stop hook"]
    assert waiting.awaited.succeed(1), "what it awaited is left alone"
    waiting.next_runs()


def test_a_handler_may_catch_the_cancel_and_wait_again(pool):
    """And the late outcome of the first wait does not end the second one."""

    async def body(waiting: Waiting) -> Any:
        with pytest.raises(Cancelled):
            await waiting.awaited
        return await waiting.second

    waiting = Waiting(pool, body)
    waiting.handled.cancel()
    let_others_run(pool)
    waiting.awaited.succeed("late")
    let_others_run(pool)
    assert not waiting.handled.done()
    waiting.second.succeed("second")
    assert waiting.handled.result(PATIENCE) == "second"
    waiting.next_runs()


def test_a_cancel_while_it_runs_is_raised_at_its_next_wait(pool):
    gate = Gate()

    async def body(waiting: Waiting) -> None:
        await waiting.awaited
        gate()
        waiting.seen.append("went on")
        await waiting.second

    waiting = Waiting(pool, body)
    waiting.awaited.succeed(1)
    gate.wait_begun()
    assert waiting.handled.cancel()
    gate.open()
    assert isinstance(outcome(waiting.handled), Cancelled)
    assert waiting.seen == ["went on", Cancelled, "cleaned up"]
    waiting.next_runs()


def test_a_cancel_between_the_outcome_and_the_resumption_is_not_lost(pool):
    waiting, gate = Waiting(pool), Gate()
    SerialExecutionQueue(pool=pool).enqueue(gate)  # nobody is left to resume it
    gate.wait_begun()
    waiting.awaited.succeed(1)
    assert waiting.handled.cancel()
    gate.open()
    assert isinstance(outcome(waiting.handled), Cancelled)
    waiting.next_runs()


# -- quiescence and closing -----------------------------------------------------------------------------------------


def test_quiescence_waits_for_suspended_work(pool):
    waiting = Waiting(pool)
    quiet = waiting.queue.await_quiescence()
    let_others_run(pool)
    assert not quiet.done()
    assert not waiting.queue.is_idle()
    assert not waiting.queue.retire()
    waiting.awaited.succeed(1)
    quiet.result(PATIENCE)
    assert waiting.handled.done()


def test_close_lets_a_suspended_handler_go_on_with_its_result(pool):
    waiting = Waiting(pool)
    waiting.queue.enqueue(waiting.note("accepted"))
    close = Background(waiting.queue.close, PATIENCE)
    waiting.awaited.succeed(7)
    close.result()
    assert waiting.handled.result(0) == 7
    assert waiting.seen == ["cleaned up", "accepted"]


def test_when_the_time_is_over_shutting_down_is_raised_at_the_await(pool):
    async def body(waiting: Waiting) -> str:
        for awaited in (waiting.awaited, waiting.second):  # a wait in its clean-up has no better luck
            with pytest.raises(ShuttingDown, match="'waiting'"):
                await awaited
        return "to its end"

    waiting, gate = Waiting(pool, body), Gate()
    behind = [waiting.queue.enqueue(pytest.fail), waiting.queue.enqueue_lifecycle(pytest.fail)]
    SerialExecutionQueue(pool=pool).enqueue(gate)  # or it might be over before the second wait of `close` begins
    gate.wait_begun()
    with pytest.raises(DeadlineExceeded):
        waiting.queue.close(0)
    assert [type(outcome(completion)) for completion in behind] == [ShuttingDown] * 2
    gate.open()
    waiting.queue.close(PATIENCE)
    assert waiting.handled.result(0) == "to its end"
    assert waiting.queue.reserved() == (0, 0)


def test_a_suspended_turn_of_a_closed_pool_is_resumed_by_its_outcome():
    with WorkerPool(1) as pool:

        async def body(waiting: Waiting) -> str:
            value = await waiting.awaited
            with pytest.raises(ShuttingDown):
                await waiting.second  # nobody is left to wait with
            return value

        waiting = Waiting(pool, body)
        behind = waiting.queue.enqueue(pytest.fail)
    waiting.awaited.succeed("resumed")
    assert waiting.handled.result(PATIENCE) == "resumed"
    assert isinstance(outcome(behind), ShuttingDown)
    assert waiting.queue.is_idle()


def test_a_suspended_turn_of_a_closed_pool_is_unwound_by_close():
    with WorkerPool(1) as pool:
        waiting = Waiting(pool)
    try:
        waiting.queue.close(0)
    except DeadlineExceeded:
        pytest.fail("this thread unwinds it")
    assert isinstance(outcome(waiting.handled), ShuttingDown)
    assert waiting.seen == [ShuttingDown, "cleaned up"]
