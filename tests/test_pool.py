"""`WorkerPool` (design 2.1, 2.6): a few threads that survive everything, and that close; dropped generators; forks."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, eventually, together

from zlink_nogil.errors import DeadlineExceeded, InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool, default_pool


class Slices:
    """A runnable: calls `work` once per slice, `times` slices in a row."""

    def __init__(self, work: Callable[[], Any], times: int = 1) -> None:
        self._work = work
        self._left = times

    def run_slice(self) -> bool:
        self._left -= 1
        self._work()
        return self._left > 0


def canary(pool: WorkerPool) -> None:
    """Is the pool alive?"""
    done = threading.Event()
    assert pool.submit(Slices(done.set))
    assert done.wait(PATIENCE), "the pool runs nothing any more"


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# -- running --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, -1])
def test_a_pool_has_at_least_one_worker(workers):
    with pytest.raises(ValueError, match="workers"):
        WorkerPool(workers)


def test_threads_start_with_the_first_submit_and_never_get_more(pool):
    before = threading.active_count()
    assert WorkerPool(2).counts() == (0, 0)
    assert threading.active_count() == before
    together(*[lambda: canary(pool)] * 8)
    for _ in range(20):
        canary(pool)
    assert threading.active_count() <= before + 3, "two workers, and the stand-by of the process"
    assert {thread.name for thread in pool.threads} == {"tested-worker-0", "tested-worker-1"}


def test_workers_run_in_parallel_and_nothing_else_waits_for_them(pool):
    barrier = threading.Barrier(3)
    for _ in range(2):
        pool.submit(Slices(lambda: barrier.wait(PATIENCE)))
    barrier.wait(PATIENCE)


def test_first_in_first_out_and_who_wants_another_slice_goes_to_the_back():
    ran: list[str] = []
    with WorkerPool(1) as pool:
        gate = Gate()
        pool.submit(Slices(gate))
        gate.wait_begun()
        pool.submit(Slices(lambda: ran.append("again"), times=3))
        for name in ("a", "b"):
            pool.submit(Slices(lambda name=name: ran.append(name)))
        gate.open()
    assert ran == ["again", "a", "b", "again", "again"]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_a_worker_survives_what_a_slice_raises(caplog, error):
    def fail() -> None:
        raise error

    with WorkerPool(1) as pool:
        pool.submit(Slices(fail, times=2))
        canary(pool)
        assert caplog.text.count("a runnable raised") == 1, "and does not put it back"


def test_an_idle_pool_sleeps(pool):
    canary(pool)
    eventually(lambda: pool.counts() == (0, 2), "both workers are parked")


# -- closing --------------------------------------------------------------------------------------------------------


def test_close_runs_what_was_accepted_and_joins():
    pool, gate, ran = WorkerPool(1), Gate(), []
    pool.submit(Slices(gate))
    pool.submit(Slices(lambda: ran.append("accepted"), times=3))
    gate.wait_begun()
    close = Background(pool.close)
    eventually(lambda: not pool.submit(Slices(pytest.fail)), "the closing pool refuses")
    assert close.running()
    gate.open()
    close.result()
    assert ran == ["accepted"] * 3
    assert not any(thread.is_alive() for thread in pool.threads)
    pool.close()
    assert not pool.submit(Slices(pytest.fail))


def test_a_pool_closed_before_its_first_work_starts_no_thread():
    pool = WorkerPool(2)
    pool.close()
    assert not pool.submit(Slices(pytest.fail))
    assert pool.threads == []


def test_close_names_who_is_still_busy_and_can_be_called_again():
    pool, gate = WorkerPool(1, "slow"), Gate()
    pool.submit(Slices(gate))
    gate.wait_begun()
    with pytest.raises(DeadlineExceeded, match="slow-worker-0"):
        pool.close(0)
    gate.open()
    pool.close(PATIENCE)


def test_a_worker_cannot_close_its_own_pool(pool):
    with pytest.raises(InvalidOperation, match="tested"):
        SerialExecutionQueue(pool=pool).enqueue(pool.close).result(PATIENCE)
    canary(pool)


def test_submitting_while_closing_loses_nothing():
    for _ in range(10):
        pool, ran = WorkerPool(2), []
        submit = lambda pool=pool, ran=ran: sum(pool.submit(Slices(lambda: ran.append(1))) for _ in range(20))  # noqa: E731
        *accepted, closed = together(submit, submit, pool.close)
        assert closed is None
        pool.close()
        assert len(ran) == sum(accepted)


def test_the_default_pool_ends_with_the_process():
    script = """
from zlink_nogil.scheduler import Completion, default_pool
assert default_pool() is default_pool()
completion = Completion()
completion.add_done_callback(lambda _: print("called back", flush=True))
completion.succeed(1)
"""
    done = run_script(script)
    assert (done.stdout, done.stderr, done.returncode) == ("called back\n", "", 0)


def test_the_default_pool_has_a_worker_per_cpu():
    assert default_pool().workers == os.process_cpu_count()


# -- async generators that were dropped half-way --------------------------------------------------------------------


class Dropped:
    """Handlers that stop in the middle of an async generator."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.queue = SerialExecutionQueue(pool=pool)
        self.cleaned = threading.Event()
        self.never: Completion[None] = Completion(pool)

    async def tidy(self) -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            self.cleaned.set()

    async def failing(self) -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            raise ValueError("in the clean-up")

    async def waiting(self) -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await self.never

    async def stubborn(self) -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            try:
                await self.never
            finally:
                await self.never

    def drop(self, generator: Callable[[], AsyncGenerator[int]]) -> None:
        async def handler() -> None:
            async for _ in generator():
                break

        self.queue.enqueue(handler).result(PATIENCE)


@pytest.fixture
def dropped() -> Iterator[Dropped]:
    with WorkerPool(1) as pool:
        yield Dropped(pool)


def test_the_clean_up_of_a_dropped_generator_runs(dropped):
    dropped.drop(dropped.tidy)
    assert dropped.cleaned.wait(PATIENCE)


@pytest.mark.parametrize("kind", ["failing", "waiting", "stubborn"])
def test_a_worker_survives_any_clean_up(dropped, caplog, kind):
    dropped.drop(getattr(dropped, kind))
    canary(dropped.pool)
    canary(dropped.pool)  # by now the first slice is over, and what it left behind
    assert "dropped async generator" in caplog.text
    dropped.drop(dropped.tidy)
    assert dropped.cleaned.wait(PATIENCE)


def test_a_generator_dropped_while_the_pool_is_idle_is_closed_at_the_latest_when_the_pool_is():
    kept: list[Any] = []
    with WorkerPool(1) as pool:
        dropped = Dropped(pool)

        async def begin() -> None:
            kept.append(dropped.tidy())
            await anext(kept[0])

        dropped.queue.enqueue(begin).result(PATIENCE)
        eventually(lambda: pool.counts() == (0, 1), "the worker sleeps")
        kept.clear()
        gc.collect()
    assert dropped.cleaned.is_set()


def test_a_clean_up_leaves_no_context_variable_behind(dropped):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")

    async def setting() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            variable.set("left behind")

    seen: list[str] = []
    dropped.drop(setting)
    for _ in range(2):
        dropped.pool.submit(Slices(lambda: seen.append(variable.get())))
    dropped.pool.close()
    assert seen == ["nobody's"] * 2


# -- forks ----------------------------------------------------------------------------------------------------------

FORK = """
import os, signal, sys, threading
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import *
from zlink_nogil.state import StateLane

class Driver:
    def descriptors(self): return []
    def rotate(self, ready): return None

class Runnable:
    def run_slice(self): return False

def hold(lock_or_lane):
    held, stay = threading.Event(), threading.Event()
    def inside(): held.set(); stay.wait()
    def run():
        if isinstance(lock_or_lane, StateLane): lock_or_lane.run(inside)
        else:
            with lock_or_lane: inside()
    threading.Thread(target=run, daemon=True).start()
    held.wait()

pool, lane, standby, driver = WorkerPool(2), StateLane("lane"), StandBy(), Driver()
standby.add(driver)
queue, other = SerialExecutionQueue(pool=pool), SerialExecutionQueue(pool=pool)
begun, go = threading.Event(), threading.Event()
pending = queue.enqueue(lambda: (begun.set(), go.wait())[1])
begun.wait()
done = SerialExecutionQueue(pool=pool).enqueue(int)
done.result()
hold(lane)
hold(other._gate)
refused = {
    "submit": lambda: pool.submit(Runnable()), "pool close": pool.close,
    "enqueue": lambda: queue.enqueue(print), "enqueue, gate held": lambda: other.enqueue(print),
    "queue close": lambda: queue.close(1), "queue close, gate held": other.close, "retire": other.retire,
    "quiescence": other.await_quiescence, "idle": other.is_idle, "reserved": other.reserved,
    "result": pending.result, "exception": pending.exception, "cancel": pending.cancel,
    "callback": lambda: pending.add_done_callback(print), "future": lambda: pending.as_future().result(),
    "lane run": lambda: lane.run(print), "lane post": lambda: lane.try_post(print), "lane close": lane.close,
    "stand-by add": lambda: standby.add(Driver()), "stand-by remove": lambda: standby.remove(driver),
}
works = {
    "default pool": lambda: default_pool().submit(Runnable()), "default stand-by": lambda: default_standby().add(Driver()),
    "what was over": done.result,
}
default_pool().submit(Runnable())
default_standby().add(Driver())

def child(name, use):
    signal.alarm(30)  # a hang ends the child
    try: use()
    except InvalidOperation as error: ending = "refused" if "fork" in str(error) else str(error)
    except BaseException as error: ending = repr(error)
    else: ending = "works"
    print(name, ending, sep=": ", flush=True)

for expected, uses in (("refused", refused), ("works", works)):
    for name, use in uses.items():
        pid = os.fork()
        if pid == 0:
            child(name, use)
            sys.exit()  # an ordinary exit, with everything that runs then
        _, status = os.waitpid(pid, 0)
        if status: print(name, "ended with", status, flush=True)
go.set()
assert pending.result(5) is True, "the parent is not disturbed"
"""


def test_after_a_fork_everything_inherited_is_refused_and_nothing_hangs():
    done = run_script(FORK)
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert [line for line in lines if not line.endswith(": refused")] == [
        "default pool: works",
        "default stand-by: works",
        "what was over: works",
    ]
    assert len(lines) == 23
