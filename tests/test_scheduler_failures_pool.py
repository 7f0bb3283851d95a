"""Failure kinds of section A: stealing, parking, watching, blocked workers. Each test quotes its kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Gate
from pools import at_rest, calls, meet, sleeps
from support import PATIENCE, eventually

from zlink_nogil import task
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.scheduler import Completion, WorkerPool, watch


class Calls:
    """A runnable."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def run_slice(self) -> bool:
        self.work()
        return False


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


# -- A --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["it blocks", "it computes"])
def test_a_freshly_woken_task_is_not_hidden_at_its_makers(pool, then):
    """Kind: Freshly woken task hidden in its creator's private slot."""
    started = threading.Event()

    async def maker() -> bool:
        task.spawn(calls(started.set))
        if then == "it blocks":
            return started.wait(PATIENCE)
        while not started.is_set():
            sum(range(1000))
        return True

    assert task.spawn(maker(), pool=pool).result(PATIENCE)


def test_a_task_that_was_moved_from_the_injector_with_others_is_not_hidden(pool):
    """Kind: Freshly woken task hidden in its creator's private slot: the batch a worker took along."""
    gates = [Gate(), Gate()]
    for gate in gates:
        task.spawn(calls(gate), pool=pool)
        gate.wait_begun()
    met = threading.Barrier(2)
    waiting = [task.spawn(calls(lambda: met.wait(PATIENCE)), pool=pool) for _ in range(2)]
    for gate in gates:
        gate.open()
    for each in waiting:
        each.result(PATIENCE)


@pytest.mark.parametrize("where", ["a task", "a callback"])
def test_the_watch_over_timers_is_passed_on(where):
    """Kind: The thread that watched timers/sockets starts running user code and nobody takes over the watch."""
    with WorkerPool(4) as pool:
        gate = Gate()
        at_first = task.spawn(sleeps(0.01), pool=pool)
        if where == "a callback":
            at_first.add_done_callback(lambda _: gate())
        else:

            async def long_job() -> None:
                await task.sleep(0.01)
                gate()

            task.spawn(long_job(), pool=pool)
        second = task.spawn(sleeps(0.02), pool=pool)
        third = task.spawn(sleeps(0.05), pool=pool)
        gate.wait_begun()
        second.result(PATIENCE)
        third.result(PATIENCE)
        assert gate.thread is not None
        gate.open()


def test_the_watch_over_timers_is_passed_on_when_its_keeper_is_called_home():
    """Kind: The thread that watched ... nobody takes over the watch: each of the sleepers gets work of its own in turn."""
    with WorkerPool(2) as pool:
        meet(pool)
        at_rest(pool)
        due = task.spawn(sleeps(0.05), pool=pool)
        gate = Gate()
        for worker in pool.ready.workers:
            if worker is pool.ready._idle[0]:
                pool.ready.add(Calls(gate), worker)
                break
        gate.wait_begun()
        due.result(PATIENCE)
        gate.open()


def test_a_permit_is_not_eaten_by_other_waits(pool):
    """Kind: A library call between 'check flag' and 'park' eats the wake permit."""

    async def waits(flag: threading.Event, done: Completion[None]) -> None:
        flag.set()
        for _ in range(3):  # other waits of the same thread, of every sort
            task.run_blocking(int)
            with pytest.raises(DeadlineExceeded):
                Completion(pool).result(0)
        await done

    async def main(rounds: int) -> int:
        for _ in range(rounds):
            flag = threading.Event()
            done: Completion[None] = Completion(pool)
            child = task.spawn(waits(flag, done))
            while not flag.is_set():
                await task.yield_now()
            done.succeed(None)
            await child
        return rounds

    for each in [task.spawn(main(100), pool=pool) for _ in range(4)]:
        assert each.result(20) == 100
    at_rest(pool)


def test_all_workers_blocked_is_reported_with_names(caplog, monkeypatch):
    """Kind: All workers sit in an undeclared lock; the holder is a suspended task with no worker left."""
    monkeypatch.setattr(watch, "STALL", 0.05)
    lock = threading.Lock()
    with WorkerPool(2, "stuck") as pool:
        never: Completion[None] = Completion(pool)

        async def holder() -> None:
            lock.acquire()
            await never
            lock.release()

        async def locker() -> None:
            assert lock.acquire(timeout=PATIENCE)
            lock.release()

        held = task.spawn(holder(), pool=pool)
        eventually(lambda: never._wakers)
        lockers = [task.spawn(locker(), pool=pool) for _ in range(4)]
        never.succeed(None)
        eventually(lambda: "all workers blocked" in caplog.text)
        assert "locker" in caplog.text
        assert "stuck" in caplog.text
        assert caplog.text.count("all workers blocked") == 1, "once"
        lock.release()  # what the operator would do
        held.exception(PATIENCE)
        for each in lockers:
            each.exception(PATIENCE)


def test_timers_are_fired_though_all_workers_are_blocked(monkeypatch):
    """Kind: All workers sit in an undeclared lock: the stand-by fires what is due."""
    monkeypatch.setattr(watch, "STALL", 0.02)
    with WorkerPool(2) as pool:
        gates = [Gate(), Gate()]
        for gate in gates:
            task.spawn(calls(gate), pool=pool)
            gate.wait_begun()
        fired = threading.Event()
        timer = task.spawn(sleeps(0.001), pool=pool)
        timer.add_done_callback(lambda _: fired.set())
        eventually(lambda: pool.statistics().timers == 0 and pool.statistics().queued <= 1)
        for gate in gates:
            gate.open()
        assert fired.wait(PATIENCE)
