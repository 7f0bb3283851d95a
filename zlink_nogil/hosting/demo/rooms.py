"""A world of rooms and members that ticks, in one process, and checks its own books at the end.

Every tick of a room has one of its members take a step: it pays a coin into the room's purse, now and then greets another
room and gives its own room's turn back meanwhile, now and then moves to another room. No lock anywhere.

The books are taken without stopping the world's threads: 1. every room stops its timer, so nobody is asked to step any more;
2. every member reports, behind its last step and its last move; 3. every room reports, behind its last payment.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.execution import Call, SpotWide
from zlink_nogil.hosting.demo.report import World
from zlink_nogil.hosting.host import Host
from zlink_nogil.spots import Actor, MessageContext, Spot, handler

__all__ = ["audit", "run_world"]

COINS: Final = 1000
TICKS_A_SECOND: Final = 20
EVERY: Final = 10
"""One step in so many greets another room."""
MOVE_EVERY: Final = 20
IN_FLIGHT: Final = 256


@dataclass(frozen=True, slots=True)
class Step:
    greet: str | None
    move: str | None


@dataclass(frozen=True, slots=True)
class Pay:
    coins: int


@dataclass(frozen=True, slots=True)
class Greet:
    who: str


@dataclass(frozen=True, slots=True)
class Start:
    others: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Report:
    pass


@dataclass(frozen=True, slots=True)
class RoomReport:
    members: tuple[str, ...]
    total: int
    purse: int
    joins: int
    handled: int
    late: list[float] = field(repr=False)
    missed: int


@dataclass(frozen=True, slots=True)
class MemberReport:
    spot: str | None
    coins: int
    moves: int
    steps: int
    greeted: int
    refused: int


class Room(Spot, mode=SpotWide):
    """`total` is what its members own, kept up to date by joining, leaving and paying."""

    def __init__(self) -> None:
        self.total = self.purse = self.joins = self.handled = self.missed = 0
        self.late: list[float] = []

    def on_join(self, actor: Actor) -> None:
        assert isinstance(actor, Member)
        self.total += actor.coins
        self.joins += 1

    def on_leave(self, actor: Actor) -> None:
        assert isinstance(actor, Member)
        self.total -= actor.coins

    @handler
    def start(self, message: Start, ctx: MessageContext) -> bool:  # noqa: ARG002
        self.others, self.random = message.others, random.Random(message.seed)
        self.timers.every("tick", 1 / TICKS_A_SECOND, self.tick)
        return True

    def tick(self) -> None:
        self.late.append(self.timers.statistics()["tick"].late_seconds)
        if not self.members:
            return
        chosen = self.members[self.random.choice(tuple(self.members))]
        greet = self.random.choice(self.others) if self.random.randrange(EVERY) == 0 else None
        move = self.random.choice(self.others) if self.random.randrange(MOVE_EVERY) == 0 else None
        chosen.send(Step(greet, move)).submit()

    @handler
    def paid(self, message: Pay, ctx: MessageContext) -> None:  # noqa: ARG002
        self.handled += 1
        self.purse += message.coins
        self.total -= message.coins

    @handler
    def greeted(self, message: Greet, ctx: MessageContext) -> int:  # noqa: ARG002
        self.handled += 1
        return len(self.members)

    @handler
    def stop(self, message: Stop, ctx: MessageContext) -> bool:  # noqa: ARG002
        self.missed = self.timers.statistics()["tick"].missed
        self.timers.cancel("tick")
        return True

    @handler
    def report(self, message: Report, ctx: MessageContext) -> RoomReport:  # noqa: ARG002
        return RoomReport(tuple(self.members), self.total, self.purse, self.joins, self.handled, self.late, self.missed)


class Member(Actor):
    def __init__(self) -> None:
        self.coins = COINS
        self.moves = self.steps = self.greetings = self.refused = 0

    def on_join(self, spot: Any) -> None:  # noqa: ARG002
        self.moves += 1

    @handler
    async def step(self, message: Step, ctx: MessageContext) -> None:
        self.steps += 1
        if message.greet is not None:
            call: Call[int] = self.ask(self.spots.ref(message.greet), Greet(self.actor_id), reply=int)
            await call.yield_()
            self.greetings += 1
        try:
            self.spots.send(str(ctx.spot_id), Pay(1)).submit()
            self.coins -= 1
        except CapacityExceeded:  # the room is busy: it gets nothing this time
            self.refused += 1
        if message.move is not None:
            self.defer_join(message.move)

    @handler
    def report(self, message: Report, ctx: MessageContext) -> MemberReport:  # noqa: ARG002
        here = None if self.spot is None else self.spot.id
        return MemberReport(here, self.coins, self.moves, self.steps, self.greetings, self.refused)


def run_world(rooms: int, members: int, seconds: float, workers: int, console: Console) -> World:
    """Make the world, let it tick for `seconds`, audit it. Raises what a creation or a report raises."""
    host = Host(workers=workers, gc_freeze=True, gc_threshold=100_000)
    host.spots.register(Room, type_name="room")
    host.actors.register(Member, type_name="member")
    room_ids = tuple(f"room-{number}" for number in range(rooms))
    member_ids = tuple(f"member-{number}" for number in range(members))
    with host:
        console.print(f"making {rooms} rooms and {members} members")
        _all(host.spots.create("room", room_id, timeout=60) for room_id in room_ids)
        _all(
            host.actors.create("member", member_id, spot=room_ids[number % rooms], timeout=60)
            for number, member_id in enumerate(member_ids)
        )
        console.print(f"ticking for {seconds:g} s")
        begin = time.perf_counter()
        _all(
            host.spots.request(room_id, Start(tuple(other for other in room_ids if other != room_id), number), timeout=60)
            for number, room_id in enumerate(room_ids)
        )
        time.sleep(seconds)
        _all(host.spots.request(room_id, Stop(), timeout=60) for room_id in room_ids)
        member_reports = _all(host.actors.request(member_id, Report(), timeout=60) for member_id in member_ids)
        took = time.perf_counter() - begin
        room_reports = _all(host.spots.request(room_id, Report(), timeout=60) for room_id in room_ids)
        registered = [host.actors.state(member_id).spot_id for member_id in member_ids]
    by_room = dict(zip(room_ids, room_reports, strict=True))
    by_member = dict(zip(member_ids, member_reports, strict=True))
    wrong = list(audit(by_room, by_member, registered))
    return _outcome(by_room, by_member, workers, took, wrong)


def _all(calls: Iterable[Call[Any]]) -> list[Any]:
    """The results, in order, with so many in flight."""
    results: list[Any] = []
    submitted: list[Any] = []
    for call in calls:
        submitted.append(call.submit())
        if len(submitted) - len(results) >= IN_FLIGHT:
            results.append(submitted[len(results)].result())
    results += [completion.result() for completion in submitted[len(results) :]]
    return results


def audit(rooms: dict[str, RoomReport], members: dict[str, MemberReport], registered: list[str | None]) -> Iterable[str]:
    """What does not add up."""
    homes = Counter(member for report in rooms.values() for member in report.members)
    for member, report, spot in zip(members, members.values(), registered, strict=True):
        if homes[member] != 1:
            yield f"{member} is in {homes[member]} rooms"
        if report.spot != spot or spot is None or member not in rooms[spot].members:
            yield f"{member} believes to be in {report.spot}, the registration says {spot}"
    strangers = homes.keys() - members.keys()
    if strangers:
        yield f"nobody knows {sorted(strangers)}"
    for room, room_report in rooms.items():
        own = sum(members[member].coins for member in room_report.members if member in members)
        if own != room_report.total:
            yield f"the members of {room} own {own}, it counts {room_report.total}"
    coins = sum(report.coins for report in members.values()) + sum(report.purse for report in rooms.values())
    if coins != len(members) * COINS:
        yield f"there are {coins} coins, there were {len(members) * COINS}"
    joins, moves = sum(report.joins for report in rooms.values()), sum(report.moves for report in members.values())
    if joins != moves:
        yield f"the rooms count {joins} joins, the members {moves}"


def _outcome(
    rooms: dict[str, RoomReport], members: dict[str, MemberReport], workers: int, took: float, wrong: list[str]
) -> World:
    late = sorted(seconds for report in rooms.values() for seconds in report.late) or [0.0]
    steps = sum(report.steps for report in members.values())
    messages = steps + sum(report.handled for report in rooms.values())
    return World(
        rooms=len(rooms),
        members=len(members),
        workers=workers,
        seconds=took,
        ticks=sum(len(report.late) for report in rooms.values()),
        ticks_missed=sum(report.missed for report in rooms.values()),
        tick_late_p50_ms=late[len(late) // 2] * 1000,
        tick_late_p99_ms=late[min(len(late) - 1, len(late) * 99 // 100)] * 1000,
        messages=messages,
        messages_per_second=messages / took,
        moves=sum(report.moves for report in members.values()) - len(members),
        yields=sum(report.greeted for report in members.values()),
        refused=sum(report.refused for report in members.values()),
        books_balance=not wrong,
        gil_enabled=getattr(sys, "_is_gil_enabled", lambda: True)(),
        wrong=wrong,
    )
