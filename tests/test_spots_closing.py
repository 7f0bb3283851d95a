"""Closing Spots, Actors and the host: what was accepted ends, then `on_close`, and nothing runs after that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, eventually, outcome
from worlds import Do, Hall, Room, at_rest, do, log_of, members, world

from zlink_nogil import (
    Cancelled,
    Completion,
    DeadlineExceeded,
    Host,
    InvalidOperation,
    NotFound,
    ShuttingDown,
)

OWNERS = [("spots", "Room"), ("spots", "Hall"), ("spots", "Square"), ("spots", "Solo"), ("actors", "Player")]
LOGGING = [("spots", "Room"), ("spots", "Hall"), ("actors", "Player")]
MODES = ("Room", "Hall")


@pytest.fixture
def host() -> Iterator[Host]:
    with world() as host:
        yield host


def make(host: Host, kind: str, type_name: str, name: str = "x") -> Any:
    return getattr(host, kind).create(type_name, name).result(PATIENCE)


def held(ref: Any) -> Gate:
    gate = Gate()
    do(ref, lambda *_: gate())
    gate.wait_begun()
    return gate


@pytest.mark.parametrize(("kind", "type_name"), LOGGING)
def test_close_finishes_what_was_accepted_and_runs_on_close_last(host, kind, type_name):
    ref = make(host, kind, type_name)
    owner = do(ref, lambda owner, _: owner).result(PATIENCE)
    gate = held(ref)
    answers = [do(ref, lambda owner, _, n=n: owner.log.append(f"message {n}")) for n in range(5)]
    closes = [ref.close().submit() for _ in range(3)]
    try:  # the close may have begun, or be about to
        late = do(ref, lambda owner, _: owner.log.append("late"))
    except ShuttingDown:
        late = None
    gate.open()
    for close in closes:
        close.result(PATIENCE)
    assert all(outcome(answer) is None for answer in answers)
    assert late is None or outcome(late) is None
    assert owner.log == ["create", *[f"message {n}" for n in range(5)], *([] if late is None else ["late"]), "close"]
    with pytest.raises(NotFound):
        do(ref, lambda *_: None)
    with pytest.raises(NotFound):
        ref.close().result(PATIENCE)
    at_rest(host)


@pytest.mark.parametrize(("kind", "type_name"), OWNERS)
def test_many_close_at_once_and_all_wait_for_the_end(host, kind, type_name):
    ref = make(host, kind, type_name)
    owner = do(ref, lambda owner, _: owner).result(PATIENCE)
    gate = Gate()
    owner.on_close = gate
    closes = [Background(lambda: ref.close().result(PATIENCE)) for _ in range(4)]
    gate.wait_begun()
    assert all(close.running() for close in closes)
    gate.open()
    ended = []
    for close in closes:
        try:
            ended.append(close.result())
        except NotFound:
            ended.append(None)
    assert ended == [None] * 4
    assert ref.id not in getattr(host, kind)


@pytest.mark.parametrize(("kind", "type_name"), OWNERS)
def test_what_on_close_raises_is_the_outcome_of_the_close_and_the_id_is_free(host, kind, type_name):
    ref = make(host, kind, type_name)

    def fails() -> None:
        raise PermissionError("no")

    do(ref, lambda owner, _: setattr(owner, "on_close", fails)).result(PATIENCE)
    with pytest.raises(PermissionError):
        ref.close().result(PATIENCE)
    make(host, kind, type_name)
    at_rest(host)


@pytest.mark.parametrize(("kind", "type_name"), OWNERS)
@pytest.mark.parametrize("way", ["await", "result", "await the completion", "result of the completion"])
def test_a_handler_may_close_its_own_object_but_not_wait_for_it(host, kind, type_name, way):
    ref = make(host, kind, type_name)

    async def waits() -> None:
        if way == "await":
            await ref.close()
        elif way == "result":
            ref.close().result()
        elif way == "await the completion":
            await ref.close().submit()
        else:
            ref.close().submit().result()

    async def closes(*_: Any) -> Completion[None]:
        with pytest.raises(InvalidOperation, match=r"'x'.*wait for itself"):
            await waits()
        return ref.close().submit()

    do(ref, closes).result(PATIENCE).result(PATIENCE)
    assert ref.id not in getattr(host, kind)
    at_rest(host)


def test_the_end_cannot_be_cancelled(host):
    ref = make(host, "spots", "Room")
    gate = held(ref)
    closed = ref.close().submit()
    assert not closed.cancel()
    gate.open()
    closed.result(PATIENCE)


@pytest.mark.parametrize(("kind", "type_name"), OWNERS)
def test_a_handler_that_waits_too_long_is_interrupted_and_on_close_still_runs(host, kind, type_name):
    ref, never, seen = make(host, kind, type_name), Completion[None](), []

    async def waits(*_: Any) -> None:
        try:
            await never
        except BaseException as error:
            seen.append(type(error))
            raise

    do(ref, lambda owner, _: setattr(owner, "on_close", lambda: seen.append("close"))).result(PATIENCE)
    waiting, behind = do(ref, waits), do(ref, lambda *_: seen.append("behind"))
    ref.close(timeout=0.05).result(PATIENCE)
    assert isinstance(outcome(waiting), ShuttingDown)
    assert isinstance(outcome(behind), ShuttingDown)
    assert seen == [ShuttingDown, "close"]
    at_rest(host)


@pytest.mark.parametrize(("kind", "type_name"), OWNERS)
def test_a_handler_that_blocks_is_reported_and_the_id_is_free(host, kind, type_name):
    ref = make(host, kind, type_name)
    gate = held(ref)
    with pytest.raises(DeadlineExceeded, match=r"still running.*x'"):
        ref.close(timeout=0.05).result(PATIENCE)
    make(host, kind, type_name)
    gate.open()
    at_rest(host)


# -- members --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("room_for", [1, 128])
def test_a_spot_that_closes_sees_its_members_off_and_their_queues_go_on(mode, room_for):
    names = [f"p{n}" for n in range(20)]
    with world(workers=3, lifecycle_message_capacity=room_for) as host:
        ref = make(host, "spots", mode)
        room = do(ref, lambda room, _: room).result(PATIENCE)
        for name in names:
            host.actors.create("Player", name, spot="x").result(PATIENCE)
        kept = names[:1] if mode == "Hall" else names[:2]
        gates = [held(host.actors.ref(name)) for name in kept]
        waiting = {
            name: do(host.actors.ref(name), lambda actor, _: actor.spot) for name in (names if mode == "Hall" else kept)
        }
        closed = ref.close().submit()
        eventually(
            lambda: all(row.queue.waiting == 2 for row in host.inspect().actors if row.registration.actor_id in waiting),
            "they are asked to leave",
        )
        for gate in gates:
            gate.open()
        closed.result(PATIENCE)
        assert room.log[0] == "create"
        assert sorted(room.log[21:-1]) == sorted(f"leave {name}" for name in names)
        assert room.log[-1] == "close"
        assert [answer.result(PATIENCE) for answer in waiting.values()] == [None] * len(waiting), "ahead of what waited"
        for name in names:
            assert host.actors.state(name).spot_id is None
            assert log_of(host.actors.ref(name)) == ["create", "join x", "leave x"]
        at_rest(host)


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_waits_is_interrupted_at_most_and_stays_alive(host, mode):
    ref, never = make(host, "spots", mode), Completion[None]()
    ann = host.actors.create("Player", "ann", spot="x").result(PATIENCE)

    async def waits(*_: Any) -> None:
        await never

    waiting, behind = do(ann, waits), do(ann, lambda *_: "behind")
    eventually(lambda: host.inspect().actors[0].queue.suspended, "it waits")
    ended = outcome(ref.close(timeout=0.05).submit())
    assert ended is None or (mode == "Hall" and isinstance(ended, DeadlineExceeded))
    never.succeed(None)
    assert outcome(waiting) is None or isinstance(outcome(waiting), ShuttingDown)
    assert behind.result(PATIENCE) == "behind"
    eventually(lambda: host.actors.state("ann").spot_id is None, "it has left")
    make(host, "spots", mode)
    host.actors.join("ann", "x").result(PATIENCE)
    assert do(ann, lambda actor, _: actor.spot.id).result(PATIENCE) == "x"
    at_rest(host)


@pytest.mark.parametrize("mode", MODES)
def test_an_actor_that_closes_leaves_its_spot_first(host, mode):
    room = make(host, "spots", mode)
    ann = host.actors.create("Player", "ann", spot="x").result(PATIENCE)
    owner = do(ann, lambda actor, _: actor).result(PATIENCE)
    ann.close().result(PATIENCE)
    assert owner.log == ["create", "join x", "leave x", "close"]
    assert log_of(room) == ["create", "join ann", "leave ann"]
    assert members(host, "x") == set()
    host.actors.create("Player", "ann", spot="x").result(PATIENCE)
    assert members(host, "x") == {"ann"}
    at_rest(host)


@pytest.mark.parametrize("mode", MODES)
def test_an_actor_that_could_not_be_closed_in_time_is_no_member(host, mode):
    make(host, "spots", mode)
    ann = host.actors.create("Player", "ann", spot="x").result(PATIENCE)
    gate = held(ann)
    with pytest.raises(DeadlineExceeded):
        ann.close(timeout=0.05).result(PATIENCE)
    gate.open()
    eventually(lambda: members(host, "x") == set(), "it is no member")
    host.actors.create("Player", "ann", spot="x").result(PATIENCE)
    assert members(host, "x") == {"ann"}
    host.spots.close("x").result(PATIENCE)
    at_rest(host)


def test_an_actor_closes_though_its_spot_is_stuck(host):
    room = make(host, "spots", "Room")
    ann = host.actors.create("Player", "ann", spot="x").result(PATIENCE)
    owner, gate = do(ann, lambda actor, _: actor).result(PATIENCE), held(room)
    with pytest.raises(DeadlineExceeded):
        ann.close(timeout=0.05).result(PATIENCE)
    eventually(lambda: "close" in owner.log, "its hook runs")
    gate.open()
    eventually(lambda: members(host, "x") == set())
    at_rest(host)


# -- the host -------------------------------------------------------------------------------------------------------


def test_host_close_ends_hundreds_of_spots_and_actors():
    owners: list[Any] = []
    with world() as host:
        for n in range(100):
            make(host, "spots", ("Room", "Hall")[n % 2], f"s{n}")
        for n in range(300):
            ref = host.actors.create("Player", f"a{n}", spot=f"s{n % 3}").result(PATIENCE)
            do(ref, lambda actor, _: owners.append(actor)).result(PATIENCE)
        host.close()
        assert (len(host.spots), len(host.actors)) == (0, 0)
    assert [owner.log[-1] for owner in owners] == ["close"] * 300
    assert all(owner.log[-2].startswith("leave s") for owner in owners)


@pytest.mark.parametrize(("kind", "type_name"), LOGGING)
def test_host_close_with_one_stuck_ends_the_others_in_time(kind, type_name):
    with world(workers=3) as host:
        others = [make(host, kind, type_name, f"o{n}") for n in range(20)]
        logs = [do(ref, lambda owner, _: owner.log).result(PATIENCE) for ref in others]
        gate = held(make(host, kind, type_name, "stuck"))
        begun = time.monotonic()
        closing = Background(host.close, 0.1)
        eventually(lambda: len(getattr(host, kind)) <= 1, "the others have ended")
        closing.result()
        assert time.monotonic() - begun < 5
        assert all(log[-1] == "close" for log in logs)
        gate.open()


def test_host_close_gives_up_a_creation_that_hangs():
    never = Completion[None]()

    class Hangs(Room):
        async def on_create(self) -> None:
            await never

    with world(Hangs) as host:
        created = host.spots.create("Hangs", "x", timeout=600).submit()
        begun = time.monotonic()
        host.close(0.1)
        assert time.monotonic() - begun < 5
        assert isinstance(outcome(created), Cancelled | ShuttingDown)


def test_host_close_does_not_wait_as_long_as_somebody_elses_close():
    with world(workers=3) as host:
        ref = make(host, "spots", "Room")
        gate = held(ref)
        closed = ref.close(timeout=600).submit()
        begun = time.monotonic()
        host.close(0.1)
        assert time.monotonic() - begun < 5
        gate.open()
        closed.exception(PATIENCE)


def test_before_the_start_and_after_the_close(host):
    fresh = Host(workers=1)
    fresh.spots.register(Room)
    assert fresh.inspect().spots == ()
    for call in (
        lambda: fresh.spots.create("Room", "x").submit(),
        lambda: fresh.spots.ref("x").send("message").submit(),
        lambda: fresh.spots.ref("x").request("message").result(),
        lambda: fresh.spots.close("x").submit(),
        lambda: fresh.actors.join("x", "y").submit(),
    ):
        with pytest.raises(InvalidOperation, match="not been started"):
            call()
    fresh.close()
    make(host, "spots", "Room")
    host.close()
    for late in (
        lambda: host.spots.create("Room", "y").submit(),
        lambda: host.spots.get_or_create("Room", "x").submit(),
        lambda: host.spots.ref("x").send("message").submit(),
        lambda: host.spots.ref("x").request("message").result(),
        lambda: host.spots.close("x").submit(),
        lambda: host.actors.join("x", "y").submit(),
        lambda: host.actors.update("x", {}),
    ):
        with pytest.raises(ShuttingDown):
            late()
    assert host.inspect().spots == ()


def test_two_hosts_of_one_process_do_not_know_each_other(host):
    with world() as other:
        first, second = make(host, "spots", "Room"), make(other, "spots", "Hall")
        assert first != second
        assert do(first, lambda room, _: type(room)).result(PATIENCE) is Room
        assert do(second, lambda room, _: type(room)).result(PATIENCE) is Hall

        async def asks_the_other(*_: Any) -> Any:
            return await second.request(Do(lambda room, _: room.spot_id))

        assert do(first, asks_the_other).result(PATIENCE) == "x"
        other.close()
        assert do(first, lambda *_: "works").result(PATIENCE) == "works"
    at_rest(host)


def test_a_forked_child_is_told_at_every_entry(host):
    make(host, "spots", "Room")
    calls = [
        lambda: host.spots.ref("x").send(Do(print)).submit(),
        lambda: host.spots.ref("x").request(Do(print)).result(),
        lambda: host.spots.create("Room", "y").submit(),
        lambda: host.spots.get_or_create("Room", "y").result(),
        lambda: host.spots.close("x").submit(),
        lambda: host.actors.create("Player", "ann").result(),
        host.inspect,
        host.close,
    ]
    for call in calls:
        child = os.fork()
        if child == 0:
            try:
                call()
            except InvalidOperation:
                os._exit(0)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, calls.index(call)
    assert do(host.spots.ref("x"), lambda *_: "works").result(PATIENCE) == "works"


def test_a_pool_that_is_closed_before_its_host_is_told_and_the_host_ends(caplog):
    host = Host(workers=1)
    host.spots.register(Room)
    host.start()
    host.spots.create("Room", "x").result(PATIENCE)
    host._pool().close(PATIENCE)
    with pytest.raises(ShuttingDown):
        host.spots.create("Room", "y").result(PATIENCE)
    assert host.spots.ids() == ["x"], "nothing is left of the other"
    host.close(PATIENCE)
    assert "is closed" in caplog.text
