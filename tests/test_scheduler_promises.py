"""What must hold (design 2.6): each line is a test. Conservation is in `test_scheduler_conservation.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from background import Background, Gate
from pools import calls, value_of
from support import PATIENCE, eventually, together

from zlink_nogil import _sync, task
from zlink_nogil.scheduler import WorkerPool, blocking, default_pool
from zlink_nogil.scheduler.ready import ROUND


class Exclusive:
    """A runnable that says when two threads are in it."""

    def __init__(self, slices: int) -> None:
        self.left = slices
        self.inside = threading.Lock()
        self.ended = threading.Event()
        self.met = False

    def run_slice(self) -> bool:
        if not self.inside.acquire(blocking=False):
            self.met = True
            return False
        self.left -= 1
        if self.left % 7 == 0:
            task.run_blocking(int)
        again = self.left > 0
        self.inside.release()
        if not again:
            self.ended.set()
        return again


def test_one_runnable_never_runs_on_two_workers_at_once():
    with WorkerPool(4) as pool:
        runnables = [Exclusive(100) for _ in range(20)]
        together(*[lambda part=runnables[n::4]: [pool.submit(each) for each in part] for n in range(4)])
        assert all(each.ended.wait(PATIENCE) for each in runnables)
        assert not any(each.met for each in runnables)
        assert {each.left for each in runnables} == {0}


def test_a_submit_with_all_workers_parked_always_wakes_one():
    with WorkerPool(4) as pool:
        for _ in range(50):
            task.spawn(value_of(), pool=pool).result(PATIENCE)
            eventually(lambda: pool.statistics().idle == 4)
            task.spawn(value_of(), pool=pool).result(PATIENCE)


def test_each_submit_wakes_another_one():
    """Four submits, four workers that need each other."""
    with WorkerPool(4) as pool:
        for _ in range(20):
            barrier = threading.Barrier(4)
            met = [task.spawn(calls(lambda barrier=barrier: barrier.wait(PATIENCE)), pool=pool) for _ in range(4)]
            for each in met:
                each.result(PATIENCE)


def test_an_idle_pool_uses_no_cpu():
    """The clocks of its threads stand still, and they do not even wake."""
    with WorkerPool(4) as pool:

        async def sleeper() -> None:
            await task.sleep(3600)

        kept = [task.spawn(sleeper(), pool=pool) for _ in range(10)]
        eventually(lambda: pool.statistics().idle == 4)
        eventually(lambda: not switches(pool) or switches(pool) == switches(pool, after=0.05))
        parks, before = pool.statistics().parks, [time.clock_gettime(clock(thread)) for thread in pool.threads]
        switched = switches(pool)
        assert switches(pool, after=0.3) == switched
        assert pool.statistics().parks == parks
        assert [time.clock_gettime(clock(thread)) for thread in pool.threads] == before
        for each in kept:
            each.cancel()


def clock(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


def switches(pool: WorkerPool, after: float = 0.0) -> list[str]:
    """How often each thread of the pool has gone to sleep."""
    threading.Event().wait(after)
    counts = []
    for thread in pool.threads:
        with open(f"/proc/self/task/{thread.native_id}/status") as status:
            counts += [line for line in status if "voluntary_ctxt" in line]
    return counts


def test_a_full_pool_looks_at_the_timers_after_each_long_slice():
    """ "No timer later than one slice": by the clock of the test, no other item in between."""
    with WorkerPool(1) as pool:
        ran: list[str] = []

        async def main() -> None:
            me = task.spawn(sleeper())
            await task.yield_now()  # it sleeps now
            for number in range(3):
                children.append(task.spawn(slow(number)))
            await me

        async def sleeper() -> None:
            await task.sleep(0.001)
            ran.append("timer")

        async def slow(number: int) -> None:
            until = _sync.monotonic() + 0.01  # longer than the look, and than the timer
            while _sync.monotonic() < until:
                pass
            ran.append(f"slow {number}")

        children: list[task.Task[None]] = []
        task.spawn(main(), pool=pool).result(PATIENCE)
        for child in children:
            child.result(PATIENCE)
        # Fired after the first slice; then behind what was ready, once.
        assert ran.index("timer") <= 3
        assert sorted(ran) == ["slow 0", "slow 1", "slow 2", "timer"]


def test_a_pool_full_of_short_items_fires_timers_within_a_round():
    with WorkerPool(1) as pool:
        stop = threading.Event()
        steps = 0

        async def busy() -> None:
            nonlocal steps
            while not stop.is_set():
                steps += 1
                await task.yield_now()

        async def main() -> int:
            began = None
            for _ in range(20):
                await task.sleep(1e-6)  # due at once, fired at the next look
                if began is None:
                    began = steps
            return steps - began

        spinning = [task.spawn(busy(), pool=pool) for _ in range(4)]
        passed = task.spawn(main(), pool=pool).result(PATIENCE)
        stop.set()
        for each in spinning:
            each.result(PATIENCE)
        assert passed <= 20 * (2 * ROUND + 8), "each within a round, and another one that had begun"


def test_a_task_that_rewakes_itself_for_ever_delays_another_by_at_most_one_round():
    with WorkerPool(1) as pool:
        stop, begun = threading.Event(), Gate()
        steps = [0, 0]

        async def selfish(index: int) -> None:
            begun.open()
            while not stop.is_set():
                steps[index] += 1
                await task.yield_now()

        async def main() -> list[int]:
            gaps = []
            for _ in range(50):
                before = steps.copy()
                await task.yield_now()
                gaps.append(max(after - b for after, b in zip(steps, before, strict=True)))
            return gaps

        spinning = [task.spawn(selfish(index), pool=pool) for index in range(2)]
        gaps = task.spawn(main(), pool=pool).result(PATIENCE)
        assert max(gaps) == 1, "everybody once in between"

        before = steps[0]
        arrived = task.spawn(calls(lambda: steps[0]), pool=pool)  # from outside: through the injector
        arrived.result(PATIENCE)
        assert before <= arrived.result()
        stop.set()
        for each in spinning:
            each.result(PATIENCE)


def test_what_comes_from_outside_waits_for_one_round_at_most():
    with WorkerPool(1) as pool:
        held, go, steps = Gate(), threading.Event(), [0]

        async def selfish() -> None:
            while not go.is_set():
                steps[0] += 1
                await task.yield_now()

        async def main() -> task.Task[None]:
            child = task.spawn(selfish())
            held()
            return child

        spinning = task.spawn(main(), pool=pool)
        held.wait_begun()
        at: list[int] = []
        outside = task.spawn(calls(lambda: (at.append(steps[0]), go.set())), pool=pool)
        held.open()
        outside.result(PATIENCE)
        spinning.result(PATIENCE).result(PATIENCE)
        assert at[0] <= 2 * ROUND


def test_ten_thousand_blocking_calls_do_not_delay_spawned_tasks(monkeypatch):
    monkeypatch.setattr(blocking, "MOST", 4)
    with WorkerPool(2) as pool:
        gate = threading.Event()

        async def block_all() -> list[Any]:
            return [task.spawn_blocking(gate.wait, PATIENCE) for _ in range(10_000)]

        calls_ = task.spawn(block_all(), pool=pool).result(PATIENCE)
        eventually(lambda: pool.statistics().calls_running == 4)
        for _ in range(50):
            assert task.spawn(value_of(7), pool=pool).result(PATIENCE) == 7
        s = pool.statistics()
        assert (s.calls_running, s.calls_waiting) == (4, 9_996)
        assert s.threads <= 4 + 2
        gate.set()
        for call in calls_:
            assert call.result(PATIENCE)
        eventually(lambda: pool.statistics().calls_running == 0)


def test_close_finishes_cancels_joins_and_a_second_one_is_harmless():
    pool, gate = WorkerPool(2), Gate()
    ended: list[str] = []

    async def finishes() -> None:
        gate()
        await task.sleep(0.001)
        await task.spawn(value_of())
        ended.append("finished")

    async def sleeps_on() -> None:
        try:
            await task.sleep(3600)
        finally:
            ended.append("unwound")

    sleeping = task.spawn(sleeps_on(), pool=pool)
    task.spawn(finishes(), pool=pool)
    gate.wait_begun()
    closing = Background(lambda: pool.close(0.2))
    eventually(lambda: pool.closing)
    gate.open()
    closing.result()
    assert sorted(ended) == ["finished", "unwound"]
    assert sleeping.cancelled()
    assert not any(thread.is_alive() for thread in pool.threads)
    s = pool.statistics()
    assert (s.tasks, s.timers, s.queued, s.threads) == (0, 0, 0, 0)
    pool.close()
    pool.close(0)


AT_EXIT = """
from zlink_nogil import task
async def sleeps():
    try: await task.sleep(3600)
    finally: print("unwound", flush=True)
async def begins(): return task.spawn(sleeps())
print(task.block_on(begins()) is not None, flush=True)
sleeper = task.spawn(sleeps())
"""


def test_the_executor_of_the_process_ends_with_it():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert set(done.stdout.split()) <= {"True", "unwound"}


def test_there_is_one_executor_in_a_process():
    pools = together(*[default_pool] * 8)
    assert len(set(map(id, pools))) == 1
