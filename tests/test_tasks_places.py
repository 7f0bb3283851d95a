"""Where tasks run: `block_on` in a thread of the user's, `spawn_local` at one worker (design 2.4)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from background import Background, Gate
from pools import value_of
from support import PATIENCE, together

from zlink_nogil import task
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool, default_pool


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


# -- block_on -------------------------------------------------------------------------------------------------------


def test_block_on_works_here_as_a_guest_and_leaves_the_rest_to_the_pool(pool):
    left: list[task.Task[Any]] = []
    gates = [Gate(), Gate()]

    async def occupy(gate: Gate) -> None:
        gate()

    for gate in gates:
        task.spawn(occupy(gate), pool=pool)
        gate.wait_begun()

    async def main() -> threading.Thread:
        left.append(task.spawn(value_of("left over")))
        return await task.spawn(thread_of())

    assert task.block_on(main(), pool=pool) is threading.current_thread()
    for gate in gates:
        gate.open()
    assert left[0].result(PATIENCE) == "left over"
    assert pool.statistics().guests == 0


def test_block_on_raises_what_the_coroutine_raises(pool):
    with pytest.raises(ValueError, match="x"):
        task.block_on(failing(ValueError("x")), pool=pool)


def test_block_on_uses_the_pool_of_the_process():
    async def main() -> WorkerPool:
        return (await task.spawn(value_of())) and default_pool()

    assert task.block_on(main()) is default_pool()


@pytest.mark.parametrize("place", ["a task", "a handler", "a blocking call"])
def test_block_on_is_refused_where_one_can_await(pool, place):
    def attempt() -> None:
        task.block_on(value_of())

    async def in_a_task() -> None:
        attempt()

    async def in_a_call() -> None:
        await task.spawn_blocking(attempt)

    starts: dict[str, Callable[[], Completion[Any]]] = {
        "a handler": lambda: SerialExecutionQueue(pool=pool).enqueue(attempt),
        "a task": lambda: task.spawn(in_a_task(), pool=pool),
        "a blocking call": lambda: task.spawn(in_a_call(), pool=pool),
    }
    started = starts[place]()
    with pytest.raises(InvalidOperation, match="await"):
        started.result(PATIENCE)


def test_many_guests_at_once(pool):
    async def main() -> int:
        return sum(await task.join(*[value_of(1) for _ in range(50)]))

    assert together(*[lambda: task.block_on(main(), pool=pool)] * 6) == [50] * 6
    assert (pool.statistics().guests, pool.statistics().tasks) == (0, 0)


INTERRUPTED = """
import os, signal, threading
from zlink_nogil import task
begun = threading.Event()

async def main():
    try:
        begun.set()
        await task.sleep(60)
    finally:
        await task.sleep(0.01)
        print("cleaned up", flush=True)

def press():
    begun.wait()
    while not told.wait(0.2):
        os.kill(os.getpid(), signal.SIGINT)
        break

told = threading.Event()
threading.Thread(target=press, daemon=True).start()
try:
    task.block_on(main())
except KeyboardInterrupt:
    told.set()
    print("interrupted", flush=True)
async def again(): return "alive"
print(task.block_on(again()))
"""


def test_ctrl_c_cancels_what_block_on_waits_for():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("cleaned up\ninterrupted\nalive\n", "")


# -- spawn_local ----------------------------------------------------------------------------------------------------


def test_a_local_task_stays_on_its_thread_while_others_steal(run):
    async def main() -> None:
        seen = set()

        async def local() -> None:
            for _ in range(200):
                seen.add(threading.get_ident())
                await task.yield_now()
                await task.sleep(0)

        await task.spawn_local(local())
        assert len(seen) == 1

    run(main())


def test_a_local_task_keeps_its_worker_while_it_blocks(pool):
    gate = Gate()

    async def local() -> tuple[threading.Thread, threading.Thread]:
        before = threading.current_thread()
        task.run_blocking(gate)
        return before, threading.current_thread()

    async def main() -> task.Task[Any]:
        return task.spawn_local(local())

    local_task = task.spawn(main(), pool=pool).result(PATIENCE)
    gate.wait_begun()
    assert pool.statistics().blocked == 0
    assert task.spawn(value_of(7), pool=pool).result(PATIENCE) == 7, "the other worker goes on"
    gate.open()
    before, after = local_task.result(PATIENCE)
    assert before is after


def test_a_local_task_from_outside_gets_a_worker():
    async def main() -> str:
        await task.sleep(0.001)
        return threading.current_thread().name

    names = {task.spawn_local(main()).result(PATIENCE) for _ in range(4)}
    assert all(name.startswith("zlink-worker") for name in names)


def test_a_thread_that_is_not_ours_may_spawn_and_wait(pool):
    assert Background(lambda: task.spawn(value_of(3), pool=pool).result(PATIENCE)).result() == 3
