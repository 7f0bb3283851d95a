"""Membership: joining, leaving and deferring them, in both modes, with everything that can go wrong on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, eventually, outcome
from worlds import Hall, Room, at_rest, do, log_of, members, world

from zlink_nogil import (
    ActorRef,
    Cancelled,
    CapacityExceeded,
    Completion,
    DeadlineExceeded,
    Host,
    InvalidOperation,
    NotFound,
    ShuttingDown,
)
from zlink_nogil.spots import moves
from zlink_nogil.spots.deadline import TimedTurn

MODES = ("Room", "Hall")


@pytest.fixture
def host() -> Iterator[Host]:
    with world() as host:
        yield host


def make(host: Host, mode: str, *names: str) -> None:
    for name in names:
        host.spots.create(mode, name).result(PATIENCE)


def player(host: Host, name: str = "ann", spot: str | None = None) -> ActorRef:
    return host.actors.create("Player", name, spot=spot).result(PATIENCE)


def where(host: Host, name: str = "ann") -> str | None:
    return host.actors.state(name).spot_id


def busy(host: Host, spot_id: str) -> Gate:
    """The Spot's turn is held until the gate is opened."""
    gate = Gate()
    do(host.spots.ref(spot_id), lambda *_: gate())
    gate.wait_begun()
    return gate


def is_member_of(host: Host, name: str, spot_id: str | None, *others: str) -> None:
    """Registration, the Spots' books and the Actor's own view agree, and its queue works."""
    assert where(host, name) == spot_id
    for spot in (spot_id, *others):
        if spot is not None:
            expected = {name} if spot == spot_id else set()
            assert members(host, spot) & {name} == expected
            assert do(host.spots.ref(spot), lambda room, _: set(room.members)).result(PATIENCE) & {name} == expected
    seen = do(host.actors.ref(name), lambda actor, ctx: (actor.spot and actor.spot.id, ctx.spot_id)).result(PATIENCE)
    assert seen == (spot_id, spot_id)
    at_rest(host)


# -- the order of the hooks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", MODES)
@pytest.mark.parametrize("target", MODES)
def test_a_move_tells_the_new_spot_the_registration_the_old_spot_and_then_the_actor(host, source, target):
    order: list[str] = []

    def follow(name: str) -> Any:
        def body(owner: Any, _: Any) -> None:
            def note(what: str) -> Any:
                return lambda *_: order.append(f"{name} {what}, registered in {where(host)}")

            owner.on_join, owner.on_leave = note("joins"), note("leaves")

        return body

    make(host, source, "old")
    make(host, target, "new")
    ann = player(host, spot="old")
    for ref, name in ((host.spots.ref("old"), "old"), (host.spots.ref("new"), "new"), (ann, "ann")):
        do(ref, follow(name)).result(PATIENCE)
    host.actors.join("ann", "new").result(PATIENCE)
    host.actors.leave("ann").result(PATIENCE)
    assert order == [
        "new joins, registered in old",
        "old leaves, registered in new",
        "ann leaves, registered in new",
        "ann joins, registered in new",
        "new leaves, registered in None",
        "ann leaves, registered in None",
    ]
    is_member_of(host, "ann", None, "old", "new")


@pytest.mark.parametrize("mode", MODES)
def test_a_deferred_join_runs_after_the_handler_and_before_the_next_message(host, mode):
    make(host, mode, "room")
    ann, gate, seen = player(host), Gate(), []

    def joins(actor: Any, _: Any) -> None:
        actor.deferred = actor.defer_join("room")
        gate()
        seen.append(actor.spot)

    first = do(ann, joins)
    gate.wait_begun()
    second = do(ann, lambda actor, ctx: (actor.deferred.done(), ctx.spot_id))
    gate.open()
    assert (first.result(PATIENCE), second.result(PATIENCE), seen) == (None, (True, "room"), [None])
    is_member_of(host, "ann", "room")


@pytest.mark.parametrize("mode", MODES)
def test_two_deferred_joins_both_run_in_order(host, mode):
    make(host, mode, "first", "second")
    ann = player(host)

    def joins_both(actor: Any, _: Any) -> list[Completion[None]]:
        return [actor.defer_join("first"), actor.defer_join(host.spots.ref("second"))]

    for joined in do(ann, joins_both).result(PATIENCE):
        joined.result(PATIENCE)
    assert log_of(ann) == ["create", "join first", "leave first", "join second"]
    is_member_of(host, "ann", "second", "first")


def test_a_deferred_leave_runs_after_a_deferred_join(host):
    make(host, "Hall", "room")
    ann = player(host)
    left = do(ann, lambda actor, _: (actor.defer_join("room"), actor.defer_leave())[1]).result(PATIENCE)
    left.result(PATIENCE)
    assert log_of(ann) == ["create", "join room", "leave room"]
    is_member_of(host, "ann", None, "room")


@pytest.mark.parametrize("mode", MODES)
def test_a_deferred_join_is_dropped_when_the_handler_raises(host, mode):
    make(host, mode, "room")
    ann, deferred = player(host), []

    def fails(actor: Any, _: Any) -> None:
        deferred.append(actor.defer_join("room"))
        raise ValueError("no")

    assert isinstance(outcome(do(ann, fails)), ValueError)
    assert isinstance(outcome(deferred[0]), Cancelled)
    is_member_of(host, "ann", None, "room")


def test_a_deferred_join_is_dropped_when_the_handler_is_cancelled(host):
    make(host, "Hall", "room")
    ann, deferred, never = player(host), [], Completion[None]()

    async def waits(actor: Any, _: Any) -> None:
        deferred.append(actor.defer_join("room"))
        await never

    handled = do(ann, waits)
    eventually(lambda: deferred)
    assert handled.cancel()
    assert isinstance(outcome(handled), Cancelled)
    assert isinstance(outcome(deferred[0]), Cancelled)
    is_member_of(host, "ann", None, "room")


def test_a_deferred_join_may_be_cancelled_before_the_handler_ends(host):
    make(host, "Room", "room")
    ann = player(host)

    def changes_its_mind(actor: Any, _: Any) -> Completion[None]:
        deferred = actor.defer_join("room")
        assert deferred.cancel()
        return deferred

    assert isinstance(outcome(do(ann, changes_its_mind).result(PATIENCE)), Cancelled)
    is_member_of(host, "ann", None, "room")


def test_deferring_is_for_the_actors_own_handler(host):
    make(host, "Room", "room")
    ann, kept = player(host), []
    do(ann, lambda actor, _: kept.append(actor)).result(PATIENCE)
    with pytest.raises(InvalidOperation, match="'actor ann'"):
        kept[0].defer_join("room")
    with pytest.raises(InvalidOperation, match="'actor ann'"):
        do(host.spots.ref("room"), lambda *_: kept[0].defer_leave()).result(PATIENCE)
    at_rest(host)


def test_waiting_for_ones_own_deferred_join_raises(host):
    make(host, "Room", "room")

    async def waits(actor: Any, _: Any) -> None:
        await actor.defer_join("room")

    with pytest.raises(InvalidOperation, match="'actor ann'"):
        do(player(host), waits).result(PATIENCE)
    is_member_of(host, "ann", None, "room")


# -- joins that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, *MODES])
@pytest.mark.parametrize("target", MODES)
def test_a_refused_join_leaves_everything_as_it_was(host, source, target):
    if source is not None:
        make(host, source, "old")
    make(host, target, "new")
    ann = player(host, spot=source and "old")
    do(host.spots.ref("new"), lambda room, _: setattr(room, "refuse", PermissionError("full"))).result(PATIENCE)
    before = log_of(ann)
    for _ in range(2):
        with pytest.raises(PermissionError, match="full"):
            host.actors.join("ann", "new").result(PATIENCE)
    deferred = do(ann, lambda actor, _: actor.defer_join("new")).result(PATIENCE)
    assert isinstance(outcome(deferred), PermissionError)
    assert log_of(ann) == before
    is_member_of(host, "ann", source and "old", "new")
    do(host.spots.ref("new"), lambda room, _: setattr(room, "refuse", None)).result(PATIENCE)
    host.actors.join("ann", "new").result(PATIENCE)
    is_member_of(host, "ann", "new", *([] if source is None else ["old"]))


def test_joining_the_spot_one_is_in_changes_nothing(host):
    make(host, "Hall", "room")
    ann = player(host, spot="room")
    host.actors.join("ann", "room").result(PATIENCE)
    assert log_of(ann) == ["create", "join room"]
    assert log_of(host.spots.ref("room")) == ["create", "join ann"]
    is_member_of(host, "ann", "room")


def test_joining_a_spot_that_is_not_there_and_leaving_none(host):
    player(host)
    with pytest.raises(NotFound, match="'nowhere'"):
        host.actors.join("ann", "nowhere").result(PATIENCE)
    with pytest.raises(NotFound, match="'nobody'"):
        host.actors.join("nobody", "nowhere").result(PATIENCE)
    host.actors.leave("ann").result(PATIENCE)
    is_member_of(host, "ann", None)


def test_an_instance_spot_has_no_members(host):
    host.spots.create("Solo", "solo").result(PATIENCE)
    make(host, "Hall", "room")
    player(host, spot="room")
    with pytest.raises(InvalidOperation, match="no Actors"):
        host.actors.join("ann", "solo").result(PATIENCE)
    is_member_of(host, "ann", "room")


def test_a_spot_that_closes_takes_nobody_in(host):
    make(host, "Hall", "old", "new")
    ann, gate = player(host, spot="old"), busy(host, "new")
    closed = host.spots.close("new").submit()
    joined = host.actors.join("ann", "new").submit()
    gate.open()
    assert isinstance(outcome(joined), (ShuttingDown, NotFound)), "NotFound: it was faster"
    closed.result(PATIENCE)
    assert do(ann, lambda *_: "works").result(PATIENCE) == "works"
    is_member_of(host, "ann", "old")


@pytest.mark.parametrize("mode", MODES)
def test_a_join_waits_for_a_spot_that_is_being_created(mode):
    gate = Gate()

    class Slow(Hall if mode == "Hall" else Room):
        def on_create(self) -> None:
            super().on_create()
            gate()

    with world(Slow) as host:
        for _ in range(20):
            created = host.spots.create("Slow", "room").submit()
            player(host)
            joined = host.actors.join("ann", "room").submit()
            gate.wait_begun()
            gate.open()
            joined.result(PATIENCE)
            created.result(PATIENCE)
            is_member_of(host, "ann", "room")
            host.spots.close("room").result(PATIENCE)
            host.actors.close("ann").result(PATIENCE)
            gate.__init__()


def test_a_join_that_waits_longer_than_its_timeout_never_takes_place(host):
    make(host, "Hall", "old", "new")
    ann, gate = player(host, spot="old"), busy(host, "new")
    with pytest.raises(DeadlineExceeded):
        host.actors.join("ann", "new", timeout=0.02).result(PATIENCE)
    assert do(ann, lambda actor, _: actor.spot.id).result(PATIENCE) == "old"
    gate.open()
    assert log_of(host.spots.ref("new")) == ["create"], "it was told of nobody who did not come"
    is_member_of(host, "ann", "old", "new")


@pytest.mark.parametrize("mode", MODES)
def test_a_join_whose_hook_is_running_at_the_deadline_is_taken_back(host, mode, monkeypatch):
    make(host, "Room", "old")
    make(host, mode, "new")
    ann, gate = player(host, spot="old"), Gate()
    do(host.spots.ref("new"), lambda room, _: setattr(room, "on_join", lambda _: gate())).result(PATIENCE)
    given_up, end = threading.Event(), moves._end
    monkeypatch.setattr(moves, "_end", lambda *args: (given_up.set(), end(*args))[1])
    joined = host.actors.join("ann", "new", timeout=0.1).submit()
    gate.wait_begun()
    assert isinstance(outcome(joined), DeadlineExceeded)
    assert given_up.wait(PATIENCE), "the deadline is known to the Actor's turn a moment after the asker knows it"
    after = do(ann, lambda actor, _: actor.spot.id)
    gate.open()
    assert after.result(PATIENCE) == "old"
    assert log_of(host.spots.ref("new")) == ["create", "leave ann"], "it had come in"
    is_member_of(host, "ann", "old", "new")


@pytest.mark.parametrize("due", ["before it is in the queue", "at any time"])
def test_a_join_with_next_to_no_time_leaves_the_queue_whole(host, monkeypatch, due):
    make(host, "Room", "room")
    ann, connect = player(host), TimedTurn.connect
    if due == "before it is in the queue":
        timers = host._pool().ready.timers
        monkeypatch.setattr(TimedTurn, "connect", lambda *args: (connect(*args), timers.fire()))
    for _ in range(20 if due == "before it is in the queue" else 300):
        completion = host.actors.join("ann", "room", timeout=1e-9).submit()
        assert isinstance(outcome(completion), DeadlineExceeded | None)
        assert do(ann, lambda *_: "works").result(PATIENCE) == "works"
    at_rest(host)


def test_a_cancelled_join_never_takes_place(host):
    make(host, "Room", "new")
    ann, gate = player(host), busy(host, "new")
    joined = host.actors.join("ann", "new").submit()
    eventually(lambda: next(a for a in host.inspect().actors).queue.suspended, "the join waits for the Spot")
    assert joined.cancel()
    assert isinstance(outcome(joined), Cancelled)
    assert do(ann, lambda *_: "works").result(PATIENCE) == "works"
    gate.open()
    is_member_of(host, "ann", None, "new")
    assert log_of(host.spots.ref("new")) == ["create"]


# -- little room ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_many_leave_a_spot_with_room_for_one(mode):
    with world(lifecycle_message_capacity=1) as host:
        make(host, mode, "room")
        for name in "abcdefgh":
            player(host, name, "room")
        gate = busy(host, "room")
        leaving = [host.actors.leave(name).submit() for name in "abcdefgh"]
        if mode == "Room":
            eventually(lambda: all(actor.queue.suspended for actor in host.inspect().actors), "all wait to leave")
        gate.open()
        for left in leaving:
            left.result(PATIENCE)
        assert sorted(log_of(host.spots.ref("room"))[9:]) == [f"leave {name}" for name in "abcdefgh"]
        for name in "abcdefgh":
            is_member_of(host, name, None, "room")


def test_a_join_that_finds_no_room_fails_and_changes_nothing():
    with world(lifecycle_message_capacity=1) as host:
        make(host, "Room", "old", "new")
        player(host, "ann", "old")
        player(host, "bob")
        gate = busy(host, "new")
        waits = host.actors.join("bob", "new").submit()
        eventually(lambda: any(actor.queue.suspended for actor in host.inspect().actors), "it waits for the Spot")
        with pytest.raises(CapacityExceeded):
            host.actors.join("ann", "new").result(PATIENCE)
        with pytest.raises(CapacityExceeded):
            host.actors.join("bob", "old").result(PATIENCE)
        gate.open()
        waits.result(PATIENCE)
        is_member_of(host, "ann", "old", "new")
        is_member_of(host, "bob", "new", "old")
