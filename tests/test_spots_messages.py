"""Calls to Spots and Actors: used once, with a deadline, refused for lack of room, and nothing of them kept."""

from __future__ import annotations

import contextvars
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, outcome
from worlds import Do, alarms, at_rest, do, world

from zlink_nogil import CapacityExceeded, DeadlineExceeded, Host, InvalidOperation, NotFound, Spot


class Echoes(Spot):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_text(self, message: str, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"text {message}"

    def on_raw(self, message: bytes, ctx: Any) -> None:  # noqa: ARG002 - what a handler takes
        self.seen.append(message)


@pytest.fixture
def host() -> Iterator[Host]:
    with world(Echoes) as host:
        yield host


def spot(host: Host, type_name: str = "Echoes", name: str = "x") -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


# -- calls ----------------------------------------------------------------------------------------------------------


def test_a_call_can_be_used_once_and_does_nothing_before(host):
    ref = spot(host)
    call = ref.send(b"a")
    call.submit()
    with pytest.raises(InvalidOperation, match="once"):
        call.result()
    unused = ref.send(b"b")
    del unused
    assert ref.request("last").result(PATIENCE) == "text last"
    assert next(spot for spot in host.spots.entries()).owner.seen == [b"a"]


BAD_METADATA = [{"a": "text"}, {5: b"x"}, {"a": 5}, None, ["a"], 5]


@pytest.mark.parametrize("metadata", BAD_METADATA)
@pytest.mark.parametrize("call", ["send", "request"])
def test_bad_metadata_is_refused_where_it_is_given(host, metadata, call):
    ref = spot(host)
    with pytest.raises((TypeError, ValueError), match="metadata"):
        getattr(ref, call)("text", metadata=metadata)
    at_rest(host)


def test_metadata_is_what_it_was_when_it_was_given(host):
    ref, metadata = spot(host, "Room"), {"a": b"1"}
    call = ref.request(Do(lambda _, ctx: dict(ctx.metadata)), metadata=metadata)
    metadata["a"] = b"2"
    assert call.result(PATIENCE) == {"a": b"1"}


# -- deadlines and capacity -----------------------------------------------------------------------------------------


def test_a_request_whose_time_is_over_while_it_waits_never_begins(host):
    ref, gate, ran = spot(host, "Room"), Gate(), []
    do(ref, lambda *_: gate())
    gate.wait_begun()
    late = do(ref, lambda *_: ran.append("late"), timeout=0.02)
    assert isinstance(outcome(late), DeadlineExceeded)
    gate.open()
    assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
    assert ran == []
    at_rest(host)


def test_a_request_whose_time_is_over_while_it_runs_ends_for_the_asker(host):
    ref, gate = spot(host, "Room"), Gate("answer")
    late = do(ref, lambda *_: gate(), timeout=0.05)
    gate.wait_begun()
    assert isinstance(outcome(late), DeadlineExceeded)
    behind = do(ref, lambda *_: "behind")
    assert not behind.done(), "the handler goes on"
    gate.open()
    assert behind.result(PATIENCE) == "behind"
    at_rest(host)


def test_alarms_go_with_the_answer_the_refusal_and_the_cancel(host):
    ref = spot(host, "Room")
    do(ref, lambda *_: 1, timeout=600).result(PATIENCE)
    assert isinstance(outcome(do(ref, lambda *_: 1 / 0, timeout=600)), ZeroDivisionError)
    gate = Gate()
    do(ref, lambda *_: gate(), timeout=600)
    gate.wait_begun()
    assert do(ref, lambda *_: 1, timeout=600).cancel()
    assert alarms(host) == 1
    gate.open()
    at_rest(host)


@pytest.mark.parametrize("type_name", ["Room", "Hall", "Player"])
def test_a_full_queue_refuses_and_nothing_stays_behind(type_name):
    with world(application_message_capacity=1) as host:
        directory = host.actors if type_name == "Player" else host.spots
        ref = directory.create(type_name, "x").result(PATIENCE)
        gate = Gate()
        held = do(ref, lambda *_: gate(), timeout=600)
        gate.wait_begun()
        for _ in range(3):
            with pytest.raises(CapacityExceeded):
                do(ref, lambda *_: pytest.fail("it was refused"), timeout=600)
            with pytest.raises(CapacityExceeded):
                ref.send(Do(lambda *_: pytest.fail("it was refused"))).result()
        assert alarms(host) == 1
        gate.open()
        held.result(PATIENCE)
        assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
        at_rest(host)


def test_bytes_count():
    with world(Echoes, application_byte_capacity=1000) as small:
        ref = spot(small)
        with pytest.raises(CapacityExceeded, match="bytes"):
            ref.send(b"x" * 800).result(PATIENCE)
        with pytest.raises(CapacityExceeded, match="bytes"):
            ref.send("x", metadata={"a": b"x" * 800}).result(PATIENCE)
        ref.send(b"x" * 700).result(PATIENCE)
        at_rest(small)


# -- what is kept alive ---------------------------------------------------------------------------------------------


class Thing:
    pass


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=None)


def gone(*refs: weakref.ref[Any]) -> None:
    def all_gone() -> bool:
        gc.collect()
        return all(ref() is None for ref in refs)

    eventually(all_gone, f"released, not {[ref() for ref in refs]}")


@pytest.mark.parametrize("ends", ["returns", "raises", "is refused", "is cancelled in the queue"])
@pytest.mark.parametrize("kind", ["spots", "actors"])
def test_message_reply_and_context_are_not_kept_after_the_end(host, kind, ends):
    ref = getattr(host, kind).create("Room" if kind == "spots" else "Player", "x").result(PATIENCE)
    value, reply, carried = Do(lambda *_: None), Thing(), Thing()
    references = [weakref.ref(kept) for kept in (value, reply, carried)]
    gate = Gate()
    if ends == "is cancelled in the queue":
        do(ref, lambda *_: gate())
        gate.wait_begun()

    def ask(value: Do = value, reply: Thing = reply, carried: Thing = carried) -> Any:
        VARIABLE.set(carried)
        if ends == "raises":
            value.body = lambda *_: 1 / 0
        else:
            value.body = lambda *_, reply=reply: reply
        try:
            completion = ref.request(value, name="Do" if ends != "is refused" else "no such").submit()
        except NotFound:
            return
        if ends == "is cancelled in the queue":
            assert completion.cancel()
        outcome(completion)

    contextvars.Context().run(ask)
    del value, reply, carried, ask
    gone(*references)
    gate.open()
    at_rest(host)
