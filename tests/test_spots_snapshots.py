"""What a message knows of the registries, and what `Host.inspect` tells (design 3.6)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, outcome, together
from worlds import alarms, at_rest, do, queues, spot_state, world

from zlink_nogil import Completion, Host, NotFound
from zlink_nogil.spots import ActorStateSnapshot


@pytest.fixture
def host() -> Iterator[Host]:
    with world() as host:
        yield host


def spot(host: Host, type_name: str, name: str = "room") -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


def actor(host: Host, spot: str | None = None, name: str = "ann") -> Any:
    return host.actors.create("Player", name, spot=spot).result(PATIENCE)


def told(host: Host) -> dict[str, Any]:
    """`inspect`, on its way through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(host.inspect())))


# -- seed 000's last section: one consistent state per message --------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "waits"),
    [*[(mode, waits) for mode in ("Room", "Hall", None) for waits in ("blocks", "awaits")], ("Hall", "yields")],
)
def test_one_message_sees_one_consistent_state_though_the_registration_changes_in_its_middle(host, mode, waits):
    if mode is not None:
        spot(host, mode)
    place = None if mode is None else "room"
    ann, gate, go_on = actor(host, place), Gate(), Completion[None]()
    host.actors.update("ann", {"rank": "old", "team": "old"})

    def read(ctx: Any) -> tuple[Any, ...]:
        return (ctx.actor.attributes["rank"], ctx.actor.attributes["team"], ctx.actor.spot_id, ctx.spot_id)

    async def handles(_: Any, ctx: Any) -> list[Any]:
        first, snapshot = read(ctx), ctx.actor
        if waits == "blocks":
            gate()
        else:
            gate._begun.set()
            await (go_on if waits == "awaits" else go_on.yield_())
        return [first, read(ctx), ctx.actor is snapshot]

    handled = do(ann, handles)
    gate.wait_begun()
    following = do(ann, lambda _, ctx: read(ctx))
    host.actors.update("ann", {"rank": "new", "team": "new"})
    assert host.actors.state("ann").attributes == {"rank": "new", "team": "new"}
    gate.open()
    go_on.succeed(None)
    old = ("old", "old", place, place)
    assert handled.result(PATIENCE) == [old, old, True]
    assert following.result(PATIENCE) == ("new", "new", place, place)
    at_rest(host)


def test_values_of_one_update_are_never_mixed_with_those_of_another(host):
    ann = actor(host)
    host.actors.update("ann", {"a": "0", "b": "0"})

    def updates() -> None:
        for n in range(200):
            host.actors.update("ann", {"a": str(n), "b": str(n)})

    def reads() -> None:
        for _ in range(200):
            assert do(ann, lambda _, ctx: ctx.actor.attributes["a"] == ctx.actor.attributes["b"]).result(PATIENCE)
            state = host.actors.state("ann")
            assert state.attributes["a"] == state.attributes["b"]

    assert together(updates, updates, reads, reads) == [None] * 4
    at_rest(host)


def test_a_registration_cannot_be_changed_by_its_readers(host):
    actor(host)
    given = {"rank": "old"}
    host.actors.update("ann", given)
    given["rank"] = "changed"
    state = host.actors.state("ann")
    assert state == ActorStateSnapshot("ann", "Player", None, {"rank": "old"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.spot_id = "elsewhere"  # type: ignore[misc]
    with pytest.raises(NotFound):
        host.actors.update("nobody", {})
    with pytest.raises(NotFound):
        host.actors.state("nobody")


def test_a_move_changes_what_the_next_message_sees(host):
    spot(host, "Room", "old")
    spot(host, "Hall", "new")
    ann = actor(host, "old")

    def moves(actor: Any, ctx: Any) -> tuple[Any, ...]:
        actor.defer_join("new")
        return (ctx.spot_id, actor.spot.id)

    assert do(ann, moves).result(PATIENCE) == ("old", "old")
    assert do(ann, lambda actor, ctx: (ctx.spot_id, actor.spot.id)).result(PATIENCE) == ("new", "new")
    at_rest(host)


# -- inspect --------------------------------------------------------------------------------------------------------


def test_inspect_tells_who_holds_a_turn_and_what_waits(host):
    room, gate = spot(host, "Room"), Gate()
    do(room, lambda *_: gate(), metadata={"k": b"x" * 99})
    gate.wait_begun()
    behind = [do(room, lambda *_: None) for _ in range(3)]
    queue = told(host)["spots"][0]["queues"][0]
    assert queue["name"] == "spot room"
    assert queue["waiting"] == 3
    assert queue["reserved_items"] == 4
    assert queue["reserved_bytes"] == 4 * 256 + 100
    assert queue["holder"] == "Does.do (spot 'room')"
    assert 0 <= queue["held_seconds"] < PATIENCE
    assert queue["suspended"] == []
    before = queue["held_seconds"]
    eventually(lambda: told(host)["spots"][0]["queues"][0]["held_seconds"] > before, "time goes by")
    assert alarms(host) == 4
    gate.open()
    for answer in behind:
        answer.result(PATIENCE)
    at_rest(host)


@pytest.mark.parametrize("way", ["await", "yield_"])
@pytest.mark.parametrize("kind", ["Hall", "Player"])
def test_inspect_tells_what_is_suspended_with_its_turn_or_without(host, way, kind):
    hall, never = spot(host, "Hall"), Completion[None]()
    ref = hall if kind == "Hall" else actor(host, "room")

    async def waits(*_: Any) -> None:
        await (never if way == "await" else never.yield_())

    handled = do(ref, waits)
    name = "spot room" if kind == "Hall" else "actor ann"
    who = f"Does.do ({name.replace(' ', ' ' + chr(39))}')"

    def queue(name: str) -> dict[str, Any]:
        seen = told(host)
        rows = [q for row in seen["spots"] for q in row["queues"]] + [row["queue"] for row in seen["actors"]]
        return next(row for row in rows if row["name"] == name)

    eventually(lambda: queue(name)["suspended"] == [who], f"{who} waits: {queues(host)}")
    holder = who if way == "await" else None
    eventually(lambda: queue("spot room")["holder"] == holder, "its slice has ended")
    assert queue(name)["reserved_items"] == 1
    if kind == "Player":
        assert queue("actor ann")["holder"] == who, "it keeps its claim"
        assert queue("spot room")["reserved_items"] == 1
    if way == "yield_":
        assert do(hall, lambda *_: "others run").result(PATIENCE) == "others run"
    never.succeed(None)
    handled.result(PATIENCE)
    at_rest(host)


def test_inspect_tells_modes_states_members_and_timers(host):
    for type_name in ("Room", "Hall", "Square", "Solo"):
        spot(host, type_name, type_name)
    actor(host, "Hall")
    actor(host, "Room", "bob")
    host.actors.update("ann", {"rank": "high"})
    do(host.spots.ref("Room"), lambda room, _: room.timers.every("t", 600, print)).result(PATIENCE)
    gate = Gate()
    do(host.spots.ref("Solo"), lambda *_: gate())
    gate.wait_begun()
    closed = host.spots.close("Solo").submit()
    eventually(lambda: spot_state(host, "Solo").state == "closing")
    seen = told(host)
    assert [(row["spot_id"], row["type_name"], row["mode"], row["state"], row["members"]) for row in seen["spots"]] == [
        ("Room", "Room", "PerActor", "open", ["bob"]),
        ("Hall", "Hall", "SpotWide", "open", ["ann"]),
        ("Square", "Square", "Entry", "open", []),
        ("Solo", "Solo", "Instance", "closing", []),
    ]
    assert seen["spots"][0]["timers"] == {"t": {"ticks": 0, "missed": 0, "late_seconds": 0.0}}
    assert seen["actors"][0]["registration"] == {
        "actor_id": "ann",
        "type_name": "Player",
        "spot_id": "Hall",
        "attributes": {"rank": "high"},
    }
    gate.open()
    closed.result(PATIENCE)
    at_rest(host, timers=1)


def test_inspect_while_everything_moves(host):
    """It never fails, and what it tells can be written down."""
    for name in "ab":
        spot(host, "Hall", name)
    refs = [actor(host, "ab"[n % 2], f"p{n}") for n in range(6)]

    def moves() -> None:
        for n in range(60):
            outcome(host.actors.join(f"p{n % 6}", "ab"[n // 6 % 2]).submit())
            do(refs[n % 6], lambda *_: None).result(PATIENCE)
            host.spots.get_or_create("Room", f"extra{n % 3}").result(PATIENCE)
            outcome(host.spots.close(f"extra{n % 3}").submit())

    def looks() -> None:
        for _ in range(60):
            told(host)

    assert together(moves, looks, looks) == [None] * 3
    at_rest(host)
