"""Ctrl-C (decision 15): at once in the user's own code, at the next safe point when it comes inside the runtime."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE

from zlink_nogil import Host, _sync
from zlink_nogil.messaging import Mesh
from zlink_nogil.scheduler import Completion, WorkerPool, interrupts
from zlink_nogil.state import StateLane
from zlink_nogil.state import lane as lane_module

MAIN = threading.main_thread().ident


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def ctrl_c_from_elsewhere() -> None:
    assert MAIN is not None
    signal.pthread_kill(MAIN, signal.SIGINT)


def swallowing(_signum: int, _frame: FrameType | None) -> None:
    pass


@pytest.fixture(autouse=True)
def _usual_handler() -> Iterator[None]:
    assert threading.current_thread() is threading.main_thread(), "signals are the main thread's business"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    assert interrupts._previous == [], "each install was undone"
    assert not interrupts._pending, "each interrupt was told"


@pytest.fixture
def deferring() -> Iterator[None]:
    assert interrupts.install()
    yield
    interrupts.restore()


@pytest.fixture
def completion() -> Iterator[Completion[Any]]:
    with WorkerPool(1) as pool:
        yield Completion(pool)


def interrupt_a_turn() -> None:
    """An interrupt inside the runtime: noted, and told to nobody yet."""
    ended = []
    StateLane("lane").run(lambda: (ctrl_c(), ended.append("the turn")))
    assert ended == ["the turn"]


# -- where it raises ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("deferring")
def test_in_the_users_own_code_it_raises_at_once():
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


@pytest.mark.usefixtures("deferring")
def test_inside_the_runtime_it_waits_for_the_next_safe_point():
    interrupt_a_turn()
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_interrupted()
    interrupts.raise_if_interrupted()  # told once


@pytest.mark.usefixtures("deferring")
def test_waiting_for_an_outcome_is_a_safe_point(completion):
    interrupt_a_turn()
    with pytest.raises(KeyboardInterrupt):
        completion.result(PATIENCE)
    assert completion._wakers == []
    assert completion.succeed(1), "the operation is left alone"
    interrupt_a_turn()
    assert completion.result() == 1, "nothing to wait for, no safe point"
    with pytest.raises(KeyboardInterrupt):
        interrupts.park(_sync.Parker())


def test_a_parked_main_thread_is_interrupted(completion, monkeypatch):
    told = threading.Event()
    insisting: list[Background] = []

    def once(_signum: int, _frame: FrameType | None) -> None:
        if not told.is_set():
            told.set()
            raise KeyboardInterrupt

    def insist() -> None:
        """One that comes in the last instructions before the system call would be seen after it: Python's own race."""
        while not told.wait(0.01):
            ctrl_c_from_elsewhere()

    class Announced(_sync.Parker):
        __slots__ = ()

        def park(self, timeout: float | None = None) -> bool:
            insisting.append(Background(insist))
            return super().park(timeout)

    signal.signal(signal.SIGINT, once)
    assert interrupts.install()
    monkeypatch.setattr(_sync, "Parker", Announced)
    with pytest.raises(KeyboardInterrupt):
        completion.result(PATIENCE)
    assert completion._wakers == []
    insisting.pop().result()
    interrupts.raise_if_interrupted()  # a late one; nobody cares any more
    interrupts.restore()


@pytest.mark.usefixtures("deferring")
def test_between_the_look_and_the_wait_it_is_not_lost():
    """When it comes after `park` has looked for a mark, nothing else would wake the thread."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code is interrupts.raise_if_interrupted.__code__ and event == "return":
            sys.settrace(before)
            ctrl_c()
        return trace

    before = sys.gettrace()
    parker = _sync.Parker()
    parker.unpark()  # or a lost interrupt would be a hang
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupts.park(parker)
    finally:
        sys.settrace(before)


@pytest.mark.usefixtures("deferring")
def test_a_wait_for_a_lane_is_not_broken_off(monkeypatch):
    lane, gate = StateLane("lane"), Gate()

    class Announced(lane_module._Ticket):
        __slots__ = ()

        def wait(self) -> None:
            Background(lambda: (ctrl_c_from_elsewhere(), gate.open()))
            super().wait()

    monkeypatch.setattr(lane_module, "_Ticket", Announced)
    busy = Background(lane.run, gate)
    gate.wait_begun()
    assert lane.run(lambda: "the turn is had first") == "the turn is had first"
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_interrupted()
    busy.result()
    assert lane.run(lambda: "free") == "free"


@pytest.mark.usefixtures("deferring")
def test_only_the_main_thread_is_told():
    interrupt_a_turn()
    Background(interrupts.raise_if_interrupted).result()
    assert not Background(interrupts.park, _sync.Parker(), 0).result()
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_interrupted()


@pytest.mark.usefixtures("deferring")
def test_one_that_is_told_at_once_tells_the_noted_one_too():
    interrupt_a_turn()
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    interrupts.raise_if_interrupted()


# -- installing -----------------------------------------------------------------------------------------------------


def test_the_users_handler_is_called_at_the_safe_point():
    called = []
    signal.signal(signal.SIGINT, lambda signum, _: called.append(signum))
    assert interrupts.install()
    interrupt_a_turn()
    assert called == []
    interrupts.raise_if_interrupted()
    assert called == [signal.SIGINT]
    ctrl_c()
    assert called == [signal.SIGINT] * 2
    interrupts.restore()


def test_restore_puts_the_previous_handler_back():
    signal.signal(signal.SIGINT, swallowing)
    assert interrupts.install()
    assert signal.getsignal(signal.SIGINT) is not swallowing
    interrupts.restore()
    assert signal.getsignal(signal.SIGINT) is swallowing


def test_installs_nest():
    for _ in range(2):
        assert interrupts.install()
    interrupts.restore()
    interrupt_a_turn()
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_interrupted()
    interrupts.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_python_does_not_handle_is_left_alone(handler):
    signal.signal(signal.SIGINT, handler)
    assert not interrupts.install()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_host_installs_it_before_it_starts_anything_and_restores_it_once(monkeypatch):
    monkeypatch.setattr(Mesh, "start", lambda *_: interrupt_a_turn())
    host = Host(workers=1)
    host.mesh("test")
    try:
        host.start()
    except KeyboardInterrupt:
        pytest.fail("it raises in the middle of a turn")
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_interrupted()
    host.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    host.close()


def test_only_the_main_thread_installs():
    assert not Background(interrupts.install).result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
