"""A host with Spots and Actors that do whatever a test tells them to: bodies of handlers are given with the message."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support import PATIENCE, eventually

from zlink_nogil import Actor, ActorRef, Completion, EntrySpot, Host, InstanceSpot, Spot, SpotRef, SpotWide, handler
from zlink_nogil.execution import ExecutionLanePolicy, QueueStateSnapshot

__all__ = ["Do", "Does", "Hall", "Player", "Room", "Solo", "Square", "at_rest", "do", "queues", "spot_state", "world"]

type Body = Callable[[Any, Any], Any]


@dataclass
class Do:
    """`body(owner, ctx)` is the handler's; it may be `async def`."""

    body: Body


class Does:
    @handler
    def do(self, message: Do, ctx: Any) -> Any:
        return message.body(self, ctx)


class Room(Does, Spot):
    """PerActor. It writes down what happens to it; `refuse` is raised by its `on_join`."""

    refuse: BaseException | None = None

    def __init__(self) -> None:
        self.log: list[str] = []

    def on_create(self) -> Any:
        self.log.append("create")

    def on_join(self, actor: Actor) -> Any:
        self.log.append(f"join {actor.actor_id}")
        if self.refuse is not None:
            raise self.refuse

    def on_leave(self, actor: Actor) -> Any:
        self.log.append(f"leave {actor.actor_id}")

    def on_close(self) -> Any:
        self.log.append("close")


class Hall(Room, mode=SpotWide):
    """The same, SpotWide."""


class Square(Does, EntrySpot):
    pass


class Solo(Does, InstanceSpot):
    pass


class Player(Does, Actor):
    def __init__(self) -> None:
        self.log: list[str] = []

    def on_create(self) -> Any:
        self.log.append("create")

    def on_join(self, spot: SpotRef) -> Any:
        self.log.append(f"join {spot.id}")

    def on_leave(self, spot: SpotRef) -> Any:
        self.log.append(f"leave {spot.id}")

    def on_close(self) -> Any:
        self.log.append("close")


@contextlib.contextmanager
def world(*more: type[Any], workers: int = 2, **policy: Any) -> Iterator[Host]:
    """A running host that knows the classes above and `more`, by their names; `policy` limits every queue."""
    host = Host(workers=workers, policy=ExecutionLanePolicy(**policy))
    for owner_class in (Room, Hall, Square, Solo, Player, *more):
        (host.actors if issubclass(owner_class, Actor) else host.spots).register(owner_class)
    with contextlib.ExitStack() as stack:
        stack.callback(host.close, 0.5)
        host.start()
        yield host


def do(ref: SpotRef | ActorRef, body: Body, **options: Any) -> Completion[Any]:
    return ref.request(Do(body), **options).submit()


def queues(host: Host) -> list[QueueStateSnapshot]:
    seen = host.inspect()
    return [queue for spot in seen.spots for queue in spot.queues] + [actor.queue for actor in seen.actors]


def alarms(host: Host) -> int:
    return host._pool().statistics().timers


def at_rest(host: Host, timers: int = 0) -> None:
    """Nothing waits, runs or is reserved, and no alarm is left but those of `timers` timers."""

    def rests() -> bool:
        idle = all(
            (q.waiting, q.reserved_items, q.reserved_bytes, q.holder, q.suspended) == (0, 0, 0, None, ())
            for q in queues(host)
        )
        return idle and alarms(host) == timers

    eventually(rests, f"rest: {alarms(host)} alarms, {[q for q in queues(host) if q.reserved_items]}")


def spot_state(host: Host, spot_id: str) -> Any:
    """The Spot's row of `inspect`."""
    return next((spot for spot in host.inspect().spots if spot.spot_id == spot_id), None)


def members(host: Host, spot_id: str) -> set[str]:
    seen = spot_state(host, spot_id)
    return set(seen.members) if seen is not None else set()


def as_json(host: Host) -> dict[str, Any]:
    return dataclasses.asdict(host.inspect())


def log_of(ref: SpotRef | ActorRef) -> list[str]:
    """What the owner has written down so far, asked on its own turn."""
    return list(do(ref, lambda owner, _: owner.log).result(PATIENCE))
