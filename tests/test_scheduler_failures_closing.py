"""Failure kinds of section G - shutdown, drain, fork - as they concern the scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background, Gate
from pools import at_rest, calls, meet, sleeps, value_of
from support import PATIENCE, eventually, together

from zlink_nogil import _sync, task
from zlink_nogil.errors import DeadlineExceeded, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool, blocking
from zlink_nogil.scheduler.ready import ReadySet


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


def test_shutdown_while_idle_stealing_handing_over_with_late_submits():
    """Kind: A stop marker is stolen, or work arrives after the last look at the queue."""

    async def worker(number: int) -> int:
        children = [task.spawn(value_of(n)) for n in range(5)]
        if number % 3 == 0:
            task.run_blocking(int)
        await task.sleep(0.0005 * (number % 4))
        return sum([await child for child in children])

    for round_number in range(60):
        pool = WorkerPool(1 + round_number % 4)
        accepted: list[task.Task[int]] = []

        def submit(pool: WorkerPool = pool, accepted: list[task.Task[int]] = accepted) -> None:
            for number in range(6):
                coroutine = worker(number)
                try:
                    accepted.append(task.spawn(coroutine, pool=pool))
                except ShuttingDown:
                    coroutine.close()

        outcomes = together(submit, submit, pool.close, pool.close)
        assert outcomes == [None] * 4
        assert [each.result(0) for each in accepted] == [10] * len(accepted)
        s = pool.statistics()
        assert (s.tasks, s.queued, s.threads, s.blocked, s.vacant) == (0, 0, 0, 0, s.places)


def test_a_refused_task_does_not_keep_the_workers_of_a_closing_pool(monkeypatch):
    """Kind: Work arrives after the last look at the queue: a worker saw the task in the table, and stayed for it."""
    pool, gate, real = WorkerPool(2), Gate(), ReadySet.add
    meet(pool)
    at_rest(pool)

    def add(self: ReadySet, *args: Any) -> bool:
        if threading.current_thread().name == "late":
            gate()
        return real(self, *args)

    monkeypatch.setattr(ReadySet, "add", add)
    coroutine = value_of()

    def late() -> None:
        threading.current_thread().name = "late"
        with pytest.raises(ShuttingDown):
            task.spawn(coroutine, pool=pool)

    submitting = Background(late)
    gate.wait_begun()
    closing = Background(pool.close)
    eventually(lambda: pool.ready.closed)
    eventually(lambda: pool.ready.counts()[2] == 2, "the workers have looked, and stay")
    gate.open()
    submitting.result()
    coroutine.close()
    closing.result()
    assert pool.statistics().threads == 0


def test_what_is_left_at_the_deadline_is_cancelled_tasks_and_calls_alike(monkeypatch):
    """A task that never ends does not save the blocking calls that have not begun."""
    monkeypatch.setattr(blocking, "MOST", 1)
    pool, gate, ran = WorkerPool(1), Gate(), []

    async def main() -> list[Completion[Any]]:
        return [task.spawn_blocking(gate), *[task.spawn_blocking(ran.append, number) for number in range(5)]]

    sleeper = task.spawn(sleeps(3600), pool=pool)
    first, *rest = task.spawn(main(), pool=pool).result(PATIENCE)
    gate.wait_begun()
    closing = Background(lambda: pool.close(0.01))
    eventually(sleeper.cancelled)
    eventually(lambda: all(call.cancelled() for call in rest))
    gate.open()
    closing.result()
    assert first.done()
    assert ran == []


def test_a_task_of_a_closing_pool_may_spawn_whether_it_has_its_place_or_not():
    """What was accepted is finished, with everything it needs."""
    with WorkerPool(1) as pool:
        gate = Gate()
        begun = Gate()

        async def main() -> list[Any]:
            one = await task.spawn(value_of(1))
            task.run_blocking(begun)
            two = await task.spawn(value_of(2))
            three = task.run_blocking(gate) or await task.spawn_blocking(lambda: 3)
            return [one, two, three]

        accepted = task.spawn(main(), pool=pool)
        begun.wait_begun()
        task.spawn(calls(lambda: None), pool=pool).result(PATIENCE)  # the place is taken
        closing = Background(pool.close)
        eventually(lambda: pool.closing and pool.ready.closed)
        begun.open()
        gate.open()
        assert accepted.result(PATIENCE) == [1, 2, 3]
        closing.result()


def test_a_drain_that_is_already_finished_returns_at_once():
    """Kind: Drain that is already finished waits for the full grace time."""
    for used in (False, True):
        pool = WorkerPool(2)
        if used:
            meet(pool)
            at_rest(pool)
        began = _sync.monotonic()
        pool.close(60)
        pool.close(60)
        assert _sync.monotonic() - began < PATIENCE


def test_a_drain_names_what_is_stuck():
    """Kind: The stuck turn is named when the grace ends; no new work is admitted."""
    pool, gate = WorkerPool(1, "draining"), Gate()
    stuck = task.spawn(calls(gate), pool=pool)
    gate.wait_begun()
    with pytest.raises(DeadlineExceeded, match="draining-worker-0"):
        Background(lambda: pool.close(0.01)).result()
    late = value_of()
    with pytest.raises(ShuttingDown):
        task.spawn(late, pool=pool)
    late.close()
    gate.open()
    pool.close(PATIENCE)
    assert stuck.done()


FORK = """
import os, signal, threading
from zlink_nogil import par, task, thread
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import WorkerPool, default_pool

async def value_of(value): return value
async def sleeps(): await task.sleep(3600)
pool = WorkerPool(2)
sleeper = task.spawn(sleeps(), pool=pool)
assert task.spawn(value_of(1), pool=pool).result(5) == 1
assert task.block_on(value_of(1)) == 1
coroutines = [value_of(1) for _ in range(3)]
inherited = {
    "spawn": lambda: task.spawn(coroutines[0], pool=pool), "cancel": sleeper.cancel, "result": sleeper.result,
    "block_on": lambda: task.block_on(coroutines[1], pool=pool), "scope": lambda: par.scope(pool), "close": pool.close,
}
for name, use in inherited.items():
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try: use()
        except InvalidOperation as error: print(name, "fork" in str(error), flush=True)
        else: print(name, "works", flush=True)
        if name == "spawn":
            assert task.block_on(value_of(1)) == 1, "the child has a pool of its own"
            assert par.map(range(3), str) == ["0", "1", "2"]
        for coroutine in coroutines: coroutine.close()
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, name
for coroutine in coroutines: coroutine.close()
assert sleeper.cancel()
pool.close(5)
print("the parent is not disturbed")
"""


def test_fork_after_the_runtime_has_started():
    """Kind: Fork after the runtime has started."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    names = ["spawn", "cancel", "result", "block_on", "scope", "close"]
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*[f"{name} True" for name in names], "the parent is not disturbed"]
