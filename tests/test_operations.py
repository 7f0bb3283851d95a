"""Pending operations: one winner, deadlines that are never early, slots that come back, nothing kept for longer."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE, eventually, outcome, together

from zlink_nogil import _sync
from zlink_nogil.binding import Waiting
from zlink_nogil.errors import (
    Cancelled,
    CapacityExceeded,
    DeadlineExceeded,
    InternalFailure,
    NotFound,
    ProtocolError,
    ShuttingDown,
    Unavailable,
    ZLinkError,
)
from zlink_nogil.messaging.deadlines import TICK, Deadlines
from zlink_nogil.messaging.operation import Operation, Slots
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.state import StateLane


class Out:
    """In place of the data-out socket: takes what it is given, or lets it wait, or has lost the peer."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.waiting: list[Waiting] = []
        self.full = False
        self.gone = False

    def send(self, alias: bytes, record: bytes, done: Callable[[ZLinkError | None], None]) -> Waiting | None:  # noqa: ARG002
        if self.gone:
            raise Unavailable("the peer is gone")
        if not self.full:
            self.sent.append(record)
            return None
        waiting = Waiting(record, done)
        self.waiting.append(waiting)
        return waiting


class Desk:
    """Operations over an `Out`, with a clock that the test moves."""

    def __init__(self, slots: int = 4096) -> None:
        self.now = 1000.0
        self.out = Out()
        self.slots = Slots(slots)
        self.pool = WorkerPool(2, "test")
        self.wakes = 0
        self.operations = Operations(StateLane("test"), self.out, self.slots, self.pool, self.wake)
        self.operations._now = lambda: self.now

    def wake(self) -> None:
        self.wakes += 1

    def start(
        self,
        *,
        request: bool = True,
        timeout: float = 60.0,
        peer: object = "peer",
        decode: Callable[[bytes], Any] | None = None,
    ) -> Operation:
        operation = self.operations.new(Operation, timeout, peer, (decode or bytes) if request else None)
        self.operations.submit(operation, lambda started: self.operations.send(b"alias", b"record", request, started))
        return operation

    def pass_time(self, seconds: float) -> float | None:
        self.now += seconds
        return self.operations.expire()

    def counts(self) -> tuple[int, int, int]:
        counts = self.operations.counts()
        return counts["pending"], counts["deadlines"], self.slots.taken()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.pool.close(PATIENCE)


# -- slots --------------------------------------------------------------------------------------------------------------


def test_slots_are_counted_and_never_returned_twice():
    slots = Slots(2)
    slots.take()
    slots.take()
    with pytest.raises(CapacityExceeded, match="2 operations"):
        slots.take()
    slots.give_back()
    slots.take()
    slots.give_back()
    slots.give_back()
    assert slots.taken() == 0
    with pytest.raises(AssertionError, match="twice"):
        slots.give_back()
    with pytest.raises(ValueError, match="max_pending_operations"):
        Slots(0)


def test_without_a_slot_nothing_is_sent():
    desk = Desk(slots=1)
    first = desk.start()
    with pytest.raises(CapacityExceeded):
        desk.start()
    assert (desk.out.sent, desk.counts()) == ([b"record"], (1, 1, 1))
    desk.operations.reply(first.reply_route, b"answer")
    desk.start()


def test_a_slot_is_held_until_the_callbacks_have_returned(desk):
    operation = desk.start()
    go_on, begun = threading.Event(), threading.Event()

    def callback(_completion):
        begun.set()
        assert go_on.wait(PATIENCE)

    operation.add_done_callback(callback)
    desk.operations.reply(operation.reply_route, b"answer")
    assert operation.done()
    assert begun.wait(PATIENCE)
    assert desk.counts() == (0, 0, 1)
    go_on.set()
    eventually(lambda: desk.slots.taken() == 0, "the slot is back")


def test_who_waited_finds_the_slot_free_again(desk):
    operation = desk.start()
    seen: list[int] = []
    operation.add_waker(lambda _: seen.append(desk.slots.taken()))
    desk.operations.reply(operation.reply_route, b"answer")
    assert seen == [0]


def test_a_slot_comes_back_when_a_callback_raises(desk):
    operation = desk.start()
    operation.add_done_callback(lambda _: 1 / 0)
    desk.operations.error(operation.reply_route, NotFound("no"))
    eventually(lambda: desk.slots.taken() == 0, "the slot is back")


# -- starting -----------------------------------------------------------------------------------------------------------


def test_a_send_is_complete_when_the_socket_took_it(desk):
    operation = desk.start(request=False)
    assert operation.done()
    assert operation.result() is None
    assert desk.counts() == (0, 0, 0)


def test_a_send_that_has_to_wait_is_complete_when_the_socket_takes_it_and_not_earlier(desk):
    desk.out.full = True
    operation = desk.start(request=False)
    assert (operation.done(), desk.counts()) == (False, (1, 1, 1))
    desk.operations.lane.run(desk.out.waiting[0].done, None)
    assert operation.result(0) is None
    assert desk.counts() == (0, 0, 0)


@pytest.mark.parametrize("request_", [False, True])
def test_what_waits_ends_as_never_accepted_when_its_peer_goes(desk, request_):
    desk.out.full = True
    operation = desk.start(request=request_)
    desk.operations.lane.run(desk.out.waiting[0].done, Unavailable("gone"))
    error = outcome(operation)
    assert isinstance(error, Unavailable)
    assert not error.accepted
    assert desk.counts() == (0, 0, 0)


def test_a_start_that_fails_has_registered_nothing(desk):
    desk.out.gone = True
    with pytest.raises(Unavailable) as caught:
        desk.start()
    assert not caught.value.accepted
    assert desk.counts() == (0, 0, 0)


def test_ids_are_unique_and_never_zero(desk):
    routes = [desk.start().reply_route for _ in range(100)]
    assert 0 not in routes
    assert len(set(routes)) == 100


# -- one winner ---------------------------------------------------------------------------------------------------------


def test_exactly_one_of_reply_error_deadline_cancel_loss_and_close_ends_an_operation(desk):
    winners: set[str] = set()
    for _ in range(60):
        desk = Desk()
        operation = desk.start(timeout=1.0, peer="peer")
        ended: list[object] = []
        operation.add_done_callback(ended.append)
        route = operation.reply_route
        desk.now += 2.0
        together(
            lambda desk=desk, route=route: desk.operations.reply(route, b"answer"),
            lambda desk=desk, route=route: desk.operations.error(route, InternalFailure("error")),
            desk.operations.expire,
            operation.cancel,
            lambda desk=desk: desk.operations.peer_lost("peer"),
            desk.operations.close,
        )
        first = outcome(operation)
        again = outcome(operation)
        assert type(first) is type(again)
        winners.add(type(first).__name__)
        eventually(lambda desk=desk: desk.slots.taken() == 0, "the slot is back once")
        assert ended == [operation]
        late = desk.operations.counts()["late"]
        assert late == 2 - isinstance(first, bytes | InternalFailure)
        assert desk.counts() == (0, 0, 0)
        desk.pool.close(PATIENCE)
    assert winners <= {"bytes", "InternalFailure", "DeadlineExceeded", "Cancelled", "Unavailable", "ShuttingDown"}


def test_a_late_answer_is_counted_and_nothing_else(desk):
    operation = desk.start(timeout=1.0)
    desk.pass_time(2.0)
    desk.operations.reply(operation.reply_route, b"late")
    desk.operations.error(operation.reply_route, NotFound("late"))
    desk.operations.reply(12345, b"never asked for")
    assert desk.operations.counts()["late"] == 3
    assert isinstance(outcome(operation), DeadlineExceeded)
    assert desk.counts() == (0, 0, 0)


def test_a_cancelled_operation_is_cancelled_once_and_its_answer_late(desk):
    operation = desk.start()
    assert operation.cancel()
    assert not operation.cancel()
    assert isinstance(outcome(operation), Cancelled)
    desk.operations.reply(operation.reply_route, b"late")
    assert desk.operations.counts()["late"] == 1
    assert desk.counts() == (0, 0, 0)


def test_a_lost_peer_ends_its_own_operations_and_says_what_was_accepted(desk):
    sent, other = desk.start(peer="a"), desk.start(peer="b")
    desk.out.full = True
    waiting = desk.start(peer="a")
    desk.operations.peer_lost("a")
    errors = [outcome(sent), outcome(waiting)]
    assert [(type(error), error.accepted) for error in errors] == [(Unavailable, True), (Unavailable, False)]
    assert not other.done()
    assert desk.out.waiting[0].record is None  # never to be sent


def test_close_ends_what_is_pending_and_refuses_the_rest(desk):
    pending = [desk.start(request=request) for request in (True, True)]
    desk.out.full = True
    pending.append(desk.start(request=False))
    desk.operations.close()
    desk.operations.close()
    assert [type(outcome(operation)) for operation in pending] == [ShuttingDown] * 3
    sent = list(desk.out.sent)
    with pytest.raises(ShuttingDown):
        desk.start()
    assert (desk.out.sent, desk.counts()) == (sent, (0, 0, 0))


# -- the outcome --------------------------------------------------------------------------------------------------------


def test_a_reply_is_decoded_once_by_whoever_asks_first(desk):
    decoded: list[int] = []

    def decode(record: bytes) -> str:
        decoded.append(_sync.get_ident())
        return record.decode()

    operation = desk.start(decode=decode)
    desk.operations.reply(operation.reply_route, b"answer")
    assert decoded == []
    assert together(*[operation.result] * 4) == ["answer"] * 4
    assert len(decoded) == 1
    assert decoded[0] != _sync.get_ident()


def test_a_reply_that_cannot_be_decoded_is_a_protocol_error_of_its_own_for_each_waiter(desk):
    operation = desk.start(decode=lambda record: {}[record])
    desk.operations.reply(operation.reply_route, b"answer")
    first, second = outcome(operation), outcome(operation)
    assert type(first) is type(second) is ProtocolError
    assert "answer" in first.message
    assert operation.exception().kind is first.kind
    assert first is not second


# -- deadlines ----------------------------------------------------------------------------------------------------------


class Due:
    def __init__(self, route: int, deadline: float) -> None:
        self.reply_route = route
        self.deadline = deadline
        self.bucket: dict[int, Any] = {}


seconds = st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(seconds, st.floats(0, 3 * TICK)), min_size=1, max_size=8))
def test_a_deadline_is_never_early_and_late_by_one_tick_at_most(times):
    deadlines = Deadlines()
    for route, (deadline, _) in enumerate(times):
        deadlines.add(Due(route, deadline))
    now = 0.0
    seen: list[int] = []
    for deadline, offset in sorted(times):
        now = max(now, deadline - TICK + offset)
        due = deadlines.due(now)
        assert all(entry.deadline <= now + 1e-9 for entry in due)
        seen += [entry.reply_route for entry in due]
        assert {route for route, (when, _) in enumerate(times) if when + TICK + 1e-9 < now} <= set(seen)
    deadlines.due(math.inf)
    assert (len(deadlines), deadlines.next()) == (0, None)


def test_equal_deadlines_fire_in_the_order_they_were_set():
    deadlines = Deadlines()
    entries = [Due(route, 5.0) for route in range(1000)]
    for entry in entries:
        deadlines.add(entry)
    assert deadlines.due(4.99) == []
    assert deadlines.due(5.0) == entries


def test_the_next_deadline_is_that_of_something_that_still_waits():
    deadlines = Deadlines()
    early, late = Due(1, 1.0), Due(2, 60.0)
    deadlines.add(early)
    deadlines.add(late)
    assert deadlines.next() == pytest.approx(1.0)
    early.bucket.pop(1)
    assert deadlines.next() == pytest.approx(60.0)
    assert len(deadlines) == 1


def test_an_operation_expires_at_its_deadline_and_the_others_stay(desk):
    short, long = desk.start(timeout=0.05), desk.start(timeout=30.0)
    assert desk.pass_time(0.049) == pytest.approx(desk.now + 0.001, abs=TICK)
    assert not short.done()
    assert desk.pass_time(TICK + 0.001) == pytest.approx(1030.0, abs=TICK)
    assert isinstance(outcome(short), DeadlineExceeded)
    assert not long.done()
    assert desk.pass_time(31.0) is None
    assert isinstance(outcome(long), DeadlineExceeded)
    assert desk.counts() == (0, 0, 0)


def test_only_a_deadline_before_the_one_being_watched_wakes_the_watcher(desk):
    desk.start(timeout=10.0)
    assert desk.wakes == 1
    desk.start(timeout=20.0)
    assert desk.wakes == 1
    desk.start(timeout=5.0)
    assert desk.wakes == 2
    desk.pass_time(6.0)
    desk.start(timeout=30.0)
    assert desk.wakes == 2
    desk.pass_time(60.0)
    desk.start(timeout=60.0)
    assert desk.wakes == 3


def test_a_send_that_still_waits_at_its_deadline_is_never_sent(desk):
    desk.out.full = True
    operation = desk.start(request=False, timeout=1.0)
    desk.pass_time(2.0)
    assert isinstance(outcome(operation), DeadlineExceeded)
    assert desk.out.waiting[0].record is None


# -- nothing is kept ----------------------------------------------------------------------------------------------------


class Thing:
    """Something an operation holds."""

    def __call__(self, record: bytes) -> bytes:
        return record


@pytest.mark.parametrize("ending", ["reply", "error", "cancel", "lost", "waiting"])
def test_finished_operations_are_let_go_at_once_and_not_at_their_deadline(desk, ending):
    refs: list[weakref.ref[Any]] = []
    desk.out.full = ending == "waiting"
    for _ in range(200):
        decode, peer = Thing(), Thing()
        operation = desk.start(timeout=60.0, decode=decode, peer=peer)
        refs += [weakref.ref(operation), weakref.ref(decode), weakref.ref(peer)]
        if ending == "reply":
            desk.operations.reply(operation.reply_route, b"answer")
            operation.result()
        elif ending == "error":
            desk.operations.error(operation.reply_route, NotFound("no"))
        elif ending == "lost":
            desk.operations.peer_lost(peer)
        else:  # cancelled, with the record sent already or waiting for room still
            operation.cancel()
    del operation, decode, peer
    assert [ref for ref in refs if ref() is not None] == []
    assert desk.counts() == (0, 0, 0)
