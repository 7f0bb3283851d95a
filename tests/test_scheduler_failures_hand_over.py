"""Failure kinds of section A that concern hand-overs: counts, threads that cannot be had, spare threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from pools import at_rest, calls, meet, sleeps, value_of
from support import PATIENCE, eventually

from zlink_nogil import par, task
from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.scheduler import WorkerPool, hand_over, threads
from zlink_nogil.scheduler.hand_over import Places
from zlink_nogil.scheduler.worker import Worker, here


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


def fail_to_start(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_counts_do_not_drift_over_thousands_of_hand_overs(monkeypatch):
    """Kind: Idle/worker counters drift until the pool believes in workers that do not exist."""
    monkeypatch.setattr(threads, "KEEP", 0.0005)  # a spare thread gives up all the time
    real, unlucky, numbers = threading.Thread.start, threading.Event(), iter(range(10**9))

    def start(self: threading.Thread) -> None:
        if unlucky.is_set() and "worker" in self.name and next(numbers) % 3 == 0:
            fail_to_start(self)
        real(self)

    def fails() -> None:
        raise ValueError("inside")

    async def cycle(number: int) -> None:
        match number % 4:
            case 0:
                task.run_blocking(int)
            case 1:
                task.run_blocking(fails)
            case 2:
                await task.timeout(0.0001, task.spawn_blocking(int))
            case 3:
                inner = task.spawn(calls(lambda: task.run_blocking(int)))
                await task.yield_now()
                inner.cancel()
                await inner

    async def main(number: int) -> int:
        failed = 0
        for cycle_number in range(number, number + 400):
            try:
                await cycle(cycle_number)
            except (ValueError, RuntimeError, TimeoutError):
                failed += 1
            except BaseException:  # the inner one was cancelled
                failed += 1
        return failed

    with WorkerPool(4, "drifting") as pool:
        meet(pool)
        monkeypatch.setattr(threading.Thread, "start", start)
        unlucky.set()
        failed = [task.spawn(main(number), pool=pool) for number in range(8)]
        assert sum(each.result(30) for each in failed) >= 8 * 100
        unlucky.clear()
        meet(pool)
        at_rest(pool)
        eventually(lambda: pool.statistics().threads == sum(thread.is_alive() for thread in pool.threads))
        eventually(lambda: pool.statistics().spare == 0)
        eventually(lambda: pool.statistics().threads == 4)


def test_a_hand_over_that_finds_no_thread_changes_nothing(pool, monkeypatch):
    """Kind: Idle/worker counters drift: the thread cannot be started."""
    meet(pool)
    real = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)

    async def main() -> str:
        ran: list[int] = []
        with pytest.raises(RuntimeError, match="start new thread"):
            task.run_blocking(ran.append, 1)
        assert ran == [], "it was not called"
        assert here.worker is not None
        assert here.worker.carrier is threading.current_thread()
        with pytest.raises(RuntimeError, match="start new thread"):
            task.spawn_blocking(ran.append, 1)
        await task.yield_now()
        assert ran == []
        return "goes on"

    assert task.spawn(main(), pool=pool).result(PATIENCE) == "goes on"
    assert pool.statistics().blocked == 0
    monkeypatch.setattr(threading.Thread, "start", real)
    meet(pool)
    at_rest(pool)


def test_a_pool_whose_first_threads_cannot_be_started_accepts_nothing_and_recovers(monkeypatch):
    """Kind: Idle/worker counters drift: at the start."""
    with WorkerPool(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail_to_start)
            coroutine = value_of(5)
            with pytest.raises(RuntimeError, match="start new thread"):
                task.spawn(coroutine, pool=pool)
            assert pool.statistics().tasks == 0
            assert pool.statistics().vacant == 2
        assert task.spawn(coroutine, pool=pool).result(PATIENCE) == 5
        meet(pool)
        at_rest(pool)


def test_a_place_is_not_counted_twice_while_it_gets_its_first_thread(monkeypatch):
    """Kind: Reported counts equal the real threads, no count is negative: the thread is faster than who started it."""
    pool = WorkerPool(1)
    real = Places.fill
    seen: list[Any] = []

    def fill(self: Places, worker: Worker) -> None:
        real(self, worker)
        eventually(lambda: pool.ready.counts()[2] == 1, "the worker sleeps already")
        seen.append(pool.ready.snapshot()[2:])

    monkeypatch.setattr(Places, "fill", fill)
    assert task.spawn(value_of(), pool=pool).result(PATIENCE) == 1
    assert seen == [(1, 0, 0)], "idle, searching, vacant"
    pool.close()


def test_what_a_thread_is_in_the_middle_of_survives_others_at_its_place(monkeypatch):
    """A thread comes back to its place after another one has left it in the middle of something else."""
    with WorkerPool(1) as pool:
        first, second = Gate(), Gate()
        tasks: dict[str, task.Task[Any]] = {}
        jobs: list[Callable[[], None]] = []

        async def first_to_block() -> str:
            task.run_blocking(first)
            assert here.worker is not None, "its place was empty again"
            assert here.worker.running is tasks["first"]
            second.open()
            return tasks["second"].result(PATIENCE)

        async def second_to_block() -> str:
            monkeypatch.setattr(pool._threads, "run", jobs.append)  # nobody comes for the place any more
            task.run_blocking(second)
            return "second"

        tasks["first"] = task.spawn(first_to_block(), pool=pool)
        first.wait_begun()
        tasks["second"] = task.spawn(second_to_block(), pool=pool)
        second.wait_begun()
        first.open()
        assert tasks["first"].result(PATIENCE) == "second"
        monkeypatch.undo()
        for job in jobs:
            pool._threads.run(job)
        meet(pool)
        at_rest(pool)


def test_spare_threads_retire_and_strand_nothing(pool, monkeypatch):
    """Kind: Shrinking the pool strands timers and tasks of the retired worker."""
    monkeypatch.setattr(threads, "KEEP", 0.001)
    meet(pool)

    async def blocks() -> str:
        sleeping = task.spawn(sleeps(0.02))
        queued = [task.spawn(value_of(number)) for number in range(10)]
        task.run_blocking(lambda: queued[-1].result(PATIENCE))
        await sleeping
        return str([await each for each in queued])

    results = [task.spawn(blocks(), pool=pool) for _ in range(20)]
    assert {each.result(PATIENCE) for each in results} == {str(list(range(10)))}
    eventually(lambda: pool.statistics().threads == 2, "spare threads have gone")
    meet(pool)
    at_rest(pool)


def test_too_many_blocked_threads_are_an_error_and_not_a_hang(pool, monkeypatch):
    monkeypatch.setattr(hand_over, "MOST_BLOCKED", 1)
    gate = Gate()
    blocked = task.spawn(calls(lambda: task.run_blocking(gate)), pool=pool)
    gate.wait_begun()
    with pytest.raises(CapacityExceeded, match="blocked already"):
        task.spawn(calls(lambda: task.run_blocking(int)), pool=pool).result(PATIENCE)
    gate.open()
    blocked.result(PATIENCE)
    at_rest(pool)


@pytest.mark.parametrize("why", ["too many", "no thread"])
def test_a_scope_ends_after_its_pieces_though_no_thread_can_be_had(pool, monkeypatch, why):
    """A wait that cannot be handed over is done at the place: leaving a scope cannot fail."""
    gate, ended = Gate(), []

    def piece() -> None:
        gate()
        ended.append(1)

    async def main() -> list[int]:
        with par.scope() as scope:
            scope.spawn(piece)
            gate.wait_begun()  # by the other worker
            Background(lambda: (threading.Event().wait(0.02), gate.open()))
        return list(ended)

    meet(pool)
    if why == "too many":
        monkeypatch.setattr(hand_over, "MOST_BLOCKED", 0)
    else:
        monkeypatch.setattr(pool._threads, "run", fail_to_start)
    assert task.spawn(main(), pool=pool).result(PATIENCE) == [1]
