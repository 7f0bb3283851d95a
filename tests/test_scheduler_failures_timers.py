"""Failure kinds seen in the field (section B): timers and deadlines. Each test quotes its kind."""

from __future__ import annotations

import contextvars
import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PATIENCE, eventually, together

from zlink_nogil import _sync, task
from zlink_nogil.errors import Cancelled
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler.timers import Timer, Timers


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "timed") as pool:
        yield pool


class Clock:
    """Moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(_sync, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def timers() -> Timers:
    return Timers(lambda: None)


def asleep(pool: WorkerPool) -> None:
    eventually(lambda: pool.statistics().idle == pool.workers)


async def sleeps(seconds: float) -> None:
    await task.sleep(seconds)


def canary(pool: WorkerPool) -> None:
    task.spawn(sleeps(0.001), pool=pool).result(PATIENCE)


@pytest.fixture
def keeping_time(pool: WorkerPool) -> Iterator[task.Task[Any]]:
    """Somebody keeps the time, for something that is far away."""
    far = task.spawn(sleeps(3600), pool=pool)
    eventually(lambda: pool.statistics().timers == 1)
    asleep(pool)
    yield far
    far.cancel()


# -- re-arming ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keeping_time")
@pytest.mark.parametrize("seconds", [0.005, 0.064, 0.128])
def test_an_earlier_timer_wakes_the_sleeper(pool, seconds):
    """Kind: re-arming to an earlier or past time does not wake the sleeper: from another thread, (a)."""
    fired = threading.Event()
    pool.ready.timers.arm(Timer(lambda _: fired.set()), _sync.monotonic() + seconds)
    assert fired.wait(PATIENCE)


@pytest.mark.usefixtures("keeping_time")
@pytest.mark.parametrize("deadline", [0.0, -1.0, -math.inf])
def test_a_past_time_means_now(pool, deadline):
    """Kind: re-arming to an earlier or past time does not wake the sleeper: (b)."""
    fired = threading.Event()
    pool.ready.timers.arm(Timer(lambda _: fired.set()), deadline)
    assert fired.wait(PATIENCE)


def test_cancelled_and_armed_again_only_the_new_one_fires(pool):
    """Kind: re-arming to an earlier or past time does not wake the sleeper: (c)."""
    fired: list[str] = []
    new = threading.Event()
    old = Timer(lambda _: fired.append("old"))
    pool.start()
    asleep(pool)
    pool.ready.timers.arm(old, _sync.monotonic() + 0.05)
    assert pool.ready.timers.cancel(old)
    assert not pool.ready.timers.cancel(old), "once"
    pool.ready.timers.arm(Timer(lambda _: (fired.append("new"), new.set())), _sync.monotonic() + 0.005)
    assert new.wait(PATIENCE)
    last = threading.Event()
    pool.ready.timers.arm(Timer(lambda _: last.set()), _sync.monotonic() + 0.06)
    assert last.wait(PATIENCE)
    assert fired == ["new"]


@pytest.mark.usefixtures("keeping_time")
def test_ten_thousand_re_armings_do_not_delay_a_canary(pool):
    """Kind: re-arming to an earlier or past time does not wake the sleeper: (d)."""
    fired = threading.Event()
    pool.ready.timers.arm(Timer(lambda _: fired.set()), _sync.monotonic() + 0.01)
    late: list[Any] = []
    for number in range(10_000):
        timer = Timer(late.append)
        pool.ready.timers.arm(timer, _sync.monotonic() + 60 - number * 1e-3)
        assert pool.ready.timers.cancel(timer)
    assert fired.wait(PATIENCE)
    assert late == []
    assert pool.statistics().timers == 1
    assert len(pool.ready.timers._heap) < 200


# -- bad entries ----------------------------------------------------------------------------------------------------


def test_equal_deadlines_fire_in_arming_order_whatever_they_carry(clock, timers):
    """Kind: one bad timer entry kills or corrupts the whole timer service: unorderable payloads."""

    class Unorderable:
        def __init__(self, number: int) -> None:
            self.number = number

        def __lt__(self, other: object) -> bool:
            raise TypeError("cannot be compared")

        def __call__(self, _: Timer) -> None:
            fired.append(self.number)

    fired: list[int] = []
    for number in range(1000):
        timers.arm(Timer(Unorderable(number)), clock.now + 1)
    timers.fire()
    assert fired == []
    clock.now += 1
    timers.fire()
    assert fired == list(range(1000))
    assert (timers.armed(), timers.earliest()) == (0, None)


@pytest.mark.parametrize("seconds", [0, -1, 1e-9, 1e12, 1e308, math.inf, -math.inf, math.nan, 10**400, "1", None, True])
def test_after_any_time_a_canary_sings(pool, seconds):
    """Kind: one bad timer entry kills or corrupts the whole timer service: times."""
    try:
        sleep = task.sleep(seconds)
    except (TypeError, ValueError, OverflowError):
        canary(pool)
        return

    async def main() -> None:
        await sleep

    sleeping = task.spawn(main(), pool=pool)
    canary(pool)
    if seconds > 1:
        sleeping.cancel()
        assert isinstance(sleeping.exception(PATIENCE), Cancelled)
    else:
        sleeping.result(PATIENCE)
    canary(pool)
    assert pool.statistics().timers == 0


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_after_any_error_of_a_callback_a_canary_sings(pool, caplog, error):
    """Kind: one bad timer entry kills or corrupts the whole timer service: callbacks that raise."""

    def fail(_: Timer) -> None:
        raise error

    fired = threading.Event()
    now = _sync.monotonic()
    for callback in (fail, fail, lambda _: fired.set()):
        pool.ready.timers.arm(Timer(callback), now)
    canary(pool)
    assert fired.wait(PATIENCE)
    assert caplog.text.count("a timer's callback failed") == 2


def test_each_timer_fires_or_is_cancelled_never_both():
    """Kind: one entry with two ends: many threads fire, arm and cancel at once."""
    timers = Timers(lambda: None)
    fired: list[int] = []
    cancelled: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 500):
            timer = Timer(lambda _, number=number: fired.append(number))
            timers.arm(timer, _sync.monotonic() - 1)
            timers.fire()
            if timers.cancel(timer):
                cancelled.append(number)

    assert together(*[lambda first=first: work(first) for first in range(0, 4000, 500)]) == [None] * 8
    timers.fire()
    assert sorted(fired + cancelled) == list(range(4000))
    assert timers.armed() == 0


# -- memory ---------------------------------------------------------------------------------------------------------

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")


class Reply:
    """Something big."""


def dead(references: list[weakref.ref[Any]], pool: WorkerPool) -> bool:
    canary(pool)
    gc.collect()  # a sleeping thread does not let go of what it made and another one dropped (biased reference counts)
    return not any(reference() is not None for reference in references)


@pytest.mark.parametrize("end", ["finished", "cancelled"])
def test_what_is_over_lets_go_at_once(pool, end):
    """Kind: finished operation stays alive until its old deadline."""
    references: list[weakref.ref[Any]] = []

    async def request() -> Reply:
        reply = Reply()
        references.append(weakref.ref(reply))
        await task.sleep(0.001 if end == "finished" else 3600)
        return reply

    async def main(number: int) -> None:
        context = Reply()
        references.append(weakref.ref(context))
        variable.set(context)
        await task.timeout(3600 + number, request())

    tasks = [task.spawn(main(number), pool=pool) for number in range(200)]
    if end == "cancelled":
        eventually(lambda: pool.statistics().timers == 400)
        for each in tasks:
            each.cancel()
    for each in tasks:
        each.exception(PATIENCE)
    del each
    tasks.clear()
    eventually(lambda: dead(references, pool))
    assert len(references) == 400
    s = pool.statistics()
    assert (s.timers, s.tasks) == (0, 0)
    assert len(pool.ready.timers._heap) <= 64 + 1, "dead entries are few"


def test_dead_entries_never_outnumber_the_live_ones_by_much(timers):
    """Kind: finished operation stays alive until its old deadline: lazy cancellation."""
    armed = []
    for number in range(5000):
        timer = Timer(print)
        timers.arm(timer, 1e9 + number)
        armed.append(timer)
    for timer in armed[:4990]:
        timers.cancel(timer)
    assert timers.armed() == 10
    assert len(timers._heap) <= 2 * 10 + 64 + 1
    assert timers.earliest() == 1e9 + 4990


def test_the_time_is_kept_while_everybody_comes_and_goes(pool):
    """Kind: a missed wake-up after a change of the earliest entry: sleeps of all lengths from many threads."""

    def work(sleep: Callable[[float], Any]) -> None:
        for number in range(40):
            sleep(0.0001 * (number % 7))

    def from_outside(seconds: float) -> None:
        task.spawn(sleeps(seconds), pool=pool).result(PATIENCE)

    assert together(*[lambda: work(from_outside)] * 6) == [None] * 6
    assert pool.statistics().timers == 0
