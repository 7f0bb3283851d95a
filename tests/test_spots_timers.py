"""Timers of a Spot: by name, on its turns, never piled up, none after the end (design 3.5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, eventually, outcome
from worlds import Hall, Room, at_rest, do, spot_state, world

from zlink_nogil import AlreadyExists, Completion, Host, InvalidOperation, NotFound, ShuttingDown, timer

SOON = 0.002
MODES = ("Room", "Hall", "Square", "Solo")


class Ticks:
    """Callbacks that can be held: `allowed` of them go through, `begun` tells of each."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.count = 0
        self.running = 0
        self.most = 0

    def __call__(self) -> None:
        self.count += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.release()
        assert self.allowed.acquire(timeout=PATIENCE), "nobody let the tick go on"
        self.running -= 1

    def wait(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE), "no tick"

    def go(self, times: int = 1) -> None:
        self.allowed.release(times)


class Clock(Room):
    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0
        self.async_ticks = 0

    @timer(SOON)
    def tick(self) -> None:
        self.ticks += 1

    @timer(SOON, name="slow")
    async def waits(self) -> None:
        done = Completion[None]()
        done.succeed(None)
        await done
        self.async_ticks += 1


class WideClock(Clock, Hall):
    pass


@pytest.fixture
def host() -> Iterator[Host]:
    with world(Clock, WideClock) as host:
        yield host


def spot(host: Host, type_name: str, name: str = "x") -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


def every(ref: Any, name: str, callback: Any, seconds: float = SOON) -> None:
    do(ref, lambda spot, _: spot.timers.every(name, seconds, callback)).result(PATIENCE)


def cancel(ref: Any, name: str) -> None:
    do(ref, lambda spot, _: spot.timers.cancel(name)).result(PATIENCE)


def statistics(host: Host, name: str) -> Any:
    return spot_state(host, "x").timers[name]


@pytest.mark.parametrize("type_name", ["Clock", "WideClock"])
def test_timers_of_a_class_tick_plain_and_async_until_the_spot_closes(host, type_name):
    ref = spot(host, type_name)
    clock = do(ref, lambda clock, _: clock).result(PATIENCE)
    eventually(lambda: clock.ticks > 3 and clock.async_ticks > 3, "both tick")
    assert set(spot_state(host, "x").timers) == {"tick", "slow"}
    ref.close().result(PATIENCE)
    seen = (clock.ticks, clock.async_ticks)
    other = spot(host, type_name, "other")
    later = do(other, lambda clock, _: clock).result(PATIENCE)
    eventually(lambda: later.ticks > 3, "time goes by")
    assert (clock.ticks, clock.async_ticks) == seen
    assert clock.log[-1] == "close"
    other.close().result(PATIENCE)
    at_rest(host)


@pytest.mark.parametrize("type_name", MODES)
def test_a_tick_that_is_due_while_the_last_one_runs_is_counted_and_not_piled_up(host, type_name):
    ref, ticks = spot(host, type_name), Ticks()
    every(ref, "t", ticks)
    ticks.wait()
    eventually(lambda: statistics(host, "t").missed >= 5, "ticks are missed")
    assert (ticks.count, statistics(host, "t").ticks) == (1, 1)
    queued = sum(queue.reserved_items for queue in spot_state(host, "x").queues)
    assert queued == 1, "the one that runs"
    ticks.go()
    ticks.wait()
    assert ticks.count == 2
    ticks.go(1000)
    cancel(ref, "t")
    assert ticks.most == 1
    at_rest(host)


def test_a_tick_that_waits_for_the_spot_is_not_piled_up_either(host):
    ref, ticks, gate = spot(host, "Hall"), Ticks(), Gate()
    ticks.go(1000)
    every(ref, "t", ticks)
    do(ref, lambda *_: gate())
    gate.wait_begun()
    before = statistics(host, "t").missed
    eventually(lambda: statistics(host, "t").missed >= before + 5, "ticks are missed")
    assert spot_state(host, "x").queues[0].reserved_items <= 2, "the handler and one tick"
    gate.open()
    cancel(ref, "t")
    at_rest(host)


def test_a_tick_that_finds_no_room_is_missed():
    with world(application_message_capacity=1) as host:
        ref, ticks, gate = spot(host, "Hall"), Ticks(), Gate()
        do(ref, lambda hall, _: (hall.timers.every("t", SOON, ticks), gate()))
        gate.wait_begun()
        eventually(lambda: statistics(host, "t").missed >= 3, "ticks find no room")
        assert ticks.count == 0
        gate.open()
        ticks.wait()
        ticks.go(1000)
        host.spots.close("x").result(PATIENCE)
        at_rest(host)


def test_per_actor_timers_run_beside_the_spot_and_each_other():
    with world(workers=4) as wide:
        ref, one, other, gate = spot(wide, "Room"), Ticks(), Ticks(), Gate()
        every(ref, "one", one)
        every(ref, "other", other)
        do(ref, lambda *_: gate())
        gate.wait_begun()
        one.wait()
        other.wait()
        for ticks in (one, other):
            ticks.go(1000)
        gate.open()
        wide.spots.close("x").result(PATIENCE)


def test_spot_wide_timers_never_overlap_each_other_nor_handlers(host):
    ref, inside, overlaps, done = spot(host, "Hall"), [], [], [0]

    def alone(*_: Any) -> None:
        inside.append(1)
        overlaps.append(len(inside))
        inside.pop()
        done[0] += 1

    for name in "abc":
        every(ref, name, alone)
    for _ in range(200):
        do(ref, alone)
    eventually(lambda: done[0] > 230, "they run")
    ref.close().result(PATIENCE)
    assert set(overlaps) == {1}
    at_rest(host)


@pytest.mark.parametrize("type_name", MODES)
def test_no_tick_begins_after_cancel_or_close(host, type_name):
    for way in ("cancel", "close"):
        for _ in range(8):
            over, late, seen = threading.Event(), [], []

            def tick(over: threading.Event = over, late: list[Any] = late, seen: list[Any] = seen) -> None:
                seen.append(1)
                if over.is_set():
                    late.append(1)

            ref = spot(host, type_name)
            for name in "abc":
                every(ref, name, tick, 1e-4)
            eventually(lambda seen=seen: seen)
            if way == "close":
                ref.close().result(PATIENCE)
            else:
                for name in "abc":
                    cancel(ref, name)
                if type_name in ("Room", "Square"):  # one that had begun may run beside
                    for queue in spot_state(host, "x").queues:
                        eventually(
                            lambda name=queue.name: all(
                                q.holder is None for q in spot_state(host, "x").queues if q.name == name
                            )
                        )
            over.set()
            gate = Gate()
            gate.open()
            if way == "cancel":
                do(ref, lambda *_: None).result(PATIENCE)
                ref.close().result(PATIENCE)
            assert late == []
    at_rest(host)


def test_a_tick_that_waits_in_line_does_not_begin_after_a_cancel(host):
    ref, ticks, gate = spot(host, "Hall"), Ticks(), Gate()

    def holds(hall: Any, _: Any) -> None:
        hall.timers.every("t", SOON, ticks)
        gate()
        hall.timers.cancel("t")

    do(ref, holds)
    gate.wait_begun()
    eventually(lambda: spot_state(host, "x").queues[0].waiting == 1, "a tick waits")
    gate.open()
    assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
    assert ticks.count == 0
    at_rest(host)


def test_a_tick_that_waits_too_long_at_close_is_interrupted(host):
    ref, never, seen = spot(host, "Room"), Completion[None](), []

    async def waits() -> None:
        seen.append("begun")
        try:
            await never
        except BaseException as error:
            seen.append(type(error))
            raise

    every(ref, "t", waits)
    eventually(lambda: seen)
    ref.close(timeout=0.05).result(PATIENCE)
    assert seen == ["begun", ShuttingDown]
    at_rest(host)


@pytest.mark.parametrize("type_name", MODES)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_tick_that_raises_is_logged_and_the_timer_goes_on(host, type_name, is_async, caplog):
    ref, seen = spot(host, type_name), []

    def plain() -> None:
        seen.append(1)
        raise ValueError("in the tick")

    async def later() -> None:
        plain()

    every(ref, "t", later if is_async else plain)
    eventually(lambda: len(seen) >= 3, "it goes on")
    cancel(ref, "t")
    eventually(lambda: len(caplog.records) >= 3)
    assert all(record.exc_info and record.exc_info[1].args == ("in the tick",) for record in caplog.records)
    assert "timer 't' of spot 'x'" in caplog.text
    at_rest(host)


def test_names_are_unique_until_they_are_cancelled(host):
    ref, first, second = spot(host, "Hall"), Ticks(), Ticks()
    for ticks in (first, second):
        ticks.go(1000)
    every(ref, "t", first, 600)
    with pytest.raises(AlreadyExists, match="'t'"):
        every(ref, "t", second)
    cancel(ref, "t")
    with pytest.raises(NotFound, match="'t'"):
        cancel(ref, "t")
    every(ref, "t", second)
    second.wait()
    cancel(ref, "t")
    assert first.count == 0
    at_rest(host)


BAD_PERIODS = [0, -1, float("nan"), float("inf"), True, "1", None, 1e-320]


@pytest.mark.parametrize("seconds", BAD_PERIODS)
def test_bad_periods_are_refused(host, seconds):
    with pytest.raises(ValueError, match="period"):
        timer(seconds)
    with pytest.raises(ValueError, match="period"):
        every(spot(host, "Room"), "t", print, seconds)
    at_rest(host)


@pytest.mark.parametrize(("name", "error"), [("", ValueError), ("x" * 256, ValueError), (5, TypeError)])
def test_bad_names_are_refused(host, name, error):
    with pytest.raises(error):
        every(spot(host, "Room"), name, print)


def test_a_period_of_ages_is_fine(host):
    ref = spot(host, "Room")
    every(ref, "t", print, 1e300)
    assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
    at_rest(host, timers=1)
    cancel(ref, "t")
    at_rest(host)


def test_timers_of_a_closed_spot_are_refused(host):
    ref = spot(host, "Room")
    room = do(ref, lambda room, _: room).result(PATIENCE)
    ref.close().result(PATIENCE)
    with pytest.raises(ShuttingDown):
        room.timers.every("t", SOON, print)
    with pytest.raises(NotFound):
        room.timers.cancel("t")


def test_a_failed_creation_leaves_no_timer():
    class Fails(Clock):
        def on_create(self) -> None:
            self.timers.every("mine", SOON, pytest.fail)
            raise PermissionError("no")

    with world(Fails) as host:
        assert isinstance(outcome(host.spots.create("Fails", "x").submit()), PermissionError)
        at_rest(host)


def test_a_timer_made_in_on_create_ticks_when_the_spot_is_open():
    ticks = Ticks()
    ticks.go(1000)

    class Makes(Room):
        def on_create(self) -> None:
            self.timers.every("mine", SOON, ticks)

    with world(Makes) as host:
        host.spots.create("Makes", "x").result(PATIENCE)
        ticks.wait()


def test_a_spot_that_is_closing_does_not_tick(host):
    ref, ticks, gate = spot(host, "Room"), Ticks(), Gate()
    ticks.go(1000)
    every(ref, "t", ticks)
    ticks.wait()
    do(ref, lambda *_: gate())
    gate.wait_begun()
    closed = Background(lambda: ref.close().result(PATIENCE))
    eventually(lambda: not spot_state(host, "x").timers, "the timers have stopped")
    gate.open()
    closed.result()
    at_rest(host)


@pytest.mark.parametrize("type_name", ["Room", "Hall"])
def test_a_tick_may_close_its_spot(host, type_name):
    ref, ended = spot(host, type_name), []

    def closes() -> None:
        with pytest.raises(InvalidOperation, match="wait for itself"):
            ref.close().result()
        ended.append(ref.close().submit())

    every(ref, "t", closes)
    eventually(lambda: ended)
    ended[0].result(PATIENCE)
    assert "x" not in host.spots
    at_rest(host)
