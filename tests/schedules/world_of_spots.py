"""A host's Spots and Actors without a host, and what is known about their objects: for scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil.errors import ZLinkError
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.spots import Actor, Actors, Spot, Spots

from .harness import Scenario

MODULES = [
    "zlink_nogil.spots.creations",
    "zlink_nogil.spots.directory",
    "zlink_nogil.spots.entry",
    "zlink_nogil.spots.spots",
    "zlink_nogil.spots.actors",
    "zlink_nogil.spots.moves",
]


class World:
    """Every object is watched: one lives per id, one turn at a time, nothing before its first turn or after its last."""

    def __init__(self, s: Scenario, workers: int = 1) -> None:
        self.s = s
        pool = self.pool = WorkerPool(workers)
        self.spots = Spots(lambda: pool, ExecutionLanePolicy(), ExecutionLanePolicy())
        self.actors = Actors(lambda: pool, ExecutionLanePolicy())
        self.spots.actors, self.actors.spots = self.actors, self.spots
        self.living: dict[str, Any] = {}
        self.born: list[str] = []
        self.inside: dict[str, set[int]] = {}
        self.outcomes: list[tuple[str, Any]] = []
        self.one_gate = False
        """Do members share their Spot's turns?"""
        self.hold: Completion[None] = Completion(pool)
        """What a Spot that is told to hold its turn waits for."""

    def start(self) -> None:
        self.spots.start()
        self.actors.start()

    def birth(self, owner_id: str, owner: object) -> None:
        self.s.expect(owner_id not in self.living, f"one {owner_id} at a time")
        self.living[owner_id] = owner
        self.born.append(owner_id)

    def death(self, owner_id: str, owner: object) -> None:
        self.s.expect(self.living.get(owner_id) is owner, f"{owner_id} dies once")
        del self.living[owner_id]

    def alive(self, owner_id: str, owner: object) -> None:
        self.s.expect(self.living.get(owner_id) is owner, f"a message to {owner_id} meets a living one")

    def turn(self, gate: str) -> Any:
        return self.s.alone(self.inside.setdefault(gate, set()), f"one turn of {gate} at a time")

    def attempt(self, name: str, begin: Callable[[], Any]) -> None:
        """`begin()` makes a call; what becomes of it is noted under `name`."""
        try:
            outcome = begin().result()
        except (ZLinkError, ValueError) as error:
            outcome = type(error).__name__
        self.outcomes.append((name, outcome))

    def outcome(self, name: str) -> list[Any]:
        return [outcome for known, outcome in self.outcomes if known == name]

    def homes(self) -> dict[str, list[str]]:
        """Each Actor's Spots, as those count their members."""
        return {
            actor_id: [spot.owner_id for spot in self.spots.entries() if actor_id in spot.members]
            for actor_id in self.actors.ids()
        }

    def registered(self) -> dict[str, list[str]]:
        """The same, as the registrations say."""
        spots = {actor_id: self.actors.state(actor_id).spot_id for actor_id in self.actors.ids()}
        return {actor_id: [] if spot is None else [spot] for actor_id, spot in spots.items()}

    def at_rest(self) -> bool:
        snapshots = [queue for spot in self.spots.inspect() for queue in spot.queues]
        snapshots += [actor.queue for actor in self.actors.inspect()]
        return all((snapshot.reserved_items, snapshot.reserved_bytes) == (0, 0) for snapshot in snapshots)


class WatchedSpot(Spot):
    world: World

    def on_create(self) -> None:
        self.world.birth(self.spot_id, self)

    async def on_str(self, message: str, ctx: Any) -> str:  # noqa: ARG002
        with self.world.turn(self.spot_id):
            self.world.alive(self.spot_id, self)
        if message == "hold":
            await self.world.hold
        return message

    def on_close(self) -> None:
        with self.world.turn(self.spot_id):
            self.world.death(self.spot_id, self)


class WatchedActor(Actor):
    world: World

    def on_create(self) -> None:
        self.said: list[str] = []
        self.world.birth(self.actor_id, self)

    async def on_str(self, message: str, ctx: Any) -> str | None:
        gate = f"{ctx.spot_id}" if self.world.one_gate and ctx.spot_id else f"{self.actor_id} alone"
        with self.world.turn(self.actor_id), self.world.turn(gate):
            self.world.alive(self.actor_id, self)
            self.said.append(message)
            word, _, where = message.partition(" ")
            if word == "go":
                self.defer_join(where)
            if word == "fail":
                self.defer_join(where)
                raise ValueError(message)
        if message == "hold":
            await self.world.hold
        return str(ctx.spot_id)

    def on_close(self) -> None:
        self.world.death(self.actor_id, self)
