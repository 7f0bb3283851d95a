"""Actors with a queue of their own that join a Spot, leave it, and move on (design 3.5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from background import Gate
from spots import MODES, Stage, joined, let_others_run, policy, refused
from support import PATIENCE, eventually

from zlink_nogil.errors import AlreadyExists, CapacityExceeded, InvalidOperation
from zlink_nogil.execution import ActorSerialExecutor, Instance, PerActor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


def busy(actor: ActorSerialExecutor) -> Gate:
    gate = Gate()
    actor.execute_actor(gate)
    gate.wait_begun()
    return gate


def takes_its_turns_from(stage: Stage, actor: ActorSerialExecutor) -> bool:
    """Does the Actor wait for the Spot's gate? With a worker free."""
    gate = stage.hold_spot()
    handled = actor.execute_actor(lambda: None)
    if not actor.may_yield():
        handled.result(PATIENCE)
    let_others_run(stage.pool)
    waits = not handled.done()
    gate.open()
    handled.result(PATIENCE)
    return waits


def test_a_member_of_a_spot_wide_spot_takes_its_turns_from_there_until_it_leaves(pool):
    stage = Stage(pool, SpotWide)
    member = joined(stage, "m")
    assert takes_its_turns_from(stage, member)
    assert (stage.spot.is_current(), member.execute_actor(stage.spot.is_current).result(PATIENCE)) == (False, True)
    member.execute_actor(lambda: stage.spot.release_member("m")).result(PATIENCE)
    assert not takes_its_turns_from(stage, member)
    assert member.execute_actor(stage.spot.is_current).result(PATIENCE) is False


def test_members_of_a_per_actor_spot_overlap(pool):
    stage, barrier = Stage(pool, PerActor), threading.Barrier(2)
    members = [joined(stage, name) for name in ("a", "b")]
    met = [member.execute_actor(lambda: barrier.wait(PATIENCE)) for member in members]
    assert {completion.result(PATIENCE) for completion in met} == {0, 1}


@pytest.mark.parametrize("mode", MODES)
def test_through_the_spot_and_to_the_actor_is_one_order(pool, mode):
    stage = Stage(pool, mode, actor_items=1)
    member = joined(stage, "m", items=5)
    gate = busy(member)
    for index in range(2):
        member.execute_actor(stage.note(2 * index))
        stage.spot.execute_actor("m", stage.note(2 * index + 1))
    with pytest.raises(CapacityExceeded):  # its own policy's
        stage.spot.execute_actor("m", refused)
    gate.open()
    member.execute_lifecycle(lambda: None).result(PATIENCE)
    stage.at_rest()
    assert member.execute_actor(lambda: stage.seen).result(PATIENCE) == [0, 1, 2, 3]


@pytest.mark.parametrize("order", ["leave first", "join first"])
@pytest.mark.parametrize("modes", [(SpotWide, SpotWide), (SpotWide, PerActor), (PerActor, SpotWide)])
def test_what_waits_moves_along_in_order(pool, modes, order):
    old, new = Stage(pool, modes[0], name="old"), Stage(pool, modes[1], name="new")
    member = joined(old, "m")
    gate = busy(member)

    def move() -> None:
        if order == "leave first":
            old.spot.release_member("m")
        new.spot.admit_member("m", member)
        if order == "join first":
            old.spot.release_member("m")
        new.seen.append("moved")

    member.execute_actor(move)
    for index in range(3):
        member.execute_actor(new.note(index))
    gate.open()
    assert member.execute_actor(new.spot.is_current).result(PATIENCE)
    assert new.seen == ["moved", 0, 1, 2]
    assert takes_its_turns_from(new, member) == (modes[1] is SpotWide)
    assert not takes_its_turns_from(old, member)


def test_joining_and_leaving_in_one_turn_is_staying_alone(pool):
    stage, actor = Stage(pool, SpotWide), ActorSerialExecutor("m", pool=pool)

    def there_and_back() -> None:
        stage.spot.admit_member("m", actor)
        stage.spot.release_member("m")

    actor.execute_actor(there_and_back).result(PATIENCE)
    assert not takes_its_turns_from(stage, actor)


@pytest.mark.parametrize("way", ["await", "yield"])
@pytest.mark.parametrize("step", ["join", "leave"])
def test_a_handler_may_wait_after_it_has_joined_or_left(pool, way, step):
    """It stays on the turn it has until it ends."""
    stage, reply = Stage(pool, SpotWide), Completion[str](pool)
    actor = joined(stage, "m") if step == "leave" else ActorSerialExecutor("m", pool=pool)

    async def handler() -> str:
        if step == "join":
            stage.spot.admit_member("m", actor)
        else:
            stage.spot.release_member("m")
        if way == "yield" and step == "join":
            with pytest.raises(InvalidOperation, match="shared Spot gate"):
                await reply.yield_()
        return await (reply.yield_() if (way, step) == ("yield", "leave") else reply)

    handled = actor.execute_actor(handler)
    actor.execute_actor(stage.note("behind it"))
    eventually(lambda: actor.snapshot().suspended, "it waits")
    reply.succeed("there")
    assert handled.result(PATIENCE) == "there"
    assert takes_its_turns_from(stage, actor) == (step == "join")
    assert stage.seen == ["behind it"]


@pytest.mark.parametrize("mode", MODES)
def test_an_id_that_is_in_use_is_refused_and_free_again_after_leaving(pool, mode):
    stage, other = Stage(pool, mode), ActorSerialExecutor("other", pool=pool)
    member = joined(stage, "m")

    def join(actor_id: str) -> Any:
        return other.execute_actor(lambda: stage.spot.admit_member(actor_id, other)).result(PATIENCE)

    with pytest.raises(AlreadyExists, match="'m'"):
        join("m")
    stage.hold_actor("by id")
    with pytest.raises(AlreadyExists, match="'by id'"):
        join("by id")
    stage.let_go()
    member.execute_actor(lambda: stage.spot.release_member("m")).result(PATIENCE)
    join("m")

    def free() -> bool:
        try:
            join("by id")
        except AlreadyExists:  # what was let go is not over yet
            return False
        return True

    eventually(free, "the end of the work by id")
    assert stage.spot.execute_actor("m", other.is_current).result(PATIENCE)
    assert stage.spot.execute_actor("by id", other.is_current).result(PATIENCE)


def test_an_instance_spot_has_no_actors(pool):
    stage, actor = Stage(pool, Instance), ActorSerialExecutor("m", pool=pool)
    with pytest.raises(InvalidOperation, match="no Actors"):
        stage.spot.execute_actor("m", refused)
    with pytest.raises(InvalidOperation, match="no Actors"):
        actor.execute_actor(lambda: stage.spot.admit_member("m", actor)).result(PATIENCE)
    assert not actor.may_yield()


@pytest.mark.parametrize("mode", MODES)
def test_an_actor_that_has_left_is_not_closed_with_the_spot(pool, mode):
    stage = Stage(pool, mode)
    member = joined(stage, "m")
    member.execute_actor(lambda: stage.spot.release_member("m")).result(PATIENCE)
    stage.spot.close()
    assert member.execute_actor(lambda: "goes on").result(PATIENCE) == "goes on"


# -- work that a handler defers to its end --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, None])
def test_deferred_work_runs_before_the_next_message_and_only_if_the_handler_ends_normally(single, mode):
    stage = Stage(single, mode or PerActor)
    actor = ActorSerialExecutor("m", policy=policy(), pool=single) if mode is None else joined(stage, "m")
    deferred: list[Completion[Any]] = []

    def handler(fails: bool) -> None:
        deferred.extend(actor.defer(stage.note(name)) for name in ("first", "second"))
        stage.seen.append("handler")
        if fails:
            raise ValueError

    handled = [actor.execute_actor(lambda fails=fails: handler(fails)) for fails in (False, True)]
    actor.execute_actor(stage.note("next")).result(PATIENCE)
    assert stage.seen == ["handler", "first", "second", "handler", "next"]
    assert [type(completion.exception(PATIENCE)) for completion in handled] == [type(None), ValueError]
    assert [completion.cancelled() for completion in deferred] == [False, False, True, True]
    with pytest.raises(InvalidOperation, match="only a turn"):
        actor.defer(refused)
