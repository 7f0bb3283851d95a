"""`Spots`: the Spots of one host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.execution import Call, ExecutionLanePolicy, SpotSerialExecutor
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.spots.directory import Directory
from zlink_nogil.spots.entry import Entry, EntryState
from zlink_nogil.spots.handlers import OwnerType
from zlink_nogil.spots.message import Message
from zlink_nogil.spots.refs import ActorRef, SpotRef
from zlink_nogil.spots.snapshot import SpotInspection
from zlink_nogil.spots.spot import Spot
from zlink_nogil.spots.timers import SpotTimers

if TYPE_CHECKING:
    from zlink_nogil.spots.actors import Actors

__all__ = ["SpotEntry", "Spots"]


class SpotEntry(Entry):
    """`members` is changed on the Spot's turns."""

    executor: SpotSerialExecutor

    def __init__(self, directory: Spots, owner_type: OwnerType, spot_id: str) -> None:
        pool = directory.pool()
        super().__init__(f"spot {spot_id!r}", spot_id, owner_type, SpotRef(directory, spot_id), pool)
        self._directory = directory
        mode = owner_type.owner_class.mode
        self.executor = SpotSerialExecutor(
            spot_id, mode, policy=directory.policy, actor_policy=directory.actor_policy, pool=pool
        )
        self.timers = SpotTimers(self.executor, pool)
        self.members: dict[str, ActorRef] = {}

    def bind(self, owner: Spot) -> None:
        owner.spot_id, owner.ref, owner.timers, owner.members = self.owner_id, self.ref, self.timers, self.members
        owner.spots, owner.actors = self._directory, self._directory.actors
        for name, seconds, method in self.owner_type.timers:
            self.timers.every(name, seconds, getattr(owner, method))

    def begin(self) -> None:
        self.timers.begin()

    def submit(self, message: Message) -> Completion[Any]:
        return self.executor.execute_spot(message, message.payload_bytes)

    async def end(self, timeout: float) -> None:
        deadline = _sync.monotonic() + timeout
        self.timers.stop()
        await self._directory.actors.leave_all(self, timeout)
        await self.executor.end(max(0.1, deadline - _sync.monotonic()), self.owner.on_close)

    def abandon(self) -> None:
        self.timers.stop()
        self.executor.expire()

    def inspect(self) -> SpotInspection:
        return SpotInspection(
            self.owner_id,
            self.owner_type.type_name,
            repr(self.executor.mode),
            self.state.name.lower(),
            tuple(self.members.copy()),
            tuple(self.executor.snapshots()),
            self.timers.statistics(),
        )


class Spots(Directory[SpotEntry]):
    """`host.spots`. Thread-safe."""

    owner_class = Spot
    has_timers = True
    actors: Actors
    """The same host's Actors; set by the host."""

    def __init__(
        self, pool: Callable[[], WorkerPool], policy: ExecutionLanePolicy, actor_policy: ExecutionLanePolicy
    ) -> None:
        super().__init__("spot", pool)
        self.policy = policy
        self.actor_policy = actor_policy

    def ref(self, spot_id: str) -> SpotRef:
        """A name for the Spot of that id, whether there is one or not."""
        return SpotRef(self, spot_id)

    def create(self, type_name: str, spot_id: str, *, timeout: float | None = None) -> Call[SpotRef]:
        """A new Spot: `AlreadyExists` if there is one of that id; `NotConfigured` for a type nobody registered.

        Complete when `on_create` is over; what it raises leaves nothing. `timeout` in seconds (default 5).
        """
        return self._creation(type_name, spot_id, True, timeout, functools.partial(SpotEntry, self))

    def get_or_create(self, type_name: str, spot_id: str, *, timeout: float | None = None) -> Call[SpotRef]:
        """The Spot of that id, made now if there is none: one, whoever asks. `TypeMismatch` if it is of another type."""
        return self._creation(type_name, spot_id, False, timeout, functools.partial(SpotEntry, self))

    def _first_made(self, owner_type: OwnerType, owner_id: str) -> SpotEntry:
        return SpotEntry(self, owner_type, owner_id)

    def inspect(self) -> list[SpotInspection]:
        """Every Spot, each at a moment of its own."""
        return [entry.inspect() for entry in self.entries() if entry.state is not EntryState.CLOSED]
