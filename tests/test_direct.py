"""Spots and Actors of a mesh: one per id, found, made and called wherever they are."""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from background import Gate
from children import COMMAND, Child
from support import PATIENCE, eventually, new_place, together

from zlink_nogil import (
    Actor,
    AlreadyExists,
    DeadlineExceeded,
    Host,
    InternalFailure,
    NotFound,
    ShuttingDown,
    Spot,
    TypeMismatch,
    Unavailable,
    handler,
)
from zlink_nogil.messaging import MemoryLocationStore, keeper
from zlink_nogil.messaging.wire import Address, NotHere, OwnerKind


@dataclass
class Add:
    amount: int


@dataclass
class Where:
    pass


@dataclass
class Fail:
    pass


@dataclass
class PassOn:
    """The handler fails with what another node told it."""

    amount: int


class Sum:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @handler
    def add(self, message: Add, ctx: Any) -> list[int]:  # noqa: ARG002
        self.seen.append(message.amount)
        return self.seen

    @handler
    def where(self, message: Where, ctx: Any) -> str:  # noqa: ARG002
        return self.spots.elsewhere._node.me.node

    @handler
    def pass_on(self, message: PassOn, ctx: Any) -> int:  # noqa: ARG002
        self.seen.append(message.amount)
        raise NotHere(Address(OwnerKind.SPOT, "other"))

    @handler
    async def fail(self, message: Fail, ctx: Any) -> int:  # noqa: ARG002
        raise ValueError("no")


class Room(Sum, Spot):
    pass


class Hall(Sum, Spot):
    pass


class Player(Sum, Actor):
    pass


class World:
    """Nodes of one mesh; the first keeps the locations."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.hosts: dict[str, Host] = {}
        self._places: list[str] = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def node(self, name: str, *, on_demand: bool = False, at: str | None = None, **options: Any) -> Host:
        host = Host(workers=2, **options)
        place = at or new_place()
        host.mesh(
            "world", bind=place, peers=[known for known in self._places if known != place], node_id=name, locations="a"
        )
        host.spots.register(Room, on_demand="room/" if on_demand else None)
        host.spots.register(Hall)
        host.actors.register(Player, on_demand="player/" if on_demand else None)
        host.start()
        self._stack.callback(host.close)
        host.wait_ready(PATIENCE)
        eventually(lambda: all(knows(other, name) for other in self.hosts.values()), f"everybody knows {name}")
        self.hosts[name] = host
        self._places.append(place)
        return host


def knows(host: Host, name: str) -> bool:
    (mesh,) = host.meshes
    try:
        return name in mesh.nodes()
    except ShuttingDown:  # it is over
        return True


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def test_a_spot_is_found_from_every_node_and_answers_typed(world: World):
    a, b, c = (world.node(name) for name in "abc")
    b.spots.create("Room", "r").result(PATIENCE)
    for host in (a, b, c):
        assert host.spots.request("r", Where(), reply=str).result(PATIENCE) == "b"
    assert c.spots.request("r", Add(1), reply=list[int]).result(PATIENCE) == [1]
    assert a.spots.request("r", Add(2)).result(PATIENCE) == [1, 2]


def test_what_a_handler_raises_and_what_it_lacks_comes_back(world: World):
    a, b = (world.node(name) for name in "ab")
    b.spots.create("Room", "r").result(PATIENCE)
    with pytest.raises(InternalFailure, match="ValueError: no"):
        a.spots.request("r", Fail()).result(PATIENCE)
    with pytest.raises(NotFound, match="has no handler for 'int'"):
        a.spots.request("r", 3).result(PATIENCE)
    with pytest.raises(NotFound, match="there is no spot 'nobody'"):
        a.spots.request("nobody", Add(1)).result(PATIENCE)
    with pytest.raises(NotFound, match="there is no actor 'nobody'"):
        b.actors.send("nobody", Add(1)).result(PATIENCE)


def test_a_request_whose_handler_was_told_that_somebody_is_not_there_is_not_sent_again(world: World):
    a, b = (world.node(name) for name in "ab")
    b.spots.create("Room", "r").result(PATIENCE)
    with pytest.raises(NotFound, match="spot 'other' is not here") as told:
        a.spots.request("r", PassOn(1)).result(PATIENCE)
    assert not isinstance(told.value, NotHere)
    a.spots.send("r", PassOn(2)).result(PATIENCE)
    assert a.spots.request("r", Add(3)).result(PATIENCE) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["spots", "actors"])
def test_two_nodes_that_create_one_id_get_one_object(world: World, kind):
    hosts = [world.node(name) for name in "abc"]
    type_name = {"spots": "Room", "actors": "Player"}[kind]

    def create(host: Host, owner_id: str) -> Any:
        return getattr(host, kind).create(type_name, owner_id).result(PATIENCE)

    for owner_id in map(str, range(10)):
        outcomes = together(*(functools.partial(create, host, owner_id) for host in hosts))
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 2, outcomes
        places = {getattr(host, kind).request(owner_id, Where(), reply=str).result(PATIENCE) for host in hosts}
        assert len(places) == 1
        assert sum(owner_id in getattr(host, kind) for host in hosts) == 1


def test_get_or_create_takes_what_is_elsewhere_and_minds_its_type(world: World):
    a, b = (world.node(name) for name in "ab")
    b.spots.create("Room", "r").result(PATIENCE)
    ref = a.spots.get_or_create("Room", "r").result(PATIENCE)
    assert ref.request(Where(), reply=str).result(PATIENCE) == "b"
    assert "r" not in a.spots
    with pytest.raises(TypeMismatch, match="is a 'Room', not a 'Hall'"):
        a.spots.get_or_create("Hall", "r").result(PATIENCE)


def test_spots_on_demand_are_made_where_their_type_says_so_by_weight(world: World):
    a = world.node("a")
    b, c = (world.node(name, on_demand=True) for name in "bc")
    places = [a.spots.request(f"room/{index}", Where(), reply=str).result(PATIENCE) for index in range(8)]
    assert places.count("b") == places.count("c") == 4
    assert len(b.spots) == len(c.spots) == 4
    assert a.actors.request("player/1", Add(1), reply=list[int]).result(PATIENCE) == [1]
    with pytest.raises(NotFound):
        a.spots.request("hall/1", Add(1)).result(PATIENCE)


def test_many_callers_of_a_spot_that_is_not_there_yet_make_one_and_keep_their_order(world: World):
    hosts = [world.node("a"), world.node("b", on_demand=True), world.node("c", on_demand=True)]
    calls = [host.spots.send("room/x", Add(index)) for index in range(50) for host in hosts]
    completions = [call.submit() for call in calls]
    for completion in completions:
        completion.result(PATIENCE)
    total: list[int] = []

    def all_there() -> bool:
        total[:] = hosts[0].spots.request("room/x", Add(-1), reply=list[int]).result(PATIENCE)
        return sum(amount >= 0 for amount in total) == 150

    eventually(all_there, "every message")
    assert sum("room/x" in host.spots for host in hosts) == 1


def test_a_closed_spot_is_found_again_where_it_is_made_next(world: World):
    a, b, c = (world.node(name) for name in "abc")
    b.spots.create("Room", "r").result(PATIENCE)
    assert a.spots.request("r", Where(), reply=str).result(PATIENCE) == "b"
    b.spots.close("r").result(PATIENCE)
    c.spots.create("Room", "r").result(PATIENCE)
    assert a.spots.request("r", Where(), reply=str).result(PATIENCE) == "c"  # the old route is stale
    c.spots.close("r").result(PATIENCE)
    with pytest.raises(NotFound):
        a.spots.request("r", Where(), reply=str).result(PATIENCE)


def test_nothing_is_left_pending(world: World):
    a, b = world.node("a"), world.node("b", on_demand=True)
    for index in range(20):
        a.spots.request(f"room/{index}", Add(1)).result(PATIENCE)
        b.spots.close(f"room/{index}").result(PATIENCE)
    for host in (a, b):
        (mesh,) = host.meshes
        eventually(lambda mesh=mesh: mesh.statistics()["pending"] == 0)
        assert mesh.direct._lines == {}
    assert len(a.meshes[0]._membership.store) == 0


def test_locations_are_kept_in_the_store_that_was_given_empty_as_it_is():
    store = MemoryLocationStore()
    host = Host(workers=1)
    host.mesh("world", node_id="a", locations="a", location_store=store)
    host.spots.register(Room)
    with host:
        host.spots.create("Room", "r").result(PATIENCE)
        assert list(store._locations) == [Address(OwnerKind.SPOT, "r")]


def test_a_draining_node_gives_its_spots_up_and_calls_find_the_next_within_their_deadline(world: World):
    a = world.node("a")
    b = world.node("b", on_demand=True)
    assert a.spots.request("room/x", Where(), reply=str).result(PATIENCE) == "b"
    world.node("c", on_demand=True)
    (drained,) = together(b.drain)
    assert drained is None
    assert a.spots.request("room/x", Where(), reply=str).result(PATIENCE) == "c"


def test_a_refused_call_does_not_end_with_the_node_that_refused_it(world: World):
    gate = Gate()

    class Slow(Room):
        def on_close(self) -> None:
            gate()

    a = world.node("a")
    b = Host(workers=2)
    place = new_place()
    b.mesh("world", bind=place, node_id="b", peers=world._places, locations="a")
    b.spots.register(Slow, type_name="Room", on_demand="room/")
    with b:
        b.wait_ready(PATIENCE)
        assert a.spots.request("room/x", Add(1), reply=list[int]).result(PATIENCE) == [1]
        closing = b.spots.close("room/x").submit()
        gate.wait_begun()
        operation = a.spots.request("room/x", Add(2), reply=list[int], timeout=PATIENCE).submit()
        eventually(lambda: operation.refusals > 0, "that b has refused it")
        (mesh,) = a.meshes
        mesh._running().operations.peer_lost(mesh.peer("b").data_alias)
        assert not operation.done()
        gate.open()
        closing.result(PATIENCE)
        assert operation.result(PATIENCE) == [2]  # made again, and asked


def test_a_send_to_a_stale_place_is_not_repeated_there(world: World):
    a, b, c = (world.node(name) for name in "abc")
    b.spots.create("Room", "r").result(PATIENCE)
    a.spots.request("r", Add(1)).result(PATIENCE)
    b.spots.close("r").result(PATIENCE)
    c.spots.create("Room", "r").result(PATIENCE)
    a.spots.send("r", Add(2)).result(PATIENCE)  # to b, which has it no more and says so
    (mesh,) = b.meshes
    eventually(lambda: mesh.statistics()["refused"] == 1)
    (asker,) = a.meshes
    eventually(lambda: not asker.direct._routes, "the stale route's end")
    a.spots.send("r", Add(3)).result(PATIENCE)
    eventually(lambda: {2, 3} & set(c.spots.request("r", Add(0), reply=list[int]).result(PATIENCE)) == {3})


def test_a_keeper_that_begins_again_is_told_what_there_is(world: World):
    place = new_place()
    a, b = world.node("a", at=place), world.node("b")
    b.spots.create("Room", "r").result(PATIENCE)
    a.close()
    with pytest.raises((Unavailable, DeadlineExceeded)):
        b.spots.create("Room", "while it is away", timeout=0.2).result(PATIENCE)
    assert b.spots.request("r", Where(), reply=str).result(PATIENCE) == "b"  # what is here needs no keeper
    a = world.node("a", at=place)
    eventually(lambda: len(a.meshes[0]._membership.store) == 1, "the announcement")
    assert a.spots.request("r", Where(), reply=str).result(PATIENCE) == "b"
    assert "while it is away" not in b.spots


def test_of_two_owners_of_one_id_the_keeper_keeps_the_first(world: World, caplog: pytest.LogCaptureFixture):
    a, b = world.node("a"), world.node("b")
    (mesh,) = a.meshes
    b.spots.create("Room", "r").result(PATIENCE)
    address = next(iter(mesh._membership.store._locations))
    mesh._membership.store.release(address, mesh._membership.store.find(address))  # as if it had lost its memory
    a.spots.create("Room", "r").result(PATIENCE)
    with caplog.at_level(logging.ERROR, "zlink_nogil.messaging"):
        b.meshes[0].direct._holdings._keeper_peer = None
        b.meshes[0]._running().topology.lane.run(b.meshes[0].direct.look_for_keeper)
        eventually(lambda: "r" not in b.spots, "the end of the second")
    assert "is at another node, too" in caplog.text
    assert b.spots.request("r", Where(), reply=str).result(PATIENCE) == "a"


NODE = """
import os
from dataclasses import dataclass
from typing import Any
from zlink_nogil import Host, Spot, handler

@dataclass
class Where:
    pass

class Room(Spot):
    @handler
    def where(self, message: Where, ctx: Any) -> str:
        return os.environ["TEST_NODE"]

host = Host(workers=2)
host.mesh("world", node_id=os.environ["TEST_NODE"], peers=os.environ["TEST_PEERS"].split(), locations="a")
host.spots.register(Room, on_demand="room/")
"""


def served(folder: Any, node: str, *peers: str) -> Child:
    (folder / "room_node.py").write_text(NODE)
    return Child(COMMAND, "serve", "room_node:host", cwd=folder, TEST_NODE=node, TEST_PEERS=" ".join(peers))


def test_what_a_killed_process_had_is_made_again_elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper, "AWAY", 0.2)
    host = Host(workers=2)
    mesh = host.mesh("world", node_id="a", locations="a")
    with host, served(tmp_path, "b", mesh.endpoint) as first, served(tmp_path, "c", mesh.endpoint):
        eventually(lambda: mesh.nodes() == ["b", "c"], "both processes")
        places = {f"room/{n}": host.spots.request(f"room/{n}", Where(), reply=str).result(PATIENCE) for n in range(4)}
        assert sorted(places.values()) == ["b", "b", "c", "c"]
        first.signal(signal.SIGKILL)
        eventually(lambda: mesh.nodes() == ["c"], "the loss of the killed one")
        found = {room: host.spots.request(room, Where(), reply=str).result(PATIENCE) for room in places}
        assert set(found.values()) == {"c"}
