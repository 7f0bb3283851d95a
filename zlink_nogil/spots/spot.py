"""`Spot`: a room, as users write it (design 3.5, 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from zlink_nogil.execution import Entry as EntryMode
from zlink_nogil.execution import Instance, PerActor, SpotMode, SpotWide
from zlink_nogil.spots.owner import Owner
from zlink_nogil.spots.refs import ActorRef, SpotRef
from zlink_nogil.spots.timers import SpotTimers

if TYPE_CHECKING:
    from zlink_nogil.spots.actor import Actor

__all__ = ["EntrySpot", "InstanceSpot", "Spot"]


class Spot(Owner):
    """Base class: `class Room(Spot, mode=SpotWide)`; `PerActor` is the default.

    `SpotWide`: one handler at a time for the Spot, its timers and its members. `PerActor`: the Spot, each member and each
    timer one at a time, side by side.
    """

    mode: ClassVar[SpotMode] = PerActor
    spot_id: str
    ref: SpotRef
    timers: SpotTimers
    members: Mapping[str, ActorRef]
    """Who is here; changes on the Spot's own turns only, `on_join` and `on_leave`."""

    def __init_subclass__(cls, *, mode: SpotMode | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if mode is None:
            return
        if mode not in (PerActor, SpotWide) or cls.mode not in (PerActor, SpotWide):
            raise TypeError(f"a Spot's mode is PerActor or SpotWide; an Entry or Instance Spot has its own; not {mode!r}")
        cls.mode = mode

    def on_join(self, actor: Actor) -> Any:
        """Hook, on the lifecycle lane: `actor` is about to be a member; what this raises refuses it.

        No handler of the Actor runs meanwhile, so it may be looked at and changed; afterwards it must be left alone.
        """

    def on_leave(self, actor: Actor) -> Any:
        """Hook, on the lifecycle lane: `actor` is no member any more. As in `on_join`, it may be looked at meanwhile."""


class EntrySpot(Spot):
    """Base class of the Spots where Actors come in: wired as `PerActor`, nothing to yield."""

    mode = EntryMode


class InstanceSpot(Spot):
    """Base class of Spots without Actors: one gate for everything."""

    mode = Instance
