"""Fork-join on the pool (design 2.4): order, nesting, the caller helps, the first exception, closed pools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually

from zlink_nogil import par, task
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import WorkerPool, parallel, spawning


@pytest.fixture(params=[1, 3])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """What `par` uses on plain threads; in the end nothing is left in it."""
    with WorkerPool(request.param, "parallel") as pool:
        monkeypatch.setattr(parallel, "current_pool", lambda: spawning.here.pool or pool)
        yield pool
        eventually(lambda: pool.statistics().queued == 0)


@pytest.fixture
def all_blocked(pool: WorkerPool) -> Iterator[None]:
    gates = [Gate() for _ in range(pool.workers)]
    for gate in gates:
        task.spawn(calls(gate), pool=pool)
        gate.wait_begun()
    yield
    for gate in gates:
        gate.open()


async def calls(function: Callable[[], Any]) -> Any:
    return function()


@pytest.mark.parametrize("count", [0, 1, 2, 31, 1000])
def test_map_gives_the_results_in_order(pool, count):
    assert par.map(range(count), lambda x: x * x) == [x * x for x in range(count)]
    assert pool.workers


@pytest.mark.usefixtures("pool")
def test_any_iterable_will_do():
    assert par.map((x for x in "abc"), str.upper) == ["A", "B", "C"]
    assert par.map({"a": 1}, str.upper) == ["A"]
    seen: list[int] = []
    par.for_each(iter([1, 2, 3]), seen.append)
    assert sorted(seen) == [1, 2, 3]
    with pytest.raises(TypeError):
        par.map(3, str)  # type: ignore[arg-type]


@pytest.mark.usefixtures("pool")
def test_an_iterable_that_raises_begins_nothing():
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        par.for_each(broken(), pytest.fail)


def test_pieces_run_at_the_same_time(pool):
    barrier = threading.Barrier(pool.workers + 1)
    with par.scope() as scope:
        for _ in range(pool.workers + 1):  # the caller is one of them
            scope.spawn(barrier.wait, PATIENCE)


@pytest.mark.usefixtures("all_blocked")
def test_the_caller_does_it_all_when_no_worker_has_time():
    threads = par.map(range(100), lambda _: threading.current_thread())
    assert set(threads) == {threading.current_thread()}


def test_nested_on_whatever_there_is(pool):
    def fibonacci(n: int) -> int:
        return n if n < 2 else sum(par.map((n - 1, n - 2), fibonacci))

    assert par.map(range(8), fibonacci) == [0, 1, 1, 2, 3, 5, 8, 13]
    assert pool.statistics().blocked == 0


@pytest.mark.parametrize("caller", ["a task", "a handler", "a blocking call"])
def test_called_from(pool, caller):
    def work() -> list[int]:
        return par.map(range(50), lambda x: par.map([x], lambda y: y + 1)[0])

    async def in_a_task() -> Any:
        return work()

    async def in_a_call() -> Any:
        return await task.spawn_blocking(work)

    if caller == "a handler":
        result = SerialExecutionQueue(pool=pool).enqueue(work).result(PATIENCE)
    else:
        result = task.spawn(in_a_task() if caller == "a task" else in_a_call(), pool=pool).result(PATIENCE)
    assert result == list(range(1, 51))


@pytest.mark.usefixtures("all_blocked")
def test_the_first_exception_is_raised_and_what_had_not_begun_is_left_out():
    ran: list[int] = []

    def fail(x: int) -> None:
        ran.append(x)
        if x == 3:
            raise ValueError("third")

    for run in (par.for_each, par.map):
        ran.clear()
        with pytest.raises(ValueError, match="third"):
            run(range(10_000), fail)
        assert len(ran) < 10_000


def test_when_a_scope_is_left_all_that_had_begun_has_ended(pool):
    gate, ended = Gate(), threading.Event()

    def slow() -> None:
        gate()
        ended.set()

    def fail() -> None:
        gate.wait_begun()
        gate.open()
        raise ValueError("first")

    def work() -> None:
        with par.scope() as scope:
            scope.spawn(slow)
            gate_begun_by_a_worker()
            scope.spawn(fail)

    def gate_begun_by_a_worker() -> None:
        gate.wait_begun()

    with pytest.raises(ValueError, match="first"):
        work()
    assert ended.is_set()
    assert pool.workers


@pytest.mark.usefixtures("all_blocked")
def test_an_exception_of_the_body_drops_the_pieces_and_is_raised():
    def work() -> None:
        with par.scope() as scope:
            scope.spawn(pytest.fail, "nobody has had time for it")
            raise ValueError("the body")

    with pytest.raises(ValueError, match="the body"):
        work()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_any_exception_of_a_piece_is_raised(error):
    def fail(_: int) -> None:
        raise error

    with pytest.raises(type(error)):
        par.for_each(range(10), fail)


@pytest.mark.usefixtures("pool")
def test_pieces_may_add_pieces():
    seen: list[int] = []

    def piece(depth: int) -> None:
        seen.append(depth)
        if depth:
            for _ in range(2):
                scope.spawn(piece, depth - 1)

    with par.scope() as scope:
        scope.spawn(piece, 6)
    assert len(seen) == 2**7 - 1
    with pytest.raises(InvalidOperation, match="left"):
        scope.spawn(piece, 0)


@pytest.mark.parametrize("caller", ["after", "while it closes"])
def test_a_closed_pool_leaves_it_to_the_caller(pool, caller):
    if caller == "after":
        pool.close()
        assert par.map(range(10), str) == list("0123456789")
    else:
        begun, gate = Gate(), Gate()

        async def main() -> list[str]:
            begun()
            return par.map(range(10), str)

        accepted = task.spawn(main(), pool=pool)
        begun.wait_begun()
        closing = threading.Thread(target=pool.close)
        closing.start()
        eventually(lambda: pool.closing)
        begun.open()
        assert accepted.result(PATIENCE) == list("0123456789")
        closing.join(PATIENCE)
        assert not gate.begun()


@pytest.mark.usefixtures("pool")
def test_context_variables_are_copied():
    import contextvars

    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    variable.set(1)

    def look(x: int) -> int:
        seen = variable.get()
        variable.set(x)
        return seen

    with par.scope() as scope:
        for x in range(20):
            scope.spawn(lambda x=x: look(x) == 1 or pytest.fail("leaked"))
    assert variable.get() == 1
