"""`Timers`, and who keeps the time, under every schedule: arm, cancel, fire, sleep."""

from __future__ import annotations

from typing import Any

import pytest

from zlink_nogil import _sync
from zlink_nogil.scheduler import ready as ready_module
from zlink_nogil.scheduler import timers as timers_module
from zlink_nogil.scheduler.timers import Timer, Timers
from zlink_nogil.scheduler.worker import Worker

from .floor import Flag, Floor
from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.scheduler.timers"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_module, "SPINS", 1)
    monkeypatch.setattr(timers_module, "_FEW", 1)


class Clock:
    """Notes when its timers fire."""

    def __init__(self, s: Scenario, timers: Timers) -> None:
        self.s = s
        self.timers = timers
        self.fired: dict[str, float] = {}
        self.order: list[str] = []

    def timer(self, name: str) -> Timer:
        def fires(timer: Any) -> None:
            s = self.s
            s.expect(name not in self.fired, f"{name} fires once")
            s.expect(timer.callback is None, "a timer that has fired holds nothing")
            self.fired[name] = s.now
            self.order.append(name)
            s.step("fires")

        return Timer(fires)

    def arm(self, name: str, seconds: float) -> Timer:
        timer = self.timer(name)
        self.timers.arm(timer, self.s.now + seconds)
        return timer


def cancel_against_fire(s: Scenario) -> None:
    """A timer fires or is cancelled: exactly one, and the counts come back to zero."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    armed = {name: clock.arm(name, -1.0) for name in ("a", "b", "c")}
    cancelled: list[str] = []

    def cancel() -> None:
        for name in ("c", "a"):
            if timers.cancel(armed[name]):
                cancelled.append(name)
                s.expect(name not in clock.fired, "it will not fire any more")

    s.thread("canceller", cancel)
    s.thread("another", cancel)
    s.thread("fires", timers.fire)
    s.check("one of the two", lambda: sorted([*clock.fired, *cancelled]) == ["a", "b", "c"])
    s.check("nothing is left", lambda: timers.armed() == 0 and timers.earliest() is None)


def test_cancel_against_fire() -> None:
    run_random(cancel_against_fire, 150)
    run_exhaustive(cancel_against_fire, preemptions=1, switches=1)
    run_lines(cancel_against_fire, MODULES)


def two_who_fire(s: Scenario) -> None:
    """Equal deadlines fire in arming order, however many fire; what is armed meanwhile fires, too."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    for name in ("1", "2", "3"):
        clock.arm(name, 0.0)

    def fire() -> None:
        s.sleep(1.0)
        timers.fire()

    def arm() -> None:
        s.sleep(1.0)
        clock.arm("4", 0.0)
        timers.fire()

    s.thread("fires", fire)
    s.thread("fires, too", fire)
    s.thread("arms", arm)
    s.check("in order", lambda: clock.order == ["1", "2", "3", "4"])


def test_two_who_fire() -> None:
    run_random(two_who_fire, 150)
    run_exhaustive(two_who_fire, preemptions=1, switches=0)
    run_lines(two_who_fire, MODULES)


def many_cancels(s: Scenario) -> None:
    """The heap is cleaned up while others arm and cancel: what stays armed fires, the count is right."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    early = [clock.arm(f"early {n}", 1.0) for n in range(3)]

    def cancel() -> None:
        for timer in early:
            timers.cancel(timer)
        s.expect(timers.armed() in (0, 1), "what was cancelled is not counted")

    def arm() -> None:
        timers.cancel(clock.arm("short-lived", 1.0))
        clock.arm("late", 2.0)

    s.thread("canceller", cancel)
    s.thread("arms", arm)
    s.check("one is left", lambda: timers.armed() == 1 == len([e for e in timers._heap if e[2].callback]))
    s.check("and the heap is small", lambda: len(timers._heap) <= 3)


def test_many_cancels() -> None:
    run_random(many_cancels, 150)
    run_exhaustive(many_cancels, preemptions=1)


def what_is_left_after_cancels(s: Scenario) -> None:
    """The earliest live one comes first: behind several dead ones, and when a clean-up has taken the top of the heap."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    armed = {n: clock.arm(str(n), float(n)) for n in (1, 5, 2, 6, 7, 3, 4)}

    def cancel(*numbers: int) -> None:
        for number in numbers:
            timers.cancel(armed[number])

    cancel(1, 2, 6, 7)
    s.expect(timers.earliest() == s.now + 3.0, "a clean-up keeps the order")
    armed |= {n: clock.arm(str(n), float(n)) for n in (1, 2)}
    cancel(1, 2)
    s.expect(timers.earliest() == s.now + 3.0, "the dead ones are no deadline")
    s.sleep(4.0)
    timers.fire()
    s.expect(clock.order == ["3", "4"], "the dead ones do not fire, and hide nobody")


def test_what_is_left_after_cancels() -> None:
    run_random(what_is_left_after_cancels, 1)


def a_count_while_the_heap_is_cleaned_up(s: Scenario) -> None:
    """Who asks how many are armed is told the number of one moment."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    early = [clock.arm(f"early {n}", 1.0) for n in range(2)]
    s.thread("canceller", lambda: [timers.cancel(timer) for timer in early])
    s.thread("counts", lambda: s.expect(0 <= timers.armed() <= 2, "never fewer than none"))


def test_a_count_while_the_heap_is_cleaned_up() -> None:
    run_exhaustive(a_count_while_the_heap_is_cleaned_up, preemptions=1, lines=MODULES)


def arm_against_fire(s: Scenario) -> None:
    """A timer that is due may fire while it is armed."""
    timers = Timers(lambda: None)
    clock = Clock(s, timers)
    s.thread("arms", clock.arm, "timer", -1.0)
    s.thread("fires", timers.fire)

    def fires() -> bool:
        timers.fire()
        return clock.order == ["timer"]

    s.check("it fires", fires)


def test_arm_against_fire() -> None:
    run_exhaustive(arm_against_fire, preemptions=1, lines=MODULES)


def an_earlier_timer(s: Scenario) -> None:
    """A worker that sleeps until a timer is due gets up for an earlier one; each fires at its time."""
    floor = Floor(s, 2)
    clock = Clock(s, floor.ready.timers)
    began = s.now

    def arm(name: str, seconds: float) -> None:
        clock.arm(name, seconds)
        s.sleep(30.0)

    floor.open()
    s.thread("late", arm, "late", 20.0)
    s.thread("early", arm, "early", 5.0)
    s.check("in time", lambda: in_time(clock, began, late=20.0, early=5.0))


def in_time(clock: Clock, began: float, **seconds: float) -> bool:
    return clock.fired.keys() == seconds.keys() and all(
        0.0 <= clock.fired[name] - began - wanted < 0.1 for name, wanted in seconds.items()
    )


def test_an_earlier_timer() -> None:
    run_random(an_earlier_timer, 150)
    run_exhaustive(an_earlier_timer, preemptions=1, switches=0)


def the_keeper_gets_work(s: Scenario) -> None:
    """Who keeps the time gets something long to do: another sleeper keeps it then, and no timer is late."""
    floor = Floor(s, 2)
    clock = Clock(s, floor.ready.timers)
    began = s.now

    def work(home: Worker) -> None:
        floor.add(floor.job(f"{home.index}", lambda _: s.sleep(100.0)), home)
        s.sleep(150.0)

    floor.open()
    clock.arm("timer", 5.0)
    s.thread("adder", work, floor.workers[0])
    s.check("in time", lambda: in_time(clock, began, timer=5.0))


def test_the_keeper_gets_work() -> None:
    run_random(the_keeper_gets_work, 150)
    run_exhaustive(the_keeper_gets_work, preemptions=1, switches=0)


def the_keeper_gets_up(s: Scenario) -> None:
    """Who keeps the time gets up for one timer, whose work takes long, with the next due soon."""
    floor = Floor(s, 2)
    clock = Clock(s, floor.ready.timers)
    began = s.now

    def give_work(timer: Any) -> None:  # noqa: ARG001 - as a timer calls it
        floor.put(floor.job("long", lambda _: s.sleep(100.0)), None, floor.workers[0])
        floor.put(floor.job("other", lambda _: None), None)

    floor.open()
    floor.ready.timers.arm(Timer(give_work), began + 2.0)
    clock.arm("next", 5.0)
    s.thread("waits", s.sleep, 150.0)
    s.check("in time", lambda: in_time(clock, began, next=5.0))


def test_the_keeper_gets_up() -> None:
    run_random(the_keeper_gets_up, 150)
    run_exhaustive(the_keeper_gets_up, preemptions=1, switches=0)


def the_keeper_goes(s: Scenario) -> None:
    """A guest that keeps the time and goes passes it on."""
    floor = Floor(s, 1)
    clock = Clock(s, floor.ready.timers)
    began = s.now
    flag, guest = Flag(), floor.equip(Worker(floor.workers[0].pool, 1, guest=True))

    def visit() -> None:
        floor.ready.join(guest)
        s.thread_now("opens", open_and_send_home)
        floor.work(guest, flag)
        floor.ready.leave(guest)
        s.sleep(100.0)

    def open_and_send_home() -> None:
        floor.open()
        clock.arm("timer", 5.0)
        flag.up = True
        guest.parker.unpark()

    s.thread("guest", visit)
    s.check("in time", lambda: in_time(clock, began, timer=5.0))


def test_the_keeper_goes() -> None:
    run_random(the_keeper_goes, 150)
    run_exhaustive(the_keeper_goes, preemptions=1)


def a_waker_that_fires_late(s: Scenario) -> None:
    """Both workers look at the clock at once and again: the one callback runs once, its work is done."""
    floor = Floor(s, 2)
    ran = _sync.Event()
    s.timeouts_race(3.0)

    def give_work(timer: Any) -> None:  # noqa: ARG001
        floor.put(floor.job("work", lambda _: ran.set()), None)

    floor.open()
    floor.ready.timers.arm(Timer(give_work), s.now + 2.0)
    s.thread("waits", ran.wait)


def test_a_waker_that_fires_late() -> None:
    run_random(a_waker_that_fires_late, 150)
