"""`task.from_asyncio` (design 2.4): asyncio coroutines on a loop of their own; and what is said to who forgets it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from background import Background
from support import PATIENCE, child, eventually, outcome, together

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler.asyncio_bridge import AsyncioThread, default_bridge

type Start = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Completion[Any]]

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, "tested") as pool:
        yield pool


@pytest.fixture(params=["task", "handler"])
def start(request: pytest.FixtureRequest, pool: WorkerPool) -> Start:
    """Runs a coroutine function as a task, or as a handler."""
    if request.param == "task":
        return lambda work: task.spawn(work(), pool=pool)
    return SerialExecutionQueue(pool=pool).enqueue


class Ends:
    """An asyncio coroutine that waits until it is opened, and notes how it ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ends: list[str] = []
        self.opened: asyncio.Event
        self.loop: asyncio.AbstractEventLoop

    async def wait(self) -> str:
        self.opened, self.loop = asyncio.Event(), asyncio.get_running_loop()
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.ends.append("cancelled")
            raise
        self.ends.append("opened")
        return "value"

    def wait_begun(self) -> None:
        assert self.begun.wait(PATIENCE)

    def open(self) -> None:
        self.loop.call_soon_threadsafe(self.opened.set)


# -- outcomes -------------------------------------------------------------------------------------------------------


def test_the_value_of_a_coroutine_wherever_it_is_awaited(start):
    async def work() -> list[Any]:
        first = await task.from_asyncio(asyncio.sleep(0.001, "slept"))
        return [first, await task.from_asyncio(lambda: asyncio.sleep(0, "called"))]

    assert start(work).result(PATIENCE) == ["slept", "called"]
    assert task.from_asyncio(asyncio.sleep(0, "here")).result(PATIENCE) == "here"


def test_all_run_on_one_thread_at_the_same_time():
    threads: set[str] = set()
    arrived = asyncio.Barrier(20)

    async def work() -> None:
        threads.add(threading.current_thread().name)
        await arrived.wait()

    for work_done in [task.from_asyncio(work) for _ in range(20)]:
        work_done.result(PATIENCE)
    assert threads == {"zlink-asyncio"}


class OwnLayout(Exception):
    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    "error", [ValueError("x"), OwnLayout(7, text="t"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()]
)
def test_what_it_raises_is_raised_by_the_completion_and_the_loop_goes_on(start, error):
    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    async def work() -> None:
        await task.from_asyncio(fails())

    raised = outcome(start(work))
    assert (type(raised), raised.args, vars(raised)) == (type(error), error.args, vars(error))
    assert task.from_asyncio(asyncio.sleep(0, "goes on")).result(PATIENCE) == "goes on"


def test_it_sees_the_variables_of_the_caller_and_keeps_its_own(start):
    async def look() -> str:
        seen = variable.get()
        variable.set("asyncio's")
        await asyncio.sleep(0)
        return f"{seen}, {variable.get()}"

    async def work() -> list[str]:
        variable.set("the caller's")
        both = [await task.from_asyncio(look()), await task.from_asyncio(look)]
        return [*both, variable.get()]

    assert start(work).result(PATIENCE) == ["the caller's, asyncio's"] * 2 + ["the caller's"]
    assert task.from_asyncio(look).result(PATIENCE) == "nobody's, asyncio's"


def test_asyncio_awaits_what_is_ours():
    answer: Completion[str] = Completion()

    async def work() -> str:
        return await asyncio.wrap_future(answer.as_future())

    asked = task.from_asyncio(work())
    answer.succeed("answer")
    assert asked.result(PATIENCE) == "answer"
    answer = Completion()
    asked = task.from_asyncio(work())
    answer.abandon()
    assert isinstance(outcome(asked), Cancelled)


# -- cancelling -----------------------------------------------------------------------------------------------------


def test_a_cancelled_completion_ends_with_its_asyncio_task():
    ends = Ends()
    waiting = task.from_asyncio(ends.wait())
    ends.wait_begun()
    assert waiting.cancel()
    assert isinstance(outcome(waiting), Cancelled)
    assert ends.ends == ["cancelled"]
    assert not waiting.cancel()


def test_cancelled_before_it_has_begun():
    hold, held = threading.Event(), threading.Event()
    default_bridge().submit(asyncio.sleep(0)).result(PATIENCE)
    default_bridge().call(lambda: (held.set(), hold.wait(PATIENCE)))
    assert held.wait(PATIENCE)
    ends = Ends()
    waiting = task.from_asyncio(ends.wait())
    assert waiting.cancel()
    hold.set()
    assert isinstance(outcome(waiting), Cancelled)
    assert not ends.begun.is_set()


def test_who_is_cancelled_while_he_awaits_it_cancels_it_and_waits_for_its_end(start):
    ends = Ends()

    async def work() -> None:
        try:
            await task.from_asyncio(ends.wait())
        finally:
            ends.ends.append("left")

    waiting = start(work)
    ends.wait_begun()
    assert waiting.cancel()
    assert isinstance(outcome(waiting), Cancelled)
    assert ends.ends == ["cancelled", "left"]


def test_an_asyncio_task_may_decide_otherwise():
    begun = threading.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "anyway"
        return "slept"

    waiting = task.from_asyncio(stubborn)
    assert begun.wait(PATIENCE)
    assert waiting.cancel()
    assert waiting.result(PATIENCE) == "anyway"


@pytest.mark.parametrize("error", [asyncio.CancelledError, Cancelled])
def test_one_that_cancels_itself(start, error):
    async def cancels_itself() -> None:
        raise error

    async def work() -> str:
        with pytest.raises(Cancelled):
            await task.from_asyncio(cancels_itself())
        return "heard"

    assert start(work).result(PATIENCE) == "heard"


def test_dropped_at_its_wait_it_is_cancelled():
    ends = Ends()

    async def work() -> None:
        await task.from_asyncio(ends.wait())

    coroutine = work()
    coroutine.send(None)
    ends.wait_begun()
    coroutine.close()
    eventually(lambda: ends.ends == ["cancelled"])


# -- refusing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [None, 1, "coroutine", object(), Completion()])
def test_what_is_no_coroutine_is_refused(work):
    with pytest.raises(TypeError, match="a coroutine"):
        task.from_asyncio(work)


def test_a_function_that_returns_no_awaitable_fails():
    with pytest.raises(TypeError, match="awaitable, not 'int'"):
        task.from_asyncio(lambda: 7).result(PATIENCE)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        task.from_asyncio(lambda: 1 // 0).result(PATIENCE)  # type: ignore[arg-type, return-value]


def test_a_coroutine_that_runs_already_is_refused():
    answer: Completion[int] = Completion()

    async def work() -> int:
        return await answer

    coroutine = work()
    coroutine.send(None)
    with pytest.raises(InvalidOperation, match="already"):
        task.from_asyncio(coroutine)
    coroutine.close()


def test_the_loop_does_not_wait_for_itself():
    async def work(way: Callable[[Completion[Any]], Any]) -> str:
        inner = task.from_asyncio(asyncio.sleep(0))
        with pytest.raises(InvalidOperation, match="await the coroutine itself"):
            await way(inner)
        return "heard"

    async def wait(inner: Completion[Any]) -> None:
        await inner

    assert task.from_asyncio(work(Completion.result)).result(PATIENCE) == "heard"
    assert task.from_asyncio(work(wait)).result(PATIENCE) == "heard"


# -- forgetting the bridge ------------------------------------------------------------------------------------------


async def asyncio_future() -> None:
    await asyncio.Future(loop=default_bridge()._loop)


@pytest.mark.parametrize("foreign", [asyncio_future, lambda: asyncio.sleep(0), lambda: asyncio.sleep(1)])
def test_asyncio_without_the_bridge_is_an_error_that_names_it(start, foreign):
    task.from_asyncio(asyncio.sleep(0)).result(PATIENCE)

    async def work() -> None:
        await foreign()

    with pytest.raises(RuntimeError) as raised:
        start(work).result(PATIENCE)
    assert "task.from_asyncio(" in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def test_it_is_named_once(pool):
    async def sleep() -> None:
        await asyncio.sleep(1)

    async def awaits() -> None:
        await task.spawn(sleep())

    with pytest.raises(RuntimeError) as raised:
        task.spawn(awaits(), pool=pool).result(PATIENCE)
    assert len(raised.value.__notes__) == 1


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no")


def test_an_error_that_cannot_be_printed_is_left_alone(start):
    async def work() -> None:
        raise Unprintable

    assert type(outcome(start(work))) is Unprintable


# -- the end --------------------------------------------------------------------------------------------------------


def test_closing_cancels_the_tasks_and_ends_the_thread():
    bridge, ends = AsyncioThread("tested"), Ends()
    waiting = bridge.submit(ends.wait())
    ends.wait_begun()
    assert bridge.close(PATIENCE)
    assert bridge.close(PATIENCE)
    assert (ends.ends, waiting.cancelled()) == (["cancelled"], True)
    assert not bridge._thread.is_alive()  # type: ignore[union-attr]
    with pytest.raises(ShuttingDown):
        bridge.submit(ends.wait())


def test_one_that_was_never_used_is_closed():
    bridge = AsyncioThread()
    assert bridge.close()
    with pytest.raises(ShuttingDown):
        bridge.submit(asyncio.sleep(0))


def test_a_task_that_does_not_end_does_not_hold_up_close():
    bridge, ends, go = AsyncioThread("tested"), Ends(), threading.Event()

    async def stubborn() -> None:
        try:
            await ends.wait()
        finally:
            while not go.is_set():
                await asyncio.sleep(0.001)

    waiting = bridge.submit(stubborn())
    ends.wait_begun()
    assert not bridge.close(0.01)
    go.set()
    assert bridge.close(PATIENCE)
    assert isinstance(outcome(waiting), Cancelled)


def test_submits_and_close_at_once():
    for _ in range(10):
        bridge = AsyncioThread("tested")

        def submit(bridge: AsyncioThread = bridge) -> Any:
            return outcome(bridge.submit(asyncio.sleep(PATIENCE)))

        bridge.submit(asyncio.sleep(0)).result(PATIENCE)
        *ends, closed = together(submit, submit, lambda bridge=bridge: bridge.close(PATIENCE))
        assert closed is True
        assert all(isinstance(end, Cancelled | ShuttingDown) for end in ends)


def test_a_loop_that_is_stopped_by_its_user_goes_on():
    async def stop() -> None:
        asyncio.get_running_loop().stop()

    bridge = AsyncioThread("tested")
    bridge.submit(stop()).result(PATIENCE)
    assert bridge.submit(asyncio.sleep(0, "goes on")).result(PATIENCE) == "goes on"
    assert bridge.close(PATIENCE)


def test_a_thread_in_between_waits_without_the_loop():
    ends = Ends()
    waiting = Background(task.from_asyncio(ends.wait).result, PATIENCE)
    ends.wait_begun()
    assert waiting.running()
    ends.open()
    assert waiting.result() == "value"


EXIT = """
import asyncio, threading
from zlink_nogil import task

begun = threading.Event()

async def wait():
    begun.set()
    try:
        await asyncio.sleep(1000)
    finally:
        print("cleaned up")

waiting = task.from_asyncio(wait())
awaited = threading.Event()

async def awaits():
    awaited.set()
    try:
        await waiting
    finally:
        print("told")

spawned = task.spawn(awaits())
begun.wait(10), awaited.wait(10)
"""

FORKED = """
import asyncio, os, sys
from zlink_nogil import Completion, task

hold = Completion()

async def wait():
    return await asyncio.wrap_future(hold.as_future())

inherited = task.from_asyncio(wait)
assert task.from_asyncio(asyncio.sleep(0, "before")).result(10) == "before"
pid = os.fork()
if pid == 0:
    try:
        inherited.cancel()
    except RuntimeError:
        pass
    assert task.from_asyncio(asyncio.sleep(0, "child")).result(10) == "child"
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
hold.succeed("parent")
assert inherited.result(10) == "parent"
assert task.from_asyncio(asyncio.sleep(0, "still here")).result(10) == "still here"
print("both")
"""


@pytest.mark.parametrize(("script", "words"), [(EXIT, ["cleaned up", "told"]), (FORKED, ["both"])])
def test_in_a_process_of_its_own(script, words):
    """At exit the tasks are cancelled; a fork has a loop of its own, and leaves the parent's alone."""
    process = child("import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + script)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, sorted(said.splitlines())) == (0, words)
