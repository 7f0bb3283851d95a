"""Failure kinds seen in the field (section F): what free-threaded CPython does not forgive. Each test quotes its kind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, together

from zlink_nogil import task, thread
from zlink_nogil.errors import Cancelled, DeadlineExceeded
from zlink_nogil.scheduler import Completion, WorkerPool

WOKEN = """
import threading
from zlink_nogil import task
from zlink_nogil.errors import Cancelled
from zlink_nogil.scheduler import Completion, WorkerPool

pool = WorkerPool(4)
THREADS = 16
barrier = threading.Barrier(THREADS + 2)
current = []
ROUNDS = 150

class Steps:
    def __init__(self): self.inside = threading.Lock(); self.count = 0
    async def wait(self, event): await event
    async def run(self, event):
        while True:
            try:
                await task.timeout(0.0002, self.wait(event))
                return "woken"
            except TimeoutError:
                pass
            except Cancelled:
                pass
            assert self.inside.acquire(blocking=False), "two threads in one coroutine"
            self.count += 1
            self.inside.release()

def wake():
    for _ in range(ROUNDS):
        barrier.wait(20)
        current[0].succeed(None)
        barrier.wait(20)

def cancel():
    for _ in range(ROUNDS):
        barrier.wait(20)
        current[1].cancel()
        barrier.wait(20)

threads = [threading.Thread(target=wake) for _ in range(THREADS)] + [threading.Thread(target=cancel)]
for t in threads: t.start()
ended = {"woken": 0, "cancelled": 0}
for _ in range(ROUNDS):
    event = Completion(pool)
    woken = task.spawn(Steps().run(event), pool=pool)
    current[:] = [event, woken]
    barrier.wait(20)
    try:
        ended[woken.result(10)] += 1
    except Cancelled:
        ended["cancelled"] += 1  # before it began
    barrier.wait(20)
for t in threads: t.join()
pool.close(10)
s = pool.statistics()
assert (s.tasks, s.timers, s.queued) == (0, 0, 0), s
print(sum(ended.values()))
"""

SHARED = """
import threading
from zlink_nogil import task
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import Completion, WorkerPool

pool = WorkerPool(4)

async def waits(what): return await what
async def calls(function): return function()

def errors(*tasks): return sorted(type(t.exception(10)).__name__ for t in tasks)

# suspended in one, awaited by the other
never = Completion(pool)
shared = waits(never)
first = task.spawn(waits(shared), pool=pool)
while not never._wakers: pass
second = task.spawn(waits(shared), pool=pool)
print("suspended", type(second.exception(10)).__name__)
never.succeed(1)
print("the first", first.result(10))

# running in one, awaited by the other
begun, go = threading.Event(), threading.Event()
shared = calls(lambda: (begun.set(), go.wait(10)))
first = task.spawn(waits(shared), pool=pool)
begun.wait(10)
second = task.spawn(waits(shared), pool=pool)
print("running", type(second.exception(10)).__name__)
go.set()
first.result(10)

# one async generator driven by two
async def numbers():
    yield 1
    begun.set(); go.wait(10)
    yield 2
begun.clear(); go.clear()
generator = numbers()
async def step(): return await anext(generator)
task.spawn(step(), pool=pool).result(10)
first = task.spawn(step(), pool=pool)
begun.wait(10)
second = task.spawn(step(), pool=pool)
print("generator", type(second.exception(10)).__name__)
go.set()
print("the first", first.result(10))
pool.close(10)
"""


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", script],
        env=os.environ | {"PYTHON_GIL": "0"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_sixteen_threads_a_timeout_and_a_cancel_wake_one_coroutine_once():
    """Kind: two threads resume the same coroutine: the process dies, no exception."""
    done = run_script(WOKEN)
    assert (done.stdout, done.stderr, done.returncode) == ("150\n", "", 0)


def test_a_shared_coroutine_or_generator_is_a_clean_error():
    """Kind: two threads resume the same coroutine: the shared-object cases."""
    done = run_script(SHARED)
    assert (done.stderr, done.returncode) == ("", 0)
    lines = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if not line.startswith("the first"))
    assert set(lines) == {"suspended", "running", "generator"}
    assert all(name in {"RuntimeError", "ValueError"} for name in lines.values()), lines


def test_threads_are_reused_over_twenty_thousand_hand_overs():
    """Kind: memory held back when threads come and go."""
    with WorkerPool(2, "reusing") as pool:
        shared: dict[int, list[int]] = {}

        async def blocks(count: int) -> None:
            for number in range(count):
                task.run_blocking(shared.setdefault, number, [number])
                await task.yield_now()  # to a place that it can hand over
                if number % 64 == 0:
                    shared.clear()

        async def main(count: int) -> None:
            await task.join(*[blocks(count // 4) for _ in range(4)])

        task.spawn(main(4_000), pool=pool).result(30)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task.spawn(main(16_000), pool=pool).result(30)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert next(pool._threads._numbers) <= 2 + 4 + 6, "threads ever started"
        assert after < 1.5 * before
        eventually(lambda: pool.statistics().blocked == 0)


def test_no_gil_came_back():
    """Kind: the GIL comes back silently."""
    assert not sys._is_gil_enabled()


# -- blocking calls, and threads outside the pool -------------------------------------------------------------------


def test_a_blocking_call_gives_its_outcome_and_its_error():
    with WorkerPool(1) as pool:

        async def main() -> tuple[Any, ...]:
            value = await task.spawn_blocking(divmod, 7, 2)
            keyword = await task.spawn_blocking(int, "11", base=2)
            with pytest.raises(ZeroDivisionError):
                await task.spawn_blocking(divmod, 1, 0)
            with pytest.raises(SystemExit):
                await task.spawn_blocking(sys.exit, 3)
            return value, keyword

        assert task.spawn(main(), pool=pool).result(PATIENCE) == ((3, 1), 3)
        eventually(lambda: pool.statistics().calls_running == 0)


def test_a_blocking_call_is_withdrawn_before_it_begins_and_not_after(monkeypatch):
    from zlink_nogil.scheduler import blocking

    monkeypatch.setattr(blocking, "MOST", 1)
    with WorkerPool(1) as pool:
        gate, ran = Gate("done"), []

        async def start() -> list[Completion[Any]]:
            return [task.spawn_blocking(gate), *[task.spawn_blocking(ran.append, n) for n in range(3)]]

        first, second, third, fourth = task.spawn(start(), pool=pool).result(PATIENCE)
        gate.wait_begun()
        assert third.cancel()
        assert not third.cancel()
        assert not first.cancel(), "it has begun"
        gate.open()
        assert first.result(PATIENCE) == "done"
        second.result(PATIENCE)
        fourth.result(PATIENCE)
        with pytest.raises(Cancelled):
            third.result(PATIENCE)
        assert ran == [0, 2], "first in, first out"


def test_cancel_and_begin_of_blocking_calls_at_the_same_moment(monkeypatch):
    from zlink_nogil.scheduler import blocking

    monkeypatch.setattr(blocking, "MOST", 2)
    with WorkerPool(2) as pool:
        for _ in range(20):
            ran: list[int] = []

            async def start(ran: list[int] = ran) -> list[Completion[Any]]:
                return [task.spawn_blocking(ran.append, number) for number in range(50)]

            started = task.spawn(start(), pool=pool).result(PATIENCE)
            (cancelled,) = together(lambda started=started: [call.cancel() for call in started])
            for call in started:
                call.exception(PATIENCE)
            assert sorted(ran) == [number for number in range(50) if not cancelled[number]]
        s = pool.statistics()
        assert s.calls_waiting == 0


def test_a_run_blocking_outside_the_pool_is_a_plain_call():
    assert task.run_blocking(threading.current_thread) is threading.current_thread()
    with pytest.raises(ValueError, match="invalid literal"):
        task.run_blocking(int, "x")


def test_an_os_thread_gives_its_outcome_when_it_has_ended():
    gate = Gate(5)
    handle = thread.spawn(gate)
    gate.wait_begun()
    assert handle.is_alive()
    with pytest.raises(DeadlineExceeded, match="still runs"):
        handle.join(0.001)
    gate.open()
    assert handle.join(PATIENCE) == 5
    assert handle.join() == 5
    assert not handle.is_alive()
    assert "zlink" in handle.name
    with pytest.raises(ValueError, match="invalid literal"):
        thread.spawn(int, "x").join(PATIENCE)
