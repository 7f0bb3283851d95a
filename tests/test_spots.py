"""What users write: handlers and their names, messages and their options, types and ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually
from worlds import Do, Player, Room, at_rest, do, world

from zlink_nogil import (
    Actor,
    AlreadyExists,
    Host,
    InvalidOperation,
    NotFound,
    Spot,
    handler,
    timer,
)
from zlink_nogil.spots import MessageContext


@dataclass
class Say:
    text: str


@dataclass
class Shout(Say):
    pass


class Echoes(Spot):
    """Every way to write a handler."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @handler
    def say(self, message: Say, ctx: MessageContext) -> str:
        return f"said {message.text} as {ctx.message_name}"

    @handler(name="whisper")
    async def quietly(self, message: Say, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"whispered {message.text}"

    def on_text(self, message: str, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"text {message}"

    async def on_mapping(self, message: dict, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"mapping {message}"

    def on_raw(self, message: bytes, ctx: Any) -> None:  # noqa: ARG002 - what a handler takes
        self.seen.append(message)


class Loud(Echoes):
    """Overrides one without marking it again, adds one, inherits the rest."""

    def say(self, message: Say, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"SAID {message.text}"

    @handler
    def shout(self, message: Shout, ctx: Any) -> str:  # noqa: ARG002 - what a handler takes
        return f"SHOUTED {message.text}"


@pytest.fixture
def host() -> Iterator[Host]:
    with world(Echoes, Loud) as host:
        yield host


def spot(host: Host, type_name: str = "Echoes", name: str = "x") -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


# -- handlers -------------------------------------------------------------------------------------------------------


def test_handlers_by_decorator_by_name_plain_and_async(host):
    ref = spot(host)
    assert ref.request(Say("a")).result(PATIENCE) == "said a as Say"
    assert ref.request(Say("a"), name="whisper").result(PATIENCE) == "whispered a"
    assert ref.request("a").result(PATIENCE) == "text a"
    assert ref.request({"a": 1}).result(PATIENCE) == "mapping {'a': 1}"
    at_rest(host)


def test_handlers_are_inherited_and_overridden(host):
    ref = spot(host, "Loud")
    assert ref.request(Say("a")).result(PATIENCE) == "SAID a"
    assert ref.request(Shout("a")).result(PATIENCE) == "SHOUTED a"
    assert ref.request(Say("a"), name="whisper").result(PATIENCE) == "whispered a"
    assert ref.request("a").result(PATIENCE) == "text a"


def test_the_declared_type_or_the_name_chooses_the_handler(host):
    ref = spot(host)
    with pytest.raises(NotFound, match="'Shout'"):
        ref.request(Shout("a")).result(PATIENCE)
    assert ref.request(Shout("a"), declared=Say).result(PATIENCE) == "said a as Say"
    assert ref.request(Shout("a"), declared=Say, name="whisper").result(PATIENCE) == "whispered a"
    with pytest.raises(NotFound, match="'Nothing'"):
        ref.send(Say("a"), name="Nothing").result(PATIENCE)
    at_rest(host)


@pytest.mark.parametrize("call", ["send", "request"])
def test_an_unknown_message_or_owner_is_not_found_and_leaves_nothing(host, call):
    ref = spot(host)
    with pytest.raises(NotFound, match=r"'x', a 'Echoes', has no handler for 'int'"):
        getattr(ref, call)(5).result(PATIENCE)
    with pytest.raises(NotFound, match="no spot 'nobody'"):
        getattr(host.spots.ref("nobody"), call)("text").result(PATIENCE)
    with pytest.raises(NotFound, match="no actor 'nobody'"):
        getattr(host.actors.ref("nobody"), call)("text").result(PATIENCE)
    at_rest(host)


def test_a_send_is_over_when_it_was_accepted_and_a_failing_one_is_logged(host, caplog):
    ref, gate = spot(host, "Room"), Gate(ValueError("in the handler"))
    assert ref.send(Do(lambda *_: gate())).result(PATIENCE) is None
    gate.wait_begun()
    gate.open()
    assert do(ref, lambda *_: "works").result(PATIENCE) == "works"
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("in the handler",)]
    assert "spot 'x'" in caplog.text
    at_rest(host)


def test_messages_of_one_sender_are_handled_in_order_sends_and_requests(host):
    ref = spot(host)
    for n in range(100):
        ref.send(b"%d" % n).submit()
    assert ref.request("last").result(PATIENCE) == "text last"
    seen = next(spot for spot in host.spots.entries() if spot.owner_id == "x").owner.seen
    assert seen == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("kind", ["spot", "actor"])
def test_what_a_handler_is_told(host, kind):
    spot(host, "Room")
    ann = host.actors.create("Player", "ann", spot="x").result(PATIENCE)

    def tell(_: Any, ctx: Any) -> list[Any]:
        return [ctx.message_name, dict(ctx.metadata), ctx.deadline, ctx.spot_id, ctx.actor_id, ctx.cancelled, ctx.actor]

    ref = host.spots.ref("x") if kind == "spot" else ann
    before = time.monotonic()
    told = do(ref, tell, metadata={"trace": b"1"}, timeout=3).result(PATIENCE)
    assert told[:2] == ["Do", {"trace": b"1"}]
    assert before + 3 <= told[2] <= time.monotonic() + 3
    assert told[3:6] == ["x", None if kind == "spot" else "ann", False]
    assert told[6] == (None if kind == "spot" else host.actors.state("ann"))
    sent: list[Any] = []
    ref.send(Do(lambda owner, ctx: sent.extend(tell(owner, ctx)))).submit()
    eventually(lambda: sent)
    assert sent[:3] == ["Do", {}, float("inf")]


def test_the_handler_sees_that_it_is_cancelled(host):
    ref, gate = spot(host, "Room"), Gate()
    seen: list[bool] = []

    def looks(_: Any, ctx: Any) -> None:
        seen.append(ctx.cancelled)
        gate()
        seen.append(ctx.cancelled)

    handled = do(ref, looks)
    gate.wait_begun()
    assert handled.cancel()
    gate.open()
    handled.result(PATIENCE)
    assert seen == [False, True]


# -- what is no handler ---------------------------------------------------------------------------------------------


class NoContext(Spot):
    @handler
    def say(self, message: Say) -> None: ...


class NoAnnotation(Spot):
    @handler
    def say(self, message, ctx): ...


class UnknownAnnotation(Spot):
    @handler
    def say(self, message: Missing, ctx): ...  # noqa: F821 - that is the point


class ByNameOnly(Spot):
    def on_something(self) -> None: ...


class TooMany(Spot):
    @handler
    def say(self, message: Say, ctx: Any, more: int = 0) -> None: ...


class NoFunction(Spot):
    on_value = 5


class ActorHandler(Actor):
    @handler
    def say(self, message: Say) -> None: ...


@pytest.mark.parametrize(
    "owner_class", [NoContext, NoAnnotation, UnknownAnnotation, ByNameOnly, TooMany, NoFunction, ActorHandler]
)
def test_what_is_no_handler_is_refused_at_registration(owner_class):
    host = Host(workers=1)
    with pytest.raises(TypeError, match="handler"):
        (host.actors if owner_class is ActorHandler else host.spots).register(owner_class)
    with host, pytest.raises(Exception, match="no spot type"):
        host.spots.create(owner_class.__name__, "x")


class Twice(Spot):
    @handler
    def one(self, message: Say, ctx: Any) -> None: ...

    @handler
    def two(self, message: Say, ctx: Any) -> None: ...


class TwoTimers(Spot):
    @timer(1, name="tick")
    def one(self) -> None: ...

    @timer(1, name="tick")
    def two(self) -> None: ...


class LongTimer(Spot):
    @timer(1, name="t" * 256)
    def tick(self) -> None: ...


class ActorTimer(Actor):
    @timer(1)
    def tick(self) -> None: ...


@pytest.mark.parametrize(
    ("owner_class", "error"),
    [(Twice, AlreadyExists), (TwoTimers, AlreadyExists), (LongTimer, ValueError), (ActorTimer, TypeError)],
)
def test_classes_that_contradict_themselves_are_refused_at_registration(owner_class, error):
    host = Host(workers=1)
    with pytest.raises(error):
        (host.actors if issubclass(owner_class, Actor) else host.spots).register(owner_class)
    host.close()


# -- types and ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [Player, object, Room(), "Room", None, int])
def test_what_is_no_spot_class_is_refused(bad):
    host = Host(workers=1)
    with pytest.raises(TypeError, match="a spot is a subclass of Spot"):
        host.spots.register(bad)
    host.close()


def test_a_type_name_is_registered_once_and_before_the_start():
    host = Host(workers=1)
    host.spots.register(Room)
    with pytest.raises(AlreadyExists, match="'Room'"):
        host.spots.register(Echoes, type_name="Room")
    host.spots.register(Room, type_name="room")
    host.spots.register(Echoes, type_name="ROOM")
    with host:
        assert do(host.spots.create("room", "x").result(PATIENCE), lambda room, _: type(room)).result(PATIENCE) is Room
        with pytest.raises(InvalidOperation, match="before the host starts"):
            host.spots.register(Echoes)


BAD = [
    ("", ValueError),
    ("x" * 256, ValueError),
    ("é" * 128, ValueError),
    ("\ud800", ValueError),
    (5, TypeError),
    (b"x", TypeError),
]


@pytest.mark.parametrize(("bad", "error"), BAD)
def test_bad_ids_and_type_names_are_refused_where_they_are_given(host, bad, error):
    fresh = Host(workers=1)
    with pytest.raises(error):
        fresh.spots.register(Room, type_name=bad)
    fresh.close()
    host.actors.create("Player", "ann").result(PATIENCE)
    kept: list[Any] = []
    do(host.actors.ref("ann"), lambda actor, _: kept.append(actor)).result(PATIENCE)
    for call in (
        lambda: host.spots.create("Room", bad),
        lambda: host.spots.get_or_create("Room", bad),
        lambda: host.spots.create(bad, "x"),
        lambda: host.actors.create("Player", bad),
        lambda: host.actors.create("Player", "x", spot=bad),
        lambda: host.actors.join("x", bad),
        lambda: do(host.actors.ref("ann"), lambda actor, _: actor.defer_join(bad)).result(PATIENCE),
    ):
        with pytest.raises(error):
            call()
    assert len(host.spots) == 0
    at_rest(host)


def test_ids_are_exact(host):
    names = ["x", "X", " x", "x\0", "é", "e\u0301", "x" * 255, "é" * 127, "🂡"]
    for name in names:
        spot(host, "Room", name)
    assert host.spots.ids() == names
    for name in names:
        assert do(host.spots.ref(name), lambda room, _: room.spot_id).result(PATIENCE) == name
    with pytest.raises(NotFound):
        do(host.spots.ref("É"), lambda *_: None)


def test_refs_are_equal_by_what_they_name(host):
    ref = spot(host, "Room")
    assert ref == host.spots.ref("x")
    assert len({ref, host.spots.ref("x"), host.actors.ref("x")}) == 2
    assert ref != host.actors.ref("x")
