"""One coroutine, given to several tasks and turns: one of them runs it, the others are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from support import PATIENCE

from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool, claims
from zlink_nogil.scheduler.spawning import spawn
from zlink_nogil.scheduler.tasks import Task


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool
    assert claims.count() == 0


async def answer(awaited: Completion[int] | None = None) -> int:
    return 7 if awaited is None else await awaited


def test_a_fresh_coroutine_that_two_turns_get_at_once_goes_to_one_of_them(pool: WorkerPool) -> None:
    def work(coroutine: Coroutine[Any, Any, int], together: threading.Barrier) -> Callable[[], Coroutine[Any, Any, int]]:
        def returns_it() -> Coroutine[Any, Any, int]:
            together.wait(PATIENCE)
            return coroutine

        return returns_it

    queues = [SerialExecutionQueue(pool=pool) for _ in range(2)]
    for _ in range(200):
        shared = work(answer(), threading.Barrier(2))
        turns = [queue.enqueue(shared) for queue in queues]
        errors = [turn.exception(PATIENCE) for turn in turns]
        assert errors.count(None) == 1, errors
        assert all(isinstance(error, InvalidOperation | RuntimeError | None) for error in errors), errors


def test_a_task_has_a_coroutine_before_its_first_step(pool: WorkerPool) -> None:
    awaited = Completion[int](pool)
    shared = answer(awaited)
    running = spawn(shared, pool=pool)
    with pytest.raises(InvalidOperation, match="somebody runs"):
        SerialExecutionQueue(pool=pool).enqueue(lambda: shared).result(PATIENCE)
    with WorkerPool(1) as other, pytest.raises(InvalidOperation, match="somebody runs"):
        Task(other, shared).begin(None)
    awaited.succeed(7)
    assert running.result(PATIENCE) == 7, "not disturbed"


def test_a_task_that_a_closed_pool_refuses_lets_go_of_its_coroutine(pool: WorkerPool) -> None:
    closed = WorkerPool(1)
    closed.close()
    coroutine = answer()
    with pytest.raises(Exception, match="closed"):
        spawn(coroutine, pool=closed)
    assert spawn(coroutine, pool=pool).result(PATIENCE) == 7


@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_that_is_over_lets_go_of_its_coroutine(pool: WorkerPool, fails: bool) -> None:
    async def handler() -> int:
        if fails:
            raise ValueError("no")
        return 7

    turn = SerialExecutionQueue(pool=pool).enqueue(handler)
    assert isinstance(turn.exception(PATIENCE), ValueError) is fails
    assert claims.count() == 0
