"""`Operations` under every schedule: register, send, reply, cancel, lose the peer, close."""

from __future__ import annotations

from typing import Any, Final

import pytest

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded, ProtocolError, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.messaging.operation import Operation, Slots

from .harness import Scenario, ScenarioFunction, run_exhaustive, run_kept, run_lines, run_random
from .pending import MODULES, PEER, Watched


def reply_cancel_expire(s: Scenario) -> None:
    """One winner among reply, cancel and deadline; late answers are counted and nothing else."""
    watched = Watched(s)
    seen: list[str] = []

    def ask() -> None:
        operation = watched.request(timeout=1.0)
        assert operation is not None
        s.thread_now("canceller", operation.cancel)
        error = operation.exception()
        seen.append("reply" if error is None else type(error).__name__)

    s.thread("asker", ask)
    s.thread("peer", watched.answer, 1)
    s.thread("leader", watched.expire, s.now + 2.0)
    s.check("late ones are counted", lambda: watched.table.counts()["late"] == (1 if seen == ["reply"] else 2))
    s.check("the asker saw one of them", lambda: seen[0] in ("reply", "Cancelled", "DeadlineExceeded"))


def test_reply_cancel_expire() -> None:
    run_random(reply_cancel_expire)
    run_exhaustive(reply_cancel_expire, preemptions=1, switches=0)
    run_lines(reply_cancel_expire, MODULES)


def register_and_close(s: Scenario) -> None:
    """Whoever registers while the table closes is refused or ended; nobody waits for ever."""
    watched = Watched(s)

    def ask() -> None:
        operation = watched.request()
        if operation is not None:
            s.expect(isinstance(operation.exception(), ShuttingDown), "ended by the close")

    s.thread("a", ask)
    s.thread("b", ask)
    s.thread("closer", watched.table.close)
    s.check("an end for each", lambda: len(watched.started) + len(watched.refused) == 2)


def test_register_and_close() -> None:
    run_random(register_and_close)
    run_exhaustive(register_and_close, preemptions=1, switches=0)
    run_lines(register_and_close, MODULES)


def a_full_peer_and_a_cancel(s: Scenario) -> None:
    """A send that waits for room and is cancelled is not sent afterwards; the ones behind it go on."""
    watched = Watched(s, room=1)
    first, second, third = watched.send(), watched.send(), watched.send()
    assert first is not None
    assert second is not None
    assert third is not None
    received: list[int] = []

    def read() -> None:
        epoll = _sync.Epoll()
        epoll.register(watched.peer.fd, 1)
        while third.reply_route not in received:
            record = watched.peer.receive()
            if record is None:
                if not watched.peer.readable():
                    epoll.poll()
            else:
                received.append(int.from_bytes(record[1] or b""))

    s.thread("canceller", second.cancel)
    s.thread("leader", watched.serve, 4)
    s.thread("peer", read)
    s.check("a cancelled send ends as cancelled", lambda: second.cancelled() or second.reply_route in received)
    s.check("in order", lambda: received == sorted(received))


def test_a_full_peer_and_a_cancel() -> None:
    run_random(a_full_peer_and_a_cancel)
    run_exhaustive(a_full_peer_and_a_cancel, preemptions=1, switches=1)
    run_lines(a_full_peer_and_a_cancel, MODULES)


def a_send_cancelled_while_it_waits(s: Scenario) -> None:
    """It is not sent when there is room again; the one behind it is."""
    watched = Watched(s, room=1)
    operations = [watched.send() for _ in range(3)]
    routes = [operation.reply_route for operation in operations if operation is not None]
    received: list[int] = []

    def read() -> None:
        assert operations[1] is not None
        operations[1].cancel()
        s.thread_now("leader", watched.serve, 4)
        epoll = _sync.Epoll()
        epoll.register(watched.peer.fd, 1)
        while routes[2] not in received:
            record = watched.peer.receive()
            if record is not None:
                received.append(int.from_bytes(record[1] or b""))
            elif not watched.peer.readable():
                epoll.poll()

    s.thread("peer", read)
    s.check("the first and the third", lambda: received == [routes[0], routes[2]])


def test_a_send_cancelled_while_it_waits() -> None:
    run_random(a_send_cancelled_while_it_waits)
    run_exhaustive(a_send_cancelled_while_it_waits, preemptions=1)


def a_peer_that_is_lost(s: Scenario) -> None:
    """A request to a peer that goes away ends as `Unavailable`, whatever the order of events."""
    watched = Watched(s, room=1)

    def ask() -> None:
        operation = watched.request(timeout=5.0)
        if operation is not None:
            s.expect(isinstance(operation.exception(), Unavailable), "the loss is seen, not the deadline")

    s.thread("a", ask)
    s.thread("b", ask)
    s.thread("peer", watched.peer.close, 0.0)
    s.thread("leader", watched.serve, 3)


def test_a_peer_that_is_lost() -> None:
    run_random(a_peer_that_is_lost)
    run_exhaustive(a_peer_that_is_lost, preemptions=1, switches=0)
    run_lines(a_peer_that_is_lost, MODULES)


def read_before_it_is_lost(s: Scenario) -> None:
    """`Unavailable` says "never accepted" of nothing that the peer has got."""
    watched = Watched(s, room=1)
    received: list[int] = []
    never: list[int] = []

    def ask() -> None:
        operation = watched.request(timeout=20.0)
        if operation is not None:
            error = operation.exception()
            s.expect(isinstance(error, Unavailable), "the loss is seen, not the deadline")
            if isinstance(error, Unavailable) and not error.accepted:
                never.append(operation.reply_route)

    def read() -> None:
        epoll = _sync.Epoll()
        epoll.register(watched.peer.fd, 1)
        while len(received) < 2:
            record = watched.peer.receive()
            if record is not None:
                received.append(int.from_bytes(record[1] or b""))
            elif not watched.peer.readable():
                epoll.poll()
        watched.peer.close(0.0)

    s.thread("a", ask)
    s.thread("b", ask)
    s.thread("peer", read)
    s.thread("leader", watched.serve, 8)
    s.check("never accepted, never read", lambda: not set(never) & set(received))


def test_read_before_it_is_lost() -> None:
    run_random(read_before_it_is_lost, 100)


def the_loss_of_another_peer(s: Scenario) -> None:
    """It ends nothing that is not its own."""
    watched = Watched(s)

    def ask() -> None:
        operation = watched.request()
        assert operation is not None
        s.expect(operation.result() == "reply", "answered")

    s.thread("asker", ask)
    s.thread("peer", watched.answer, 1)
    s.thread("topology", watched.table.peer_lost, "another")


def test_the_loss_of_another_peer() -> None:
    run_random(the_loss_of_another_peer, 100)


def late_answers(s: Scenario) -> None:
    """Each is counted."""
    watched = Watched(s)
    s.thread("a", watched.table.reply, 7, b"late")
    s.thread("b", watched.table.error, 8, Unavailable("late"))
    s.check("both", lambda: watched.table.counts()["late"] == 2)


def test_late_answers() -> None:
    run_lines(late_answers, MODULES, 50)


def too_many(s: Scenario) -> None:
    """More operations than slots: refused, nothing sent, and a slot that is free again can be taken."""
    watched = Watched(s, slots=1)

    def ask() -> None:
        operation = watched.request()
        if operation is not None:
            s.expect(operation.result() == "reply", "answered")

    def answer() -> None:
        watched.answer(1)

    s.thread("a", ask)
    s.thread("b", ask)
    s.thread("peer", answer)
    s.thread("peer's second", _answer_what_is_left, watched)
    s.check("an end for each", lambda: len(watched.started) + len(watched.refused) == 2)


def _answer_what_is_left(watched: Watched) -> None:
    watched.s.sleep(1.0)
    for operation in watched.started:
        watched.table.reply(operation.reply_route, b"reply")


def test_too_many() -> None:
    run_random(too_many)
    run_exhaustive(too_many, preemptions=1, switches=0)


def slots_are_bounded(s: Scenario) -> None:
    """Never more takers than slots, and every slot comes back."""
    slots = Slots(1)
    inside: set[int] = set()

    def take() -> None:
        try:
            slots.take()
        except CapacityExceeded:
            return
        with s.alone(inside, "no more than there are slots"):
            s.step("holds a slot")
        slots.give_back()

    for name in "abc":
        s.thread(name, take)
    s.check("all are free", lambda: slots.taken() == 0)


def slots_that_come_back_at_once(s: Scenario) -> None:
    slots = Slots(2)

    def take() -> None:
        slots.take()
        slots.give_back()

    s.thread("a", take)
    s.thread("b", take)
    s.check("all are free", lambda: slots.taken() == 0)


def test_slots() -> None:
    run_random(slots_are_bounded)
    run_exhaustive(slots_are_bounded, preemptions=1)
    run_lines(slots_that_come_back_at_once, ["zlink_nogil.messaging.operation"])


def a_reply_for_two(s: Scenario) -> None:
    """Two who ask for the reply get the one that was decoded once."""
    watched = Watched(s)
    decoded: list[bytes] = []

    def decode(record: bytes) -> str:
        decoded.append(record)
        s.step("decodes")
        return record.decode()

    operation = watched.table.new(Operation, 1000.0, PEER, decode)
    watched.slots.take()
    for name in "ab":
        s.thread(name, lambda: s.expect(operation.result() == "reply", "both see it"))
    s.thread("peer", operation.succeed, b"reply")
    s.check("decoded once", lambda: decoded == [b"reply"])


def test_a_reply_for_two() -> None:
    run_random(a_reply_for_two)
    run_exhaustive(a_reply_for_two, preemptions=1, switches=1)
    run_lines(a_reply_for_two, ["zlink_nogil.messaging.operation"], 100)


def a_reply_that_cannot_be_decoded(failure: Exception, seen: type[ZLinkError]) -> ScenarioFunction:
    """Everybody who asks gets the same failure."""

    def scenario(s: Scenario) -> None:
        watched = Watched(s)

        def decode(_: bytes) -> str:
            s.step("decodes")
            raise failure

        operation = watched.table.new(Operation, 1000.0, PEER, decode)
        watched.slots.take()
        for name in "ab":
            s.thread(name, lambda: s.expect(type(operation.exception()) is seen, "both see it"))
        s.thread("peer", operation.succeed, b"reply")

    return scenario


def test_a_reply_that_cannot_be_decoded() -> None:
    run_random(a_reply_that_cannot_be_decoded(ValueError("not a number"), ProtocolError), 50)
    run_random(a_reply_that_cannot_be_decoded(CapacityExceeded("too large"), CapacityExceeded), 50)


def lost_while_it_begins(s: Scenario) -> None:
    """An operation that cannot begin, and is ended as its peer is lost at that moment, ends once and holds one slot."""
    watched = Watched(s)

    def ask() -> None:
        operation = watched.table.new(Operation, 5.0, PEER, bytes.decode)

        def fails(_: Operation) -> bool:
            s.step("finds the peer gone")
            raise Unavailable("the peer is gone")

        try:
            watched.table.submit(operation, fails)
        except Unavailable:
            s.expect(not operation.done(), "raised, so it has not ended")
        else:
            s.expect(isinstance(operation.exception(), Unavailable), "not raised, so it has ended")

    s.thread("a", ask)
    s.thread("topology", watched.table.peer_lost, PEER)


def test_lost_while_it_begins() -> None:
    run_random(lost_while_it_begins)
    run_exhaustive(lost_while_it_begins, preemptions=2)


def lost_while_it_is_registered(s: Scenario) -> None:
    """Whoever takes it out of the table takes it out of the deadlines too, from the first moment on."""
    watched = Watched(s)

    def ask() -> None:
        operation = watched.table.new(Operation, 5.0, PEER, bytes.decode)
        watched.table.submit(operation, lambda _: False)
        watched.table.peer_lost(PEER)
        s.expect(isinstance(operation.exception(), Unavailable), "lost")

    s.thread("a", ask)
    s.thread("topology", watched.table.peer_lost, PEER)


def test_lost_while_it_is_registered() -> None:
    run_lines(lost_while_it_is_registered, MODULES)


def who_is_woken_finds_the_slot_free(s: Scenario) -> None:
    """An operation lets go of its slot before it wakes whoever waits (who only looks in between may be too early)."""
    watched = Watched(s, slots=1)

    def ask() -> None:
        operation = watched.request()
        assert operation is not None
        if operation.add_waker(lambda _: s.expect(watched.slots.taken() == 0, "the slot is free")):
            s.expect(operation.result() == "reply", "answered")

    s.thread("asker", ask)
    s.thread("peer", watched.answer, 1)


def test_who_is_woken_finds_the_slot_free() -> None:
    run_random(who_is_woken_finds_the_slot_free, 100)
    run_exhaustive(who_is_woken_finds_the_slot_free, preemptions=1)


KEPT: Final[dict[str, tuple[Any, ...]]] = {
    "a send to a connection that is being dropped waits for room": (a_peer_that_is_lost, 0),
    "a slot is given back twice": (lost_while_it_begins, 38),
    "ended between its two registrations": (lost_while_it_is_registered, 4, MODULES),
}
"""Bugs that were there, and the scenario and seed that show each."""


@pytest.mark.parametrize("bug", KEPT)
def test_kept(bug: str) -> None:
    run_kept(*KEPT[bug])
