"""Failure kinds seen in the field (section A, G): stealing, parking, handing over, closing. Each test quotes its kind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, eventually, together

from zlink_nogil import _sync, par, task
from zlink_nogil.errors import CapacityExceeded, DeadlineExceeded, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool, blocking, hand_over, threads, watch
from zlink_nogil.scheduler.hand_over import Places
from zlink_nogil.scheduler.ready import ReadySet
from zlink_nogil.scheduler.worker import Worker, here


async def value_of(value: Any = 1) -> Any:
    return value


async def calls(function: Callable[[], Any]) -> Any:
    return function()


async def sleeps(seconds: float = 0.001) -> None:
    await task.sleep(seconds)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


def at_rest(pool: WorkerPool) -> None:
    """Every place idle, nothing left; the counts are those of the real threads."""

    def rests() -> bool:
        s = pool.statistics()
        return (s.idle, s.queued, s.tasks, s.blocked, s.searching, s.running) == (s.places, 0, 0, 0, 0, 0)

    eventually(rests, f"the pool at rest: {pool.describe()}")


def meet(pool: WorkerPool) -> None:
    """As many tasks as workers meet at a barrier: all of them are alive, and each takes one."""
    barrier = threading.Barrier(pool.workers)
    for met in [task.spawn(calls(lambda: barrier.wait(PATIENCE)), pool=pool) for _ in range(pool.workers)]:
        met.result(PATIENCE)


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


class Calls:
    """A runnable."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def run_slice(self) -> bool:
        self.work()
        return False


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
        assert pool.statistics().threads == 4


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


# -- G --------------------------------------------------------------------------------------------------------------


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
