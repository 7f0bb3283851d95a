"""`StateLane`: its contract and guarantees (design 3.1), one test each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, together

from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.state import StateLane
from zlink_nogil.state import lane as lane_module


class Busy:
    """A thread that is in a turn of `lane` until it is let go."""

    def __init__(self, lane: StateLane) -> None:
        self._gate = Gate()
        self._call = Background(lane.run, self._gate)
        self._gate.wait_begun()
        self.thread = self._call.thread

    def let_go(self) -> None:
        self._gate.open()
        self._call.result()


def nothing() -> None:
    pass


@pytest.fixture
def lane() -> StateLane:
    return StateLane("orders")


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to wait until one more caller is in the line of some lane."""
    arrived = threading.Semaphore(0)

    class Announced(lane_module._Ticket):
        __slots__ = ()

        def wait(self) -> None:
            arrived.release()
            super().wait()

    monkeypatch.setattr(lane_module, "_Ticket", Announced)

    def wait() -> None:
        assert arrived.acquire(timeout=PATIENCE), "nobody has parked"

    return wait


# -- run ------------------------------------------------------------------------------------------------------------


def test_one_turn_at_a_time(lane):
    inside, total = 0, 0

    def turn() -> None:
        nonlocal inside, total
        inside += 1
        assert inside == 1
        total += 1  # three steps of the interpreter: loses updates unless the turns exclude each other
        inside -= 1

    def turns() -> None:
        for _ in range(500):
            lane.run(turn)

    assert together(*[turns] * 4) == [None] * 4
    assert total == 2000


def test_run_returns_the_result(lane):
    assert lane.run(divmod, 7, 2) == (3, 1)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), GeneratorExit()])
def test_run_raises_what_the_work_raises_and_frees_the_lane(lane, error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        lane.run(fail)
    assert caught.value is error
    assert StateLane.current is None
    assert Background(lane.run, lambda: "free").result() == "free"


def test_one_callers_turns_are_in_its_order(lane):
    ran: list[tuple[int, int]] = []

    def turns(caller: int) -> None:
        for turn in range(300):
            lane.run(ran.append, (caller, turn))

    together(*[lambda caller=caller: turns(caller) for caller in range(3)])
    for caller in range(3):
        assert [turn for who, turn in ran if who == caller] == list(range(300))


def test_current_is_the_innermost_lane_of_this_thread_only(lane):
    inner = StateLane("inner")

    def turn() -> None:
        assert StateLane.current is lane
        assert inner.run(lambda: (StateLane.current, lane.is_on_lane, inner.is_on_lane)) == (inner, True, True)
        assert StateLane.current is lane
        assert not inner.is_on_lane
        assert Background(lambda: (StateLane.current, lane.is_on_lane)).result() == (None, False)

    assert StateLane.current is None
    lane.run(turn)
    assert StateLane.current is None
    assert not lane.is_on_lane


def test_reentry_raises_naming_the_lane_and_never_hangs(lane):
    def reenter() -> None:
        lane.throw_if_reentrant()  # off the lane: nothing

        def inside() -> None:
            with pytest.raises(InvalidOperation, match="orders"):
                lane.throw_if_reentrant()
            with pytest.raises(InvalidOperation, match="orders"):
                lane.run(nothing)
            with pytest.raises(InvalidOperation, match="orders"):  # through another lane as well
                StateLane("between").run(lane.run, nothing)

        lane.run(inside)

    Background(reenter).result()
    assert lane.run(lambda: "usable") == "usable"


# -- posting --------------------------------------------------------------------------------------------------------


def test_post_on_a_free_lane_runs_on_the_poster(lane):
    seen: list[Any] = []
    assert lane.try_post(lambda: seen.append((threading.current_thread(), StateLane.current)))
    assert seen == [(threading.current_thread(), lane)]
    assert StateLane.current is None


def test_posted_work_runs_in_posting_order_on_whoever_leaves_the_lane(lane):
    busy = Busy(lane)
    ran: list[tuple[int, threading.Thread]] = []
    for index in range(5):
        assert lane.try_post(lambda index=index: ran.append((index, threading.current_thread())))
    assert ran == [], "try_post does not wait, and the lane is not free"
    busy.let_go()
    assert ran == [(index, busy.thread) for index in range(5)]


def test_work_posted_from_a_turn_runs_after_it(lane):
    ran: list[str] = []

    def turn() -> None:
        lane.try_post(lambda: (ran.append("posted"), lane.try_post(lambda: ran.append("posted by posted"))))
        ran.append("turn")

    lane.run(turn)
    assert ran == ["turn", "posted", "posted by posted"]


@pytest.mark.parametrize("error", [ValueError("lost?"), SystemExit("lost?")])
def test_an_exception_of_posted_work_goes_to_the_hook(error):
    told: list[BaseException] = []
    lane = StateLane("orders", on_error=told.append)

    def fail() -> None:
        raise error

    def turn() -> str:
        lane.try_post(fail)
        return "an innocent caller"

    assert lane.run(turn) == "an innocent caller"
    assert told == [error]


def test_without_a_hook_it_is_logged(lane, caplog):
    lane.try_post(lambda: 1 // 0)
    assert "'orders'" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_hook_that_raises_does_not_take_the_lane_with_it(caplog):
    lane = StateLane("orders", on_error=lambda _: [].pop())
    lane.try_post(lambda: 1 // 0)
    assert "ZeroDivisionError" in caplog.text, "never lost silently"
    assert Background(lane.run, lambda: "free").result() == "free"


# -- closing --------------------------------------------------------------------------------------------------------


def test_a_closed_lane_refuses_at_once(lane):
    lane.close()
    with pytest.raises(ShuttingDown, match="orders"):
        lane.run(pytest.fail, "ran on a closed lane")
    assert not lane.try_post(lambda: pytest.fail("ran on a closed lane"))
    lane.close()


def test_a_closed_lane_refuses_while_its_last_turn_runs(lane):
    gate = Gate()
    last = Background(lane.run, lambda: (lane.close(), gate()))
    gate.wait_begun()
    with pytest.raises(ShuttingDown):
        lane.run(nothing)
    assert not lane.try_post(nothing)
    gate.open()
    last.result()


def test_close_finishes_what_was_accepted(lane, parked):
    ran: list[str] = []
    busy = Busy(lane)
    lane.try_post(lambda: ran.append("posted"))
    close = Background(lambda: (lane.close(), ran.append("close returned")))
    parked()
    assert not lane.try_post(nothing), "nothing new"
    busy.let_go()
    close.result()
    assert ran == ["posted", "close returned"]


def test_every_close_waits_for_the_accepted_work(lane, parked):
    """Also the second one, and also when a parked caller is in the line before the posted work."""
    gate = Gate()
    busy = Busy(lane)
    waiting = Background(lane.run, nothing)
    parked()
    lane.try_post(gate)
    closes = [Background(lane.close) for _ in range(2)]
    parked()
    parked()
    busy.let_go()
    gate.wait_begun()
    assert all(close.running() for close in closes)
    gate.open()
    for close in closes:
        close.result()
    with pytest.raises(ShuttingDown):
        waiting.result()


def test_close_from_a_turn_runs_posted_work_when_it_ends(lane):
    ran: list[str] = []

    def turn() -> None:
        lane.try_post(lambda: ran.append("posted"))
        lane.close()
        lane.close()
        assert not lane.try_post(nothing)
        ran.append("turn")

    lane.run(turn)
    assert ran == ["turn", "posted"]
    with pytest.raises(ShuttingDown):
        lane.run(nothing)


def test_close_wakes_every_waiter_exactly_once(lane, parked):
    woken: list[str] = []

    def wait() -> None:
        try:
            lane.run(pytest.fail, "ran on a closed lane")
        except ShuttingDown:
            woken.append("woken")

    gate = Gate()
    last = Background(lane.run, lambda: (gate(), lane.close()))
    gate.wait_begun()
    waiters = [Background(wait) for _ in range(3)]
    for _ in waiters:
        parked()
    gate.open()
    for call in (last, *waiters):
        call.result()
    assert woken == ["woken"] * 3


# -- fairness and interrupts ----------------------------------------------------------------------------------------


def test_who_has_parked_gets_the_next_turn(lane, parked):
    """A free lane is taken by whoever arrives, but never past a caller in the line."""
    ran: list[str] = []
    gate = Gate()

    def barge() -> None:
        lane.run(gate)
        for _ in range(100):
            lane.run(ran.append, "barged")

    barger = Background(barge)
    gate.wait_begun()
    waiters = []
    for name in ("first", "second"):
        waiters.append(Background(lane.run, ran.append, name))
        parked()
    gate.open()
    for call in (barger, *waiters):
        call.result()
    assert ran[:2] == ["first", "second"]
    assert ran[2:] == ["barged"] * 100


@pytest.mark.parametrize("after_the_hand_over", [False, True])
def test_an_interrupted_waiter_does_not_swallow_a_hand_over(lane, monkeypatch, after_the_hand_over):
    interrupted = threading.Event()

    class Interrupted(lane_module._Ticket):
        __slots__ = ()

        def wait(self) -> None:
            interrupted.set()
            if after_the_hand_over:
                super().wait()
            raise KeyboardInterrupt

    monkeypatch.setattr(lane_module, "_Ticket", Interrupted)
    ran: list[str] = []
    busy = Busy(lane)
    waiter = Background(lane.run, pytest.fail, "ran although interrupted")
    assert interrupted.wait(PATIENCE)
    lane.try_post(lambda: ran.append("posted behind the waiter"))
    if not after_the_hand_over:
        with pytest.raises(KeyboardInterrupt):
            waiter.result()
    busy.let_go()
    with pytest.raises(KeyboardInterrupt):
        waiter.result()
    assert ran == ["posted behind the waiter"]
    assert lane.run(lambda: "free") == "free"


# -- several lanes --------------------------------------------------------------------------------------------------


def test_waiting_for_another_lane_in_a_turn_is_allowed(lane, parked):
    other = StateLane("stock")
    busy = Busy(other)
    nested = Background(lane.run, other.run, lambda: "both")
    parked()
    busy.let_go()
    assert nested.result() == "both"


@pytest.mark.parametrize("names", [("orders", "stock"), ("orders", "stock", "bills")])
def test_a_cycle_of_waiting_lanes_raises_naming_them(names, parked):
    """The last one to begin waiting is told; the others go on."""
    lanes = [StateLane(name) for name in names]
    gates = [Gate() for _ in names]

    def cross(index: int) -> Any:
        return lanes[index].run(lambda: (gates[index](), lanes[(index + 1) % len(lanes)].run(lambda: "got it"))[1])

    calls = [Background(cross, index) for index in range(len(lanes))]
    for gate in gates:
        gate.wait_begun()
    for gate in gates[:-1]:
        gate.open()
        parked()
    gates[-1].open()
    with pytest.raises(InvalidOperation, match="cycle") as caught:
        calls[-1].result()
    assert all(repr(name) in str(caught.value) for name in names)
    assert [call.result() for call in calls[:-1]] == ["got it"] * (len(names) - 1)


def test_the_lock_order_is_checked():
    low, high = StateLane("low", rank=1), StateLane("high", rank=2)
    assert low.run(high.run, lambda: "in order") == "in order"
    with pytest.raises(InvalidOperation, match=r"'low'.*'high'.*order"):
        high.run(low.run, nothing)
    assert high.run(StateLane("of no rank").run, lambda: "not ranked") == "not ranked"


# -- what a turn starts ---------------------------------------------------------------------------------------------


def test_a_continuation_runs_after_the_mark_is_gone(lane):
    seen: list[StateLane | None] = []
    with WorkerPool(1) as pool:
        completion: Completion[int] = Completion(pool)
        queue = SerialExecutionQueue(pool=pool)

        async def handler() -> StateLane | None:
            await completion
            return StateLane.current

        resumed = queue.enqueue(handler)
        completion.add_done_callback(lambda _: seen.append(StateLane.current))
        lane.run(completion.succeed, 1)
        assert resumed.result(PATIENCE) is None
    assert seen == [None]


def test_not_even_a_closed_pool_makes_a_continuation_run_on_the_lane(lane):
    seen: list[StateLane | None] = []
    pool = WorkerPool(1)
    awaited: Completion[int] = Completion(pool)
    queue, waits = SerialExecutionQueue(pool=pool), threading.Event()

    async def handler() -> StateLane | None:
        waits.set()
        await awaited
        return StateLane.current

    resumed = queue.enqueue(handler)
    assert waits.wait(PATIENCE)
    pool.close()
    called = threading.Event()
    awaited.add_done_callback(lambda _: (seen.append(StateLane.current), called.set()))
    lane.run(awaited.succeed, 1)
    assert resumed.result(PATIENCE) is None
    assert called.wait(PATIENCE)
    assert seen == [None]


def test_what_a_turn_starts_does_not_inherit_the_mark(lane):
    with WorkerPool(1) as pool:
        queue = SerialExecutionQueue(pool=pool)
        thread, work = lane.run(lambda: (Background(lambda: StateLane.current), queue.enqueue(lambda: StateLane.current)))
        assert thread.result() is None
        assert work.result(PATIENCE) is None
