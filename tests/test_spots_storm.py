"""Actors on the move under load: messages in order and once, the books agree, one turn at a time per gate."""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background
from support import PATIENCE, outcome, together
from worlds import Do, at_rest, do, members, world

from zlink_nogil import Actor, Completion, Host, NotFound, ShuttingDown, Spot, SpotWide, ZLinkError, task

MODES = ("Room", "Hall")


@pytest.fixture
def host() -> Iterator[Host]:
    with world() as host:
        yield host


def spot(host: Host, type_name: str, name: str) -> Any:
    return host.spots.create(type_name, name).result(PATIENCE)


def actor(host: Host, name: str, spot: str | None = None) -> Any:
    return host.actors.create("Player", name, spot=spot).result(PATIENCE)


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_messages_sent_during_moves_arrive_in_order_and_once(host, first, second):
    spot(host, first, "a")
    spot(host, second, "b")
    ann, over = actor(host, "ann"), threading.Event()

    def moves() -> int:
        for n in itertools.count():
            if over.is_set():
                return n
            host.actors.join("ann", "ab"[n % 2]).result(PATIENCE)
            if n % 3 == 0:
                host.actors.leave("ann").result(PATIENCE)
        raise AssertionError

    moving = Background(moves)

    def send(sender: int) -> None:
        for n in range(150):
            ann.send(Do(lambda actor, _, n=n: actor.log.append((sender, n)))).submit()
            if n % 20 == 0:
                do(ann, lambda *_: None).result(PATIENCE)

    assert together(*[lambda sender=sender: send(sender) for sender in range(3)]) == [None] * 3
    over.set()
    assert moving.result() > 0
    seen = [entry for entry in do(ann, lambda actor, _: list(actor.log)).result(PATIENCE) if isinstance(entry, tuple)]
    assert len(seen) == 450
    for sender in range(3):
        assert [n for who, n in seen if who == sender] == list(range(150))
    at_rest(host)


@pytest.mark.parametrize("modes", [("Room", "Room"), ("Room", "Hall"), ("Hall", "Hall")])
@pytest.mark.parametrize("way", ["await", "yield_"])
def test_two_actors_swap_spots_at_once_while_their_spots_ask_each_other(host, modes, way):
    """With turns kept the one that closes a circle is told, with them given back everybody goes on: nobody hangs."""
    if way == "yield_":
        modes = ("Hall", "Hall")
    spots = {name: spot(host, mode, name) for name, mode in zip("ab", modes, strict=True)}
    refs = {"ann": actor(host, "ann", "a"), "bob": actor(host, "bob", "b")}
    other = {"a": "b", "b": "a"}

    async def asks(room: Any, _: Any) -> Any:
        call = room.ask(spots[other[room.spot_id]], Do(lambda *_: "answer"))
        return await (call if way == "await" else call.yield_())

    def swaps(actor: Any, ctx: Any) -> Completion[None]:
        return actor.defer_join(other[ctx.spot_id])

    for _ in range(30):
        asked = [do(ref, asks, timeout=PATIENCE) for ref in spots.values()]
        moved = [do(ref, swaps, timeout=PATIENCE) for ref in refs.values()]
        for completion in moved:
            completion.result(PATIENCE).result(PATIENCE)
        ends = [outcome(completion) for completion in asked]
        assert "answer" in ends
        if way == "yield_":
            assert ends == ["answer"] * 2
    assert {name: host.actors.state(name).spot_id for name in refs} == {"ann": "a", "bob": "b"}
    assert (members(host, "a"), members(host, "b")) == ({"ann"}, {"bob"})
    at_rest(host)


class Histories:
    """Who was inside of which gate or owner at what time: sections between `enter` and `leave`, never two at once."""

    def __init__(self) -> None:
        self.inside: dict[str, list[str]] = defaultdict(list)
        self.overlaps: list[tuple[str, str, list[str]]] = []
        self.sections = 0
        self.lock = threading.Lock()

    def enter(self, gates: tuple[str, ...], who: str) -> None:
        with self.lock:
            self.sections += 1
            for gate in gates:
                if self.inside[gate]:
                    self.overlaps.append((gate, who, list(self.inside[gate])))
                self.inside[gate].append(who)

    def leave(self, gates: tuple[str, ...], who: str) -> None:
        with self.lock:
            for gate in gates:
                self.inside[gate].remove(who)


HISTORIES = Histories()


class StormRoom(Spot):
    def __init__(self) -> None:
        self.here: set[str] = set()
        self.refusals = random.Random(1)

    def _gates(self) -> tuple[str, ...]:
        return (f"spot {self.spot_id}",)

    def on_join(self, actor: Actor) -> None:
        HISTORIES.enter(self._gates(), "on_join")
        try:
            if self.refusals.random() < 0.15:
                raise PermissionError("not today")
            assert actor.actor_id not in self.here
            self.here.add(actor.actor_id)
        finally:
            HISTORIES.leave(self._gates(), "on_join")

    async def on_leave(self, actor: Actor) -> None:
        HISTORIES.enter(self._gates(), "on_leave")
        self.here.remove(actor.actor_id)
        HISTORIES.leave(self._gates(), "on_leave")

    async def on_work(self, message: int, ctx: Any) -> int:  # noqa: ARG002 - what a handler takes
        HISTORIES.enter(self._gates(), f"work {message}")
        HISTORIES.leave(self._gates(), f"work {message}")
        if message % 3 == 0:
            await task.sleep(0.0005)
        if message % 7 == 0:
            raise ValueError(message)
        return message


class StormHall(StormRoom, mode=SpotWide):
    def on_create(self) -> None:
        self.timers.every("tick", 0.002, self.tick)

    def tick(self) -> None:
        HISTORIES.enter(self._gates(), "tick")
        HISTORIES.leave(self._gates(), "tick")


class Wanderer(Actor):
    """Every message has a number; it remembers them, and may move, wait, yield or fail."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def _gates(self, wide: bool) -> tuple[str, ...]:
        own = (f"actor {self.actor_id}",)
        return (*own, f"spot {self.spot.id}") if wide and self.spot is not None else own

    async def on_step(self, message: tuple, ctx: Any) -> None:  # noqa: ARG002 - what a handler takes
        number, target, way = message
        wide = self.spot is not None and self.spot.id.startswith("hall")
        gates = self._gates(wide)
        HISTORIES.enter(gates, f"step {number}")
        self.numbers.append(number)
        HISTORIES.leave(gates, f"step {number}")
        if way == "defer":
            self.defer_join(target).add_done_callback(lambda completion: completion.exception())
        elif way == "defer and fail":
            self.defer_join(target)
            raise ValueError("no")
        elif way == "ask" and self.spot is not None:
            call = self.spots.request(target, number, timeout=0.2)
            await (call.yield_() if wide and number % 2 else call)
        elif way == "sleep":
            await task.sleep(0.0005)


def test_a_storm_of_thirty_actors_over_six_spots(caplog):
    HISTORIES.__init__()
    caplog.set_level("CRITICAL")
    names = [f"p{n}" for n in range(30)]
    places = [f"room{n}" for n in range(3)] + [f"hall{n}" for n in range(3)]
    with world(StormRoom, StormHall, Wanderer, lifecycle_message_capacity=4, application_message_capacity=8) as host:
        for place in places:
            host.spots.create("StormRoom" if place.startswith("room") else "StormHall", place).result(PATIENCE)
        refs = {name: host.actors.create("Wanderer", name).result(PATIENCE) for name in names}
        accepted: dict[tuple[str, int], list[int]] = defaultdict(list)

        def drive(seed: int) -> None:
            chance, calls = random.Random(seed), []
            for number in range(seed * 10_000, seed * 10_000 + 350):
                name, place = chance.choice(names), chance.choice(places)
                way = chance.choice(["defer", "defer", "defer and fail", "ask", "ask", "sleep", "join", "leave", "", ""])
                try:
                    if way == "join":
                        calls.append(host.actors.join(name, place, timeout=chance.choice([0.001, 0.01, 1])).submit())
                    elif way == "leave":
                        calls.append(host.actors.leave(name, timeout=1).submit())
                    else:
                        calls.append(refs[name].request((number, place, way), timeout=chance.choice([0.005, 1])).submit())
                        accepted[name, seed].append(number)
                    if chance.random() < 0.1:
                        calls[-1].cancel()
                except ZLinkError:  # no room
                    outcome(calls[-1]) if calls else None
            for call in calls:
                outcome(call)

        assert together(*[lambda seed=seed: drive(seed) for seed in range(1, 5)]) == [None] * 4
        entries = {entry.owner_id: entry for entry in host.spots.entries()}
        for place in places[3:]:
            entries[place].timers.cancel("tick")
        at_rest(host)

        assert HISTORIES.overlaps == []
        assert HISTORIES.sections > 300
        where = {name: host.actors.state(name).spot_id for name in names}
        for place in places:
            expected = {name for name in names if where[name] == place}
            assert members(host, place) == expected, place
            assert entries[place].owner.here == expected, f"the hooks of {place} tell the same"
            assert set(entries[place].executor._members) == expected, f"the executor of {place} does, too"
        for entry in host.actors.entries():
            assert (entry.spot.owner_id if entry.spot else None) == where[entry.owner_id]
            for seed in range(1, 5):
                mine = [number for number in entry.owner.numbers if number // 10_000 == seed]
                assert mine == sorted(set(mine)), "in order and once"
                assert set(mine) <= set(accepted[entry.owner_id, seed])
        for place in places:
            host.spots.close(place).result(PATIENCE)
        assert {host.actors.state(name).spot_id for name in names} == {None}
        at_rest(host)


@pytest.mark.parametrize("mode", MODES)
def test_spots_close_and_come_again_while_actors_move_among_them(mode, caplog):
    caplog.set_level("CRITICAL")
    names = [f"p{n}" for n in range(8)]
    with world() as host:
        for place in "abc":
            spot(host, mode, place)
        for name in names:
            actor(host, name)

        def moves(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(120):
                name = chance.choice(names)
                outcome(host.actors.join(name, chance.choice("abc"), timeout=chance.choice([0.002, 1])).submit())

        def closes() -> None:
            chance = random.Random(0)
            for _ in range(40):
                place = chance.choice("abc")
                outcome(host.spots.close(place, timeout=1).submit())
                host.spots.get_or_create(mode, place).result(PATIENCE)

        assert together(lambda: moves(1), lambda: moves(2), closes) == [None] * 3
        at_rest(host)
        for place in "abc":
            expected = {name for name in names if host.actors.state(name).spot_id == place}
            assert members(host, place) == expected
            entry = next(entry for entry in host.spots.entries() if entry.owner_id == place)
            assert all(actor.spot in (None, *host.spots.entries()) for actor in host.actors.entries()), "in a living one"
            assert set(entry.executor._members) == expected
        for name in names:
            assert do(host.actors.ref(name), lambda *_: "works").result(PATIENCE) == "works"


@pytest.mark.parametrize("kind_and_type", [("spots", "Room"), ("spots", "Hall"), ("actors", "Player")])
def test_messages_to_one_that_closes_and_comes_again_never_reach_a_closed_object(kind_and_type):
    kind, type_name = kind_and_type
    reached_closed: list[str] = []
    with world() as host:
        directory = getattr(host, kind)
        reached, over = threading.Event(), threading.Event()

        def body(owner: Any, _: Any) -> str:
            if "close" in owner.log:
                reached_closed.append("closed")
            reached.set()
            return "living"

        def send() -> None:
            while not over.is_set():
                try:
                    assert do(directory.ref("x"), body).result(PATIENCE) == "living"
                except (NotFound, ShuttingDown):
                    continue

        senders = [Background(send) for _ in range(8)]
        for _ in range(25):
            reached.clear()
            directory.get_or_create(type_name, "x").result(PATIENCE)
            assert reached.wait(PATIENCE)
            directory.close("x").result(PATIENCE)
        over.set()
        for sender in senders:
            sender.result()
        assert reached_closed == []
        assert len(directory) == 0
        at_rest(host)
