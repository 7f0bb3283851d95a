"""What one message may know of the registries, read once (seed 000 section 7; design 3.6).

A registration is one immutable object. Whoever changes it makes the next one and publishes it in a turn of the directory's
lane; whoever handles a message takes the one that is there when the handler begins, and carries it along. So no two values
of one message are of different times, and reading takes no turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zlink_nogil.execution import QueueStateSnapshot

__all__ = ["ActorInspection", "ActorStateSnapshot", "SpotInspection", "TimerStatistics"]


@dataclass(frozen=True, slots=True)
class ActorStateSnapshot:
    """An Actor's registration. `spot_id` is the Spot it is a member of; `attributes` what `Actors.update` says about it."""

    actor_id: str
    type_name: str
    spot_id: str | None
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """`late_seconds`: by how much the latest tick began after it was due."""

    ticks: int
    missed: int
    late_seconds: float


@dataclass(frozen=True, slots=True)
class ActorInspection:
    """An Actor, as `Host.inspect` tells it."""

    registration: ActorStateSnapshot
    state: str
    queue: QueueStateSnapshot


@dataclass(frozen=True, slots=True)
class SpotInspection:
    """A Spot, as `Host.inspect` tells it. `queues` begins with the Spot's own; its members' are with the Actors."""

    spot_id: str
    type_name: str
    mode: str
    state: str
    members: tuple[str, ...]
    queues: tuple[QueueStateSnapshot, ...]
    timers: Mapping[str, TimerStatistics]
