"""Waiting for oneself raises at the call that would (decision 11; design 3.5): nothing is sent, and everybody goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PATIENCE, eventually, outcome
from worlds import Do, at_rest, do, queues, world

from zlink_nogil import Completion, Host, InvalidOperation, handler
from zlink_nogil.spots import Spot

WAYS = ("await", "yield_", "result")


@pytest.fixture
def host() -> Iterator[Host]:
    with world() as host:
        yield host


def spot(host: Host, type_name: str, name: str = "room") -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


def actor(host: Host, spot: str | None = None, name: str = "ann") -> Any:
    return host.actors.create("Player", name, spot=spot).result(PATIENCE)


def asks(target: Any, way: str, reached: list[str], timeout: float = PATIENCE) -> Callable[[Any, Any], Any]:
    """A handler's body that asks `target`; what is asked notes that it was reached."""

    async def ask_target(owner: Any, _: Any) -> Any:
        def answers(*_: Any) -> str:
            reached.append("reached")
            return "answer"

        call = owner.ask(target, Do(answers), timeout=timeout)
        if way == "await":
            return await call
        if way == "yield_":
            return await call.yield_()
        return call.result()

    return ask_target


def is_refused(host: Host, asking: Any, target: Any, way: str, *said: str) -> None:
    """With words in the message, before anything was sent, and leaving no trace."""
    reached: list[str] = []
    error = outcome(do(asking, asks(target, way, reached)))
    assert isinstance(error, InvalidOperation), error
    for words in said:
        assert re.search(words, str(error)), (words, str(error))
    at_rest(host)
    assert reached == []
    assert do(asking, lambda *_: "works").result(PATIENCE) == "works"
    assert do(target, lambda *_: "works").result(PATIENCE) == "works"


def is_answered(host: Host, asking: Any, target: Any, way: str) -> None:
    reached: list[str] = []
    assert do(asking, asks(target, way, reached)).result(PATIENCE) == "answer"
    assert reached == ["reached"]
    at_rest(host)


# -- a Spot and itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", ["Room", "Hall", "Square", "Solo"])
@pytest.mark.parametrize("way", ["await", "result"])
def test_a_spot_asks_itself(host, type_name, way):
    ref = spot(host, type_name)
    call = {"await": "^await in ", "result": r"^result\(\) in "}[way]
    is_refused(host, ref, ref, way, call, r"Does\.do|asks", "application lane", "'spot room'")


@pytest.mark.parametrize("type_name", ["Hall", "Solo"])
def test_a_spot_with_a_shared_gate_may_give_it_back_and_ask_itself(host, type_name):
    is_answered(host, spot(host, type_name), host.spots.ref("room"), "yield_")


def test_sending_to_oneself_and_submitting_are_legal(host):
    ref = spot(host, "Hall")

    async def submits(room: Any, _: Any) -> Completion[Any]:
        await room.ref.send(Do(lambda *_: None))
        return room.ref.request(Do(lambda *_: "later")).submit()

    assert do(ref, submits).result(PATIENCE).result(PATIENCE) == "later"
    at_rest(host)


# -- a Spot and its members -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["await", "result"])
def test_a_spot_wide_actor_asks_its_spot_with_its_turn_kept(host, way):
    room = spot(host, "Hall")
    is_refused(host, actor(host, "room"), room, way, "application lane of 'actor ann'", "'spot room'")


def test_a_spot_wide_actor_gives_the_gate_back_and_asks_its_spot(host):
    room = spot(host, "Hall")
    is_answered(host, actor(host, "room"), room, "yield_")


@pytest.mark.parametrize("way", ["await", "result"])
def test_a_spot_wide_spot_asks_its_member_with_its_turn_kept(host, way):
    room = spot(host, "Hall")
    is_refused(host, room, actor(host, "room"), way, "application lane of 'spot room'")


def test_a_spot_wide_spot_gives_its_gate_back_and_asks_its_member(host):
    room = spot(host, "Hall")
    is_answered(host, room, actor(host, "room"), "yield_")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [None, "Room", "Hall"])
def test_an_actor_asks_itself(host, way, place):
    if place is not None:
        spot(host, place)
    ann = actor(host, None if place is None else "room")
    is_refused(host, ann, ann, way, "'actor ann'")


def test_a_per_actor_actor_asks_its_spot_and_the_spot_its_member(host):
    room = spot(host, "Room")
    ann = actor(host, "room")
    is_answered(host, ann, room, "await")
    is_answered(host, room, ann, "await")


def test_blocking_for_work_of_ones_own_coordinator_raises_in_both_modes(host):
    room = spot(host, "Room")
    ann, bob = actor(host, "room"), actor(host, "room", "bob")
    is_refused(host, ann, room, "result", "coordinator|itself")
    is_refused(host, room, ann, "result", "coordinator|itself")
    is_refused(host, ann, bob, "result", "coordinator|itself")
    is_answered(host, ann, bob, "await")


def test_members_of_one_spot_wide_spot_ask_each_other_with_the_gate_given_back_only(host):
    spot(host, "Hall")
    ann, bob = actor(host, "room"), actor(host, "room", "bob")
    is_refused(host, ann, bob, "await", "'spot room'")
    is_answered(host, ann, bob, "yield_")


# -- yield_ where there is nothing to give back ---------------------------------------------------------------------


@pytest.mark.parametrize("type_name", ["Room", "Square"])
def test_yield_in_a_spot_without_a_shared_gate_raises_before_anything_is_sent(host, type_name):
    other = spot(host, "Room", "other")
    is_refused(host, spot(host, type_name), other, "yield_", "'spot room'", "await it")


@pytest.mark.parametrize("place", [None, "Room"])
def test_yield_in_an_actor_without_a_shared_gate_raises_before_anything_is_sent(host, place):
    other = spot(host, "Room", "other")
    if place is not None:
        spot(host, place)
    is_refused(host, actor(host, None if place is None else "room"), other, "yield_", "'actor ann'", "await it")


def test_yield_outside_a_turn_raises_before_anything_is_sent(host):
    reached: list[str] = []
    room = spot(host, "Hall")
    call = room.request(Do(lambda *_: reached.append("reached")))
    with pytest.raises(InvalidOperation, match="outside a turn"):
        call.yield_().send(None)
    at_rest(host)
    assert reached == []
    call.result(PATIENCE)


# -- cycles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("Hall", "Hall"), ("Room", "Room"), ("Room", "Player"), ("Player", "Player")])
def test_a_asks_b_asks_a_with_turns_kept_raises_in_the_one_that_closes_the_circle(host, kinds):
    refs = [actor(host, None, f"o{n}") if kind == "Player" else spot(host, kind, f"o{n}") for n, kind in enumerate(kinds)]
    reached: list[str] = []

    async def asks_back(owner: Any, ctx: Any) -> Any:
        return await asks(refs[0], "await", reached)(owner, ctx)

    async def begins(owner: Any, _: Any) -> Any:
        return await owner.ask(refs[1], Do(asks_back))

    error = outcome(do(refs[0], begins))
    assert isinstance(error, InvalidOperation)
    assert "cycle of owners" in str(error)
    assert "o1'" in str(error)
    assert "o0'" in str(error)
    assert reached == []
    assert [do(ref, lambda *_: "works").result(PATIENCE) for ref in refs] == ["works"] * 2
    at_rest(host)


def test_circles_of_three_that_begin_at_once(host):
    refs = [spot(host, "Hall", f"o{n}") for n in range(3)]

    def round_trip(start: int) -> Any:
        async def first(owner: Any, _: Any) -> Any:
            return await owner.ask(refs[(start + 1) % 3], Do(second), timeout=PATIENCE)

        async def second(owner: Any, _: Any) -> Any:
            return await owner.ask(refs[(start + 2) % 3], Do(third), timeout=PATIENCE)

        async def third(owner: Any, _: Any) -> Any:
            return await owner.ask(refs[start], Do(lambda *_: "unreachable"), timeout=PATIENCE)

        return do(refs[start], first, timeout=PATIENCE)

    for _ in range(20):
        ends = [outcome(end) for end in [round_trip(0), round_trip(1), round_trip(2)]]
        assert all(isinstance(end, InvalidOperation) for end in ends), ends
    at_rest(host)


def test_a_asks_b_asks_a_with_the_gates_given_back_works(host):
    refs = [spot(host, "Hall", f"o{n}") for n in range(2)]
    reached: list[str] = []

    async def begins(owner: Any, _: Any) -> Any:
        return await owner.ask(refs[1], Do(asks(refs[0], "yield_", reached))).yield_()

    assert do(refs[0], begins).result(PATIENCE) == "answer"
    at_rest(host)


def test_waiting_for_a_join_that_needs_this_turn_raises_somewhere_and_nobody_hangs(host):
    room = spot(host, "Hall")
    ann = actor(host)

    async def lets_in(hall: Any, _: Any) -> Any:
        return await hall.actors.join("ann", "room")

    assert isinstance(outcome(do(room, lets_in)), InvalidOperation)

    async def lets_in_politely(hall: Any, _: Any) -> Any:
        return await hall.actors.join("ann", "room").yield_()

    eventually(lambda: not any(queue.reserved_items for queue in queues(host)))
    do(room, lets_in_politely).result(PATIENCE)
    assert do(ann, lambda actor, _: actor.spot).result(PATIENCE) == room
    at_rest(host)


@pytest.mark.parametrize("way", WAYS)
def test_an_actor_waits_for_its_own_join(host, way):
    spot(host, "Room")
    hall, ann = spot(host, "Hall", "hall"), actor(host, "room")
    host.actors.join("ann", "hall").result(PATIENCE)

    async def joins(actor: Any, _: Any) -> Any:
        call = actor.actors.join("ann", "room")
        return await call if way == "await" else await call.yield_() if way == "yield_" else call.result()

    with pytest.raises(InvalidOperation, match="'actor ann'"):
        do(ann, joins).result(PATIENCE)
    assert do(ann, lambda actor, _: actor.spot).result(PATIENCE) == hall
    at_rest(host)


# -- timers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "way", "works"),
    [
        ("Hall", "await", False),
        ("Hall", "result", False),
        ("Hall", "yield_", True),
        ("Room", "await", True),
        ("Room", "result", False),
        ("Room", "yield_", False),
    ],
)
def test_a_timer_asks_its_own_spot(host, type_name, way, works):
    ref = spot(host, type_name)
    room = do(ref, lambda room, _: room).result(PATIENCE)
    ends: list[Any] = []
    reached: list[str] = []

    async def tick() -> None:
        try:
            ends.append(await asks(ref, way, reached)(room, None))
        except BaseException as error:
            ends.append(error)

    do(ref, lambda room, _: room.timers.every("t", 0.002, tick)).result(PATIENCE)
    eventually(lambda: len(ends) >= 2, "it ticks")
    do(ref, lambda room, _: room.timers.cancel("t")).result(PATIENCE)
    at_rest(host)
    if works:
        assert set(ends) == {"answer"}
    else:
        assert all(isinstance(end, InvalidOperation) for end in ends), ends
        assert reached == []


def test_the_message_names_lane_owner_and_caller():
    class Asker(Spot):
        @handler
        async def ask_itself(self, message: Do, ctx: Any) -> Any:  # noqa: ARG002 - what a handler takes
            return await self.ask(self.ref, Do(print))

    with world(Asker) as host:
        ref = host.spots.create("Asker", "me").result(PATIENCE)
        with pytest.raises(InvalidOperation) as raised:
            ref.request(Do(print)).result(PATIENCE)
        for words in ("await in", "Asker.ask_itself", "application lane", "'spot me'"):
            assert words in str(raised.value)


def test_a_hook_that_waits_for_its_own_object_raises(host):
    """On the lifecycle lane."""
    ref = spot(host, "Room")
    seen: list[Any] = []

    async def on_join(actor: Any) -> None:
        try:
            await ref.request(Do(print))
        except InvalidOperation as error:
            seen.append(str(error))
        (entry,) = host.actors.entries()
        eventually(lambda: entry.executor._queue.holder().waits_for is not None, "its turn's wait for this one")
        try:
            await actor.ref.request(Do(print))
        except InvalidOperation as error:
            seen.append(str(error))

    do(ref, lambda room, _: setattr(room, "on_join", on_join)).result(PATIENCE)
    actor(host, "room")
    assert "lifecycle lane of 'spot room'" in seen[0]
    assert "cycle of owners" in seen[1]
    at_rest(host)
