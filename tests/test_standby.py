"""`StandBy` (decision 7): the one thread that waits for descriptors and deadlines, whatever its drivers do."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, eventually, together

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import StandBy
from zlink_nogil.scheduler.role import LONGEST_SLEEP


class Pipe:
    """A driver of one pipe: a rotation empties it, calls `then` and returns what that returns."""

    def __init__(self, then: Callable[[], float | None] = lambda: None) -> None:
        self.then = then
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.watched: Collection[int] = [self.read]
        self.rotations = 0
        self.thread: threading.Thread | None = None
        self._rotated = threading.Semaphore(0)

    def descriptors(self) -> Collection[int]:
        return self.watched

    def rotate(self, _: Collection[int] | None = None, /) -> float | None:
        self.rotations += 1
        self.thread = threading.current_thread()
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 100)
        try:
            return self.then()
        finally:
            self._rotated.release()

    def wake(self) -> None:
        os.write(self.write, b"x")

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._rotated.acquire(timeout=PATIENCE), "the driver was not rotated"

    def wake_and_wait(self) -> None:
        self.wake()
        self.wait()

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


@pytest.fixture
def standby() -> Iterator[StandBy]:
    standby = StandBy("tested")
    yield standby
    for role in list(standby._roles.values()):
        standby.remove(role.driver)


@pytest.fixture
def pipe() -> Iterator[Callable[..., Pipe]]:
    pipes: list[Pipe] = []

    def make(*args: Any) -> Pipe:
        pipes.append(Pipe(*args))
        return pipes[-1]

    yield make
    for each in pipes:
        each.close()


def settled(standby: StandBy, driver: Pipe) -> int:
    """How often `driver` has been rotated when the thread has gone once round after now."""
    other = Pipe()
    standby.add(other)
    other.wait()
    other.wake_and_wait()
    standby.remove(other)
    other.close()
    return driver.rotations


# -- leading --------------------------------------------------------------------------------------------------------


def test_a_driver_is_rotated_when_added_and_whenever_it_is_readable(standby, pipe):
    first, second = pipe(), pipe()
    for driver in (first, second):
        standby.add(driver)
        driver.wait()
    for _ in range(3):
        first.wake_and_wait()
    assert settled(standby, first) == 4
    assert second.rotations == 1, "nobody woke it"
    assert first.thread is second.thread
    assert first.thread is not None
    assert first.thread.name == "tested"


def test_a_deadline_that_has_come_rotates_once_more_each_time(standby, pipe):
    answers: list[float | None] = [0.0, -1.0, _sync.monotonic() + 0.001, None]
    driver = pipe(lambda: answers.pop(0))
    standby.add(driver)
    driver.wait(4)
    assert settled(standby, driver) == 4


def test_with_nothing_to_do_it_sleeps_in_one_untimed_call(monkeypatch, pipe):
    polls: list[float] = []

    class Epoll:
        def __init__(self) -> None:
            real = real_epoll()
            self.register, self.unregister, self.modify = real.register, real.unregister, real.modify
            self.fileno, self.close, self._poll = real.fileno, real.close, real.poll

        def poll(self, timeout: float) -> Any:
            if timeout or not polls:
                polls.append(timeout)  # the others are looks at what is readable
            return self._poll(timeout)

    real_epoll = _sync.Epoll
    monkeypatch.setattr(_sync, "Epoll", Epoll)
    standby, driver = StandBy(), pipe()
    standby.add(driver)
    driver.wait()
    driver.wake_and_wait()
    before = len(polls)
    for _ in range(10):
        driver.wake_and_wait()
    assert len(polls) <= before + 11
    assert (polls[0], set(polls[1:])) == (0.0, {-1.0}), "a new driver is led at once; no fixed interval"
    driver.then = lambda: _sync.monotonic() + 1000.0
    driver.wake_and_wait()
    eventually(lambda: polls[-1] == pytest.approx(1000.0, abs=PATIENCE), "it sleeps until the deadline")
    standby.remove(driver)


@pytest.mark.parametrize("distance", [2147483.648, 1e12, math.inf])
def test_no_deadline_is_too_far_away(standby, pipe, distance):
    driver = pipe(lambda: _sync.monotonic() + distance)
    standby.add(driver)
    driver.wait()
    settled(standby, driver)
    assert standby._sleep_time() == LONGEST_SLEEP
    driver.wake_and_wait()


def test_what_is_watched_may_change_from_one_rotation_to_the_next(standby, pipe):
    driver, other = pipe(), pipe()
    standby.add(driver)
    driver.wait()

    def switch() -> None:
        driver.watched = [other.read]

    driver.then = switch
    driver.wake_and_wait()
    driver.wake()  # not watched any more
    assert settled(standby, driver) == 2
    other.wake()
    driver.wait()
    os.read(other.read, 1)


# -- adding and removing --------------------------------------------------------------------------------------------


def test_after_remove_the_driver_is_not_touched_any_more(standby, pipe):
    driver, stays = pipe(), pipe()
    standby.add(stays)
    standby.add(driver)
    driver.wait()
    standby.remove(driver)
    driver.watched = pytest.fail  # type: ignore[assignment]
    driver.wake()
    assert settled(standby, driver) == 1


def test_remove_waits_for_the_rotation_that_runs(standby, pipe):
    gate = Gate()
    driver = pipe(gate)
    standby.add(driver)
    gate.wait_begun()
    remove = Background(standby.remove, driver)
    assert driver.rotations == 1
    assert remove.running()
    gate.open()
    remove.result()
    assert driver.rotations == 1


def test_a_driver_that_is_removed_while_it_is_readable_is_not_rotated(standby, pipe):
    gate = Gate()
    driver, busy = pipe(), pipe(gate)
    standby.add(driver)
    driver.wait()
    standby.add(busy)
    gate.wait_begun()
    driver.wake()
    remove = Background(standby.remove, driver)
    eventually(lambda: standby._changes, "the thread will see both at once")
    gate.open()
    remove.result()
    assert settled(standby, driver) == 1


def test_with_no_driver_left_the_thread_ends_and_the_next_add_starts_one(standby, pipe):
    driver = pipe()
    for lives in (1, 2, 3):
        standby.add(driver)
        driver.wait()
        thread = driver.thread
        standby.remove(driver)
        assert thread is not None
        assert not thread.is_alive()
        assert standby._thread is None
        assert driver.rotations == lives


def test_adding_and_removing_again_is_harmless(standby, pipe):
    driver = pipe()
    standby.remove(driver)
    standby.add(driver)
    standby.add(driver)
    driver.wait()
    driver.wake_and_wait()
    assert settled(standby, driver) == 2
    standby.remove(driver)
    standby.remove(driver)


def test_many_come_and_go_at_once(standby):
    def come_and_go() -> None:
        driver = Pipe()
        for _ in range(5):
            standby.add(driver)
            driver.wait()
            driver.wake_and_wait()
            standby.remove(driver)
        driver.close()

    assert together(*[come_and_go] * 4) == [None] * 4
    assert (standby._thread, standby._roles, standby._by_fd) == (None, {}, {})


def test_the_thread_itself_adds_and_removes_nothing_that_it_would_wait_for(standby, pipe):
    errors: list[BaseException] = []
    other = pipe()

    def try_all() -> None:
        standby.add_soon(other)
        for change in (standby.add, standby.remove):
            try:
                change(driver)
            except InvalidOperation as error:
                errors.append(error)

    driver = pipe(try_all)
    standby.add(driver)
    driver.wait()
    other.wait()
    assert len(errors) == 2
    other.wake_and_wait()
    driver.wake_and_wait()


def test_adding_soon_waits_for_nobody(standby, pipe):
    """Not even for a thread that waits for what the caller holds."""
    held, begun, released = threading.Lock(), threading.Event(), threading.Event()

    def wait_for_the_lock() -> None:
        begun.set()
        with held:
            released.set()

    first, second = pipe(wait_for_the_lock), pipe()
    with held:
        standby.add_soon(first)
        assert begun.wait(PATIENCE)
        standby.add_soon(second)
    assert released.wait(PATIENCE)
    second.wait()


# -- drivers that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("in a driver"), SystemExit("in a driver")])
def test_it_survives_a_driver_that_raises(standby, pipe, caplog, error):
    def fail() -> None:
        raise error

    good, bad = pipe(), pipe(fail)
    now = _sync.monotonic()
    for driver in (good, bad):
        standby.add(driver)
        driver.wait()
    good.wake_and_wait()
    assert "in a driver" in caplog.text
    assert standby._roles[id(bad)].deadline > now, "it is tried again before long"
    bad.then = lambda: None
    bad.wake_and_wait()
    settled(standby, bad)
    assert standby._roles[id(bad)].deadline is None, "as if nothing had happened"


def test_a_driver_that_cannot_be_watched_is_refused(standby, pipe):
    good, bad = pipe(), pipe()
    standby.add(good)
    good.wait()
    gone = os.dup2(bad.read, 900)  # no number that a new descriptor gets
    os.close(gone)
    bad.watched = [bad.read, gone]
    with pytest.raises(OSError, match="descriptor"):
        standby.add(bad)
    bad.watched = property(lambda: 1)  # type: ignore[assignment]
    with pytest.raises(TypeError):
        standby.add(bad)
    assert (bad.rotations, list(standby._by_fd.values())) == (0, [standby._roles[id(good)]]), "nothing of it is left"
    bad.watched = [bad.read]
    standby.add(bad)
    bad.wait()
    good.wake_and_wait()


def test_a_refused_first_driver_leaves_no_thread(standby, pipe):
    driver = pipe()
    driver.watched = [-1]
    with pytest.raises((OSError, ValueError)):
        standby.add(driver)
    assert standby._thread is None
    driver.watched = [driver.read]
    standby.add(driver)
    driver.wait()


def test_a_descriptor_that_cannot_be_watched_later_is_tried_again(standby, pipe):
    driver, other = pipe(), pipe()
    standby.add(driver)
    driver.wait()
    gone = os.dup(other.read)
    os.close(gone)

    def add_gone() -> None:
        driver.watched = [driver.read, other.read, gone]

    def add_other() -> None:
        driver.watched = [driver.read, other.read]

    driver.then = add_gone
    driver.wake_and_wait()
    driver.then = add_other
    driver.wake_and_wait()
    other.wake()
    driver.wait()
    os.read(other.read, 1)


def test_a_driver_that_has_closed_its_descriptor_can_be_removed(standby, pipe):
    """Even when the number is another driver's by then: that one is left alone."""
    stays, leaves, heir = pipe(), pipe(), pipe()
    for driver in (stays, leaves):
        standby.add(driver)
        driver.wait()
    os.dup2(heir.read, leaves.read)
    heir.watched = [leaves.read]
    standby.add(heir)
    heir.wait()
    standby.remove(leaves)
    heir.wake_and_wait()
    stays.wake_and_wait()
    os.close(leaves.read)
    standby.remove(heir)
    stays.wake_and_wait()
    leaves.read = os.dup(heir.read)  # to be closed with the others
