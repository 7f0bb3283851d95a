"""Permits: who waits, who borrows, and that none is lost. Every schedule of these: tests/schedules/test_permits.py."""

from __future__ import annotations

import os
import threading

import pytest
from support import PATIENCE, eventually, together

from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.messaging import permits as module
from zlink_nogil.messaging.permits import Permits


class Socket:
    """Something that takes permits and counts how often it is told that it has one."""

    def __init__(self, permits: Permits) -> None:
        self.permits = permits
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def take(self, wanted: int) -> int:
        return self.permits.take(wanted, self.wake)

    def forget(self) -> None:
        self.permits.forget(self.wake)


def waiting_thread(permits: Permits, done: list[str], name: str = "thread") -> threading.Thread:
    """A plain thread that waits for one permit; returns when it is in the line."""
    before = len(permits._line)

    def run() -> None:
        permits.acquire(PATIENCE)
        done.append(name)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: len(permits._line) == before + 1, "the thread waits")
    return thread


@pytest.mark.parametrize("most", [0, -1])
def test_there_is_at_least_one(most):
    with pytest.raises(ValueError, match="max_queued_application_jobs"):
        Permits(most)


def test_a_socket_gets_what_is_free_up_to_what_it_wants():
    permits = Permits(10)
    socket = Socket(permits)
    assert (socket.take(4), socket.take(64), permits.free()) == (4, 6, 0)
    permits.give_back(10)
    assert (permits.free(), socket.woken) == (10, 0)


def test_a_socket_that_gets_none_is_woken_once_by_the_first_that_is_returned():
    permits = Permits(2)
    socket = Socket(permits)
    assert socket.take(2) == 2
    assert socket.take(5) == socket.take(5) == 0  # asking twice is standing in line once
    permits.give_back()
    assert (socket.woken, permits.free()) == (1, 0)  # the permit is kept for it
    permits.give_back()
    assert (socket.woken, permits.free()) == (1, 1)
    assert socket.take(5) == 2
    assert permits.free() == 0


def test_waiting_sources_are_served_oldest_first_whatever_they_are():
    permits = Permits(1)
    permits.acquire(1.0)
    first, third = Socket(permits), Socket(permits)
    done: list[str] = []
    assert first.take(1) == 0
    second = waiting_thread(permits, done)
    assert third.take(1) == 0
    permits.give_back()
    assert (first.woken, done, third.woken) == (1, [], 0)
    permits.give_back(first.take(1))
    second.join(PATIENCE)
    assert (done, third.woken) == (["thread"], 0)
    permits.give_back()
    assert third.woken == 1
    permits.give_back(third.take(1))
    assert permits.free() == 1


def test_nobody_overtakes_who_waits():
    permits = Permits(2)
    permits.acquire(1.0)
    permits.acquire(1.0)
    old, young = Socket(permits), Socket(permits)
    assert old.take(1) == 0
    permits.give_back()
    assert young.take(1) == 0  # there is none but the one kept for the old one
    assert old.take(5) == 1
    permits.give_back(2)
    assert young.take(1) == 1


def test_a_turn_borrows_below_zero_and_what_is_returned_pays_that_first():
    permits = Permits(1)
    socket = Socket(permits)
    permits.acquire(1.0)
    permits.borrow()
    permits.borrow()
    assert permits.free() == -2
    assert socket.take(1) == 0
    permits.give_back(2)
    assert (permits.free(), socket.woken) == (0, 0)
    permits.give_back()
    assert socket.woken == 1
    assert socket.take(1) == 1


def test_forgetting_a_socket_returns_what_was_granted_to_the_next_in_line():
    permits = Permits(1)
    permits.acquire(1.0)
    closing, staying = Socket(permits), Socket(permits)
    assert closing.take(1) == staying.take(1) == 0
    permits.give_back()
    assert (closing.woken, staying.woken) == (1, 0)
    closing.forget()
    assert staying.woken == 1
    assert staying.take(1) == 1
    permits.give_back()
    assert permits.free() == 1


def test_forgetting_a_socket_that_waits_takes_it_out_of_the_line():
    permits = Permits(1)
    permits.acquire(1.0)
    closing = Socket(permits)
    assert closing.take(1) == 0
    closing.forget()
    closing.forget()
    permits.give_back()
    assert (closing.woken, permits.free()) == (0, 1)


def test_a_wait_ends_at_its_timeout_and_leaves_no_trace():
    permits = Permits(1)
    permits.acquire(1.0)
    with pytest.raises(DeadlineExceeded, match="1 queued jobs"):
        permits.acquire(0.01)
    assert not permits._line
    permits.give_back()
    assert permits.free() == 1


def test_a_timeout_at_the_moment_of_the_grant_keeps_the_grant(monkeypatch):
    permits = Permits(1)
    permits.acquire(1.0)

    def time_out_just_after_the_grant(_parker, _timeout):
        permits.give_back()
        return False

    monkeypatch.setattr(module.interrupts, "park", time_out_just_after_the_grant)
    permits.acquire(1.0)  # it had won
    assert permits.free() == 0


@pytest.mark.parametrize("granted", [False, True])
def test_an_interrupted_wait_passes_on_what_it_was_granted(monkeypatch, granted):
    permits = Permits(1)
    permits.acquire(1.0)
    behind = Socket(permits)

    def interrupt(_parker, _timeout):
        assert behind.take(1) == 0
        if granted:
            permits.give_back()
        raise KeyboardInterrupt

    monkeypatch.setattr(module.interrupts, "park", interrupt)
    with pytest.raises(KeyboardInterrupt):
        permits.acquire(1.0)
    assert behind.woken == granted
    if not granted:
        permits.give_back()
    assert behind.take(1) == 1


def test_a_wake_may_take_at_once():
    """Wake-ups are called outside the lock."""
    permits = Permits(1)
    permits.acquire(1.0)
    taken: list[int] = []

    def wake() -> None:
        taken.append(permits.take(1, wake))

    assert permits.take(1, wake) == 0
    permits.give_back()
    assert taken == [1]


def test_after_takers_of_every_kind_all_are_back():
    permits = Permits(2)
    holders = threading.Semaphore(2)

    def plain() -> int:
        timeouts = 0
        for _ in range(200):
            try:
                permits.acquire(0.0005)
            except DeadlineExceeded:
                timeouts += 1
                continue
            assert holders.acquire(blocking=False), "three hold one of two permits"
            os.sched_yield()
            holders.release()
            permits.give_back()
        return timeouts

    def lead() -> None:
        woken = threading.Event()
        for _ in range(200):
            woken.clear()
            count = permits.take(2, woken.set)
            if count:
                permits.give_back(count)
            else:
                woken.wait(0.001)
        permits.forget(woken.set)

    for result in together(plain, plain, plain, lead):
        assert not isinstance(result, BaseException)
    assert permits.free() == 2
    assert not permits._line
    assert not permits._granted
