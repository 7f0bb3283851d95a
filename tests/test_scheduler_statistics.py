"""What a pool tells about itself (design 2.3): totals that add up, at rest and under load; who runs what."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from background import Gate
from pools import calls
from support import PATIENCE, eventually

from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler.statistics import Statistics


def assert_adds_up(s: Statistics) -> None:
    assert s.idle + s.searching + s.running + s.vacant == s.places, s
    assert s.queued == s.injected + sum(s.local) + sum(s.pinned)
    assert len(s.local) == len(s.pinned) == len(s.items) == s.places
    assert min(dataclasses.astuple(s)[0], s.guests, s.idle, s.searching, s.running, s.vacant, s.injected, s.tasks) >= 0, s
    assert min(s.timers, s.threads, s.spare, s.blocked, s.calls_running, s.calls_waiting) >= 0, s
    assert s.spare <= s.threads


def test_before_the_first_work_every_place_is_vacant():
    s = WorkerPool(3).statistics()
    assert (s.places, s.vacant, s.threads, s.queued, s.tasks) == (3, 3, 0, 0, 0)
    assert_adds_up(s)


def test_at_rest_at_work_and_closed():
    with WorkerPool(2) as pool:
        gates = [Gate(), Gate()]
        for gate in gates:
            task.spawn(calls(gate), pool=pool)
            gate.wait_begun()
        waiting = [task.spawn(calls(int), pool=pool) for _ in range(5)]
        s = pool.statistics()
        assert (s.running, s.idle, s.searching, s.queued, s.tasks, s.threads) == (2, 0, 0, 5, 7, 2)
        assert_adds_up(s)
        for gate in gates:
            gate.open()
        for each in waiting:
            each.result(PATIENCE)
        eventually(lambda: pool.statistics().idle == 2)
        s = pool.statistics()
        assert (s.running, s.searching, s.queued, s.tasks, sum(s.items)) == (0, 0, 0, 0, 7)
        assert_adds_up(s)
        with pytest.raises(dataclasses.FrozenInstanceError):
            s.idle = 1  # type: ignore[misc]
    s = pool.statistics()
    assert (s.vacant, s.threads, s.running) == (2, 0, 0)
    assert_adds_up(s)


def test_under_load_every_snapshot_adds_up():
    async def busy(number: int) -> None:
        for _ in range(30):
            await task.yield_now()
            await task.sleep(0.0001)
            if number % 4 == 0:
                task.run_blocking(int)

    async def guest() -> None:
        await task.join(*[busy(number) for number in range(8)])

    with WorkerPool(4) as pool:
        ended = threading.Event()
        tasks = [task.spawn(busy(number), pool=pool) for number in range(40)]

        def be_a_guest() -> None:
            task.block_on(guest(), pool=pool)
            ended.set()

        threading.Thread(target=be_a_guest).start()
        over = False
        while not over:
            over = ended.is_set() and all(each.done() for each in tasks)
            assert_adds_up(pool.statistics())  # also once when everything is over
            ended.wait(0.0005)
        eventually(lambda: (pool.statistics().idle, pool.statistics().guests) == (4, 0))


def test_blocked_threads_and_calls_are_counted_and_named():
    with WorkerPool(1, "told") as pool:
        gate, call = Gate(), Gate()

        async def patient() -> None:
            task.run_blocking(gate)

        task.spawn(patient(), pool=pool)
        gate.wait_begun()

        async def start() -> Any:
            return task.spawn_blocking(call)

        started = task.spawn(start(), pool=pool).result(PATIENCE)
        call.wait_begun()
        s = pool.statistics()
        assert (s.blocked, s.calls_running, s.calls_waiting, s.threads) == (1, 1, 0, 3)
        assert "blocked: <Task " in pool.describe()
        assert "patient" in pool.describe()
        gate.open()
        call.open()
        started.result(PATIENCE)
        eventually(lambda: pool.statistics().blocked == pool.statistics().calls_running == 0)


def test_the_description_names_what_runs_and_where():
    with WorkerPool(2, "told") as pool:
        gate = Gate()

        async def some_work() -> None:
            gate()

        task.spawn(some_work(), pool=pool)
        gate.wait_begun()
        eventually(lambda: "sleeps" in pool.describe())
        text = pool.describe()
        assert "pool 'told': 2 places" in text
        assert "some_work" in text
        assert "threading.py" in text, "where it is"
        gate.open()
        eventually(lambda: pool.statistics().idle == 2)
        assert "some_work" not in pool.describe()
