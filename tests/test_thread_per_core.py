"""Thread-per-core (design 2.2, 2.3) and what the environment says: places, CPUs, no stealing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually

from zlink_nogil import par, task
from zlink_nogil.scheduler import WorkerPool, settings
from zlink_nogil.scheduler.worker import here


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "pinned", thread_per_core=True) as pool:
        yield pool


def where() -> tuple[int, frozenset[int]]:
    """The place, and the CPUs of the thread that sits there."""
    assert here.worker is not None
    return here.worker.index, frozenset(os.sched_getaffinity(0))


async def calls(function: Callable[[], Any]) -> Any:
    return function()


def test_each_task_stays_at_one_place_on_one_cpu_and_nothing_is_stolen(pool):
    cpus = sorted(os.sched_getaffinity(0))

    async def wanderer() -> set[Any]:
        seen = set()
        for number in range(60):
            seen.add(where())
            await (task.yield_now() if number % 3 else task.sleep(0.0001))
        return seen

    seen = [each.result(PATIENCE) for each in [task.spawn(wanderer(), pool=pool) for _ in range(20)]]
    assert all(len(one) == 1 for one in seen)
    assert set.union(*seen) == {(place, frozenset({cpus[place % len(cpus)]})) for place in (0, 1)}
    assert pool.statistics().steals == 0
    assert os.sched_getaffinity(0) == set(cpus), "the caller's own are left alone"


def test_work_behind_a_busy_place_is_not_stolen(pool):
    gate = Gate()

    async def main() -> bool:
        child = task.spawn(calls(where))  # stays where its maker runs
        gate()
        assert not child.done()
        return (await child) == where()

    held = task.spawn(main(), pool=pool)
    gate.wait_begun()
    others = [task.spawn(calls(where), pool=pool) for _ in range(4)]
    eventually(lambda: sum(other.done() for other in others) == 2, "those of the other place")
    eventually(lambda: pool.statistics().idle == 1)
    assert pool.statistics().queued == 3
    gate.open()
    assert held.result(PATIENCE)
    assert len({other.result(PATIENCE) for other in others}) == 2


def test_a_hand_over_keeps_the_cpu_and_the_place(pool):
    async def blocks() -> tuple[Any, ...]:
        before = where()
        gate = Gate()
        other = task.spawn(calls(lambda: (where(), threading.current_thread(), gate.open())))
        me = threading.current_thread()
        task.run_blocking(lambda: (gate(), other.exception(PATIENCE)))
        affinity = frozenset(os.sched_getaffinity(0))
        place, thread, _ = await other
        assert thread is not me, "a spare thread has run it"
        assert place == before
        assert affinity == before[1]
        await task.yield_now()
        after = where()
        assert after == before
        return before, after

    for each in [task.spawn(blocks(), pool=pool) for _ in range(6)]:
        each.result(PATIENCE)
    eventually(lambda: pool.statistics().blocked == 0)
    assert pool.statistics().steals == 0


def test_what_comes_back_to_its_place_goes_back_to_its_own_queue(monkeypatch):
    """After somebody else, who was in the other queue, has sat there."""
    pool = WorkerPool(1, thread_per_core=True)
    first, second = Gate(), Gate()
    jobs: list[Callable[[], None]] = []
    place = pool.ready.workers[0]

    class Unpinned:
        def run_slice(self) -> bool:
            monkeypatch.setattr(pool._threads, "run", jobs.append)
            task.run_blocking(second)
            return False

    async def pinned() -> bool:
        task.run_blocking(first)
        assert here.worker is place
        own = place.source is place.pinned
        monkeypatch.undo()
        return own

    blocked = task.Task(pool, pinned(), place)
    blocked.begin(None)
    first.wait_begun()
    place.local.append(Unpinned())  # as a finalizer's work is
    task.Task(pool, calls(int), place).begin(None)
    second.wait_begun()
    first.open()
    assert blocked.result(PATIENCE)
    second.open()
    for job in jobs:
        pool._threads.run(job)
    pool.close(PATIENCE)


def test_fork_join_and_guests_work_there_too(pool):
    async def main() -> list[int]:
        return par.map(range(100), lambda x: x + 1)

    assert task.spawn(main(), pool=pool).result(PATIENCE) == list(range(1, 101))
    assert task.block_on(main(), pool=pool) == list(range(1, 101))


def test_more_places_than_cpus_go_round(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 2})
    assert settings.cpus_to_pin(5) == [2, 4, 2, 4, 2]


def test_a_cpu_that_cannot_be_had_is_reported_and_the_worker_works(caplog, monkeypatch):
    real = os.sched_setaffinity

    def refuse(who: int, cpus: Any) -> None:
        if len(cpus) == 1 and "worker" in threading.current_thread().name:
            raise OSError("not permitted")
        real(who, cpus)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with WorkerPool(1, thread_per_core=True) as pool:
        assert task.spawn(calls(lambda: 5), pool=pool).result(PATIENCE) == 5
    assert "could not be pinned" in caplog.text


# -- the environment ------------------------------------------------------------------------------------------------


def test_the_environment_sets_workers_and_arguments_win(monkeypatch):
    monkeypatch.setenv("ZLINK_WORKERS", "7")
    assert WorkerPool().workers == 7
    assert WorkerPool(3).workers == 3
    monkeypatch.setenv("ZLINK_WORKERS", "")
    assert WorkerPool().workers == os.process_cpu_count()


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two", " ", "+1", "٣", "²", "1e3", "0x2"])
def test_a_number_of_workers_that_is_none_is_refused_by_name(monkeypatch, value):
    monkeypatch.setenv("ZLINK_WORKERS", value)
    with pytest.raises(ValueError, match="ZLINK_WORKERS"):
        WorkerPool()
    assert WorkerPool(1).workers == 1, "arguments win"


def test_the_environment_asks_for_thread_per_core_and_arguments_win(monkeypatch):
    monkeypatch.setenv("ZLINK_THREAD_PER_CORE", "1")
    assert WorkerPool(1).thread_per_core
    assert not WorkerPool(1, thread_per_core=False).thread_per_core
    for value in ("", "0"):
        monkeypatch.setenv("ZLINK_THREAD_PER_CORE", value)
        assert not WorkerPool(1).thread_per_core
        assert WorkerPool(1, thread_per_core=True).thread_per_core


@pytest.mark.parametrize("value", ["2", "yes", "true", " 1"])
def test_any_other_value_is_refused_by_name(monkeypatch, value):
    monkeypatch.setenv("ZLINK_THREAD_PER_CORE", value)
    with pytest.raises(ValueError, match="ZLINK_THREAD_PER_CORE"):
        WorkerPool(1)
