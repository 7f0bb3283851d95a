"""The parker, as it is in production (the schedules put a scripted one in its place)."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from background import Background

from zlink_nogil import _sync


def test_a_permit_that_comes_first_is_kept_once() -> None:
    parker = _sync.Parker()
    parker.unpark()
    parker.unpark()
    assert parker.park(0)
    assert not parker.park(0)


def test_permits_of_two_threads_at_the_same_moment_are_one() -> None:
    parker = _sync.Parker()
    parker._permits.put(None)  # both have found none there
    parker._permits.put(None)
    assert parker.park()
    assert not parker.park(0)


@pytest.mark.parametrize("timeout", [0, -1, 0.01, -float("inf")])
def test_without_a_permit_the_time_passes(timeout: float) -> None:
    assert not _sync.Parker().park(timeout)


def test_an_endless_timeout_is_none() -> None:
    parker = _sync.Parker()
    waiting = Background(parker.park, float("inf"))
    parker.unpark()
    assert waiting.result()


def test_none_is_lost_back_and_forth() -> None:
    """Each waits for the other's; one that was lost would be a hang."""
    there, back = _sync.Parker(), _sync.Parker()

    def answer() -> int:
        return sum(there.park() and back.unpark() is None for _ in range(2000))

    answering = Background(answer)
    for _ in range(2000):
        there.unpark()
        assert back.park(30)
    assert answering.result() == 2000


def test_what_was_written_before_the_permit_is_seen_after_it() -> None:
    """Two threads write and unpark; the one that parks never sleeps on what it has not seen."""
    parker, written = _sync.Parker(), [0, 0]

    def write(place: int) -> None:
        for _ in range(2000):
            written[place] += 1
            parker.unpark()

    writers = [Background(write, place) for place in range(2)]
    while sum(written) < 4000:
        assert parker.park(30), written
    for writer in writers:
        writer.result()


def test_a_signal_is_handled_while_the_main_thread_parks() -> None:
    assert threading.current_thread() is threading.main_thread()
    heard: list[int] = []
    parker = _sync.Parker()

    def handler(number: int, _frame: object) -> None:
        heard.append(number)
        parker.unpark()

    def insist() -> None:
        while not heard:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        insisting = Background(insist)
        assert parker.park(30)
        insisting.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(heard) == {signal.SIGUSR1}
