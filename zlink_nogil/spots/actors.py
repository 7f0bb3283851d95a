"""`Actors`: the Actors of one host."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, DeadlineExceeded, ShuttingDown
from zlink_nogil.execution import ActorSerialExecutor, Call, ExecutionLanePolicy
from zlink_nogil.execution.call import REQUEST_TIMEOUT, checked_timeout
from zlink_nogil.scheduler import Completion, Wait, WorkerPool
from zlink_nogil.scheduler.waiting import end_of
from zlink_nogil.scheduler.waiting import timeout as within
from zlink_nogil.spots.actor import Actor
from zlink_nogil.spots.deadline import TimedTurn
from zlink_nogil.spots.directory import Directory
from zlink_nogil.spots.entry import Entry, EntryState, call_hook
from zlink_nogil.spots.handlers import OwnerType
from zlink_nogil.spots.message import Message
from zlink_nogil.spots.moves import let_go, move
from zlink_nogil.spots.refs import ActorRef, SpotRef, spot_id_of
from zlink_nogil.spots.snapshot import ActorInspection, ActorStateSnapshot
from zlink_nogil.state import debug_assert_on_lane

if TYPE_CHECKING:
    from zlink_nogil.spots.spots import SpotEntry, Spots

__all__ = ["ActorEntry", "Actors"]

_log = logging.getLogger("zlink_nogil.spots")


class ActorEntry(Entry):
    """`spot` and `registration` are replaced together, by `publish`."""

    executor: ActorSerialExecutor
    registration: ActorStateSnapshot

    def __init__(self, directory: Actors, first_spot: str | None, owner_type: OwnerType, actor_id: str) -> None:
        pool = directory.pool()
        super().__init__(f"actor {actor_id!r}", actor_id, owner_type, ActorRef(directory, actor_id), pool)
        self._directory = directory
        self._first_spot = first_spot
        self.executor = ActorSerialExecutor(actor_id, policy=directory.policy, pool=pool)
        self.spot: SpotEntry | None = None
        self.registration = ActorStateSnapshot(actor_id, owner_type.type_name, None, {})

    def bind(self, owner: Actor) -> None:
        owner.actor_id, owner.ref, owner._entry = self.owner_id, self.ref, self
        owner.spots, owner.actors = self._directory.spots, self._directory

    async def activate(self) -> None:
        await super().activate()
        if self._first_spot is not None:
            await self.move_to(self._first_spot)

    async def deactivate(self) -> None:
        await move(self, None)
        await super().deactivate()

    def begin(self) -> None:
        """An Actor does nothing by itself."""

    def submit(self, message: Message) -> Completion[Any]:
        return self.executor.execute_actor(message, message.payload_bytes)

    def publish(self, spot: SpotEntry | None) -> None:
        """The Actor is a member of `spot` from now on."""
        self._directory.publish(self, spot)

    def defer_move(self, spot_id: str | None) -> Completion[None]:
        completion = self.executor.defer(functools.partial(self.move_to, spot_id))
        completion.add_waker(self._log_failure)
        return completion

    def _log_failure(self, completion: Any) -> None:
        error = completion.exception()
        if error is not None and not isinstance(error, Cancelled):
            _log.warning("%s stays where it is: %s", self.label, error)

    async def move_to(self, spot_id: str | None) -> None:
        """On the Actor's turn."""
        await move(self, None if spot_id is None else self._directory.spots.entry(spot_id))

    async def end(self, timeout: float) -> None:
        try:
            await self.executor.end(timeout, self._finish)
        finally:
            let_go(self)  # if something of it still runs

    async def _finish(self) -> None:
        await move(self, None)
        await call_hook(self.owner.on_close)

    def abandon(self) -> None:
        self.executor.expire()

    def inspect(self) -> ActorInspection:
        return ActorInspection(self.registration, self.state.name.lower(), self.executor.snapshot())


class Actors(Directory[ActorEntry]):
    """`host.actors`. Thread-safe."""

    owner_class = Actor
    spots: Spots
    """The same host's Spots; set by the host."""

    def __init__(self, pool: Callable[[], WorkerPool], policy: ExecutionLanePolicy) -> None:
        super().__init__("actor", pool)
        self.policy = policy

    def ref(self, actor_id: str) -> ActorRef:
        """A name for the Actor of that id, whether there is one or not."""
        return ActorRef(self, actor_id)

    def create(
        self, type_name: str, actor_id: str, *, spot: SpotRef | str | None = None, timeout: float | None = None
    ) -> Call[ActorRef]:
        """A new Actor, as `Spots.create`. With `spot` it is made a member; a refused join is a failed creation then."""
        return self._creation(type_name, actor_id, True, timeout, self._maker(spot))

    def get_or_create(
        self, type_name: str, actor_id: str, *, spot: SpotRef | str | None = None, timeout: float | None = None
    ) -> Call[ActorRef]:
        """The Actor of that id wherever it is, made now (as a member of `spot`) if there is none."""
        return self._creation(type_name, actor_id, False, timeout, self._maker(spot))

    def _maker(self, spot: SpotRef | str | None) -> Callable[[OwnerType, str], ActorEntry]:
        return functools.partial(ActorEntry, self, None if spot is None else spot_id_of(spot))

    def _first_made(self, owner_type: OwnerType, owner_id: str) -> ActorEntry:
        return ActorEntry(self, None, owner_type, owner_id)

    # -- membership and registration ----------------------------------------------------------------------------------

    def join(self, actor_id: str, spot: SpotRef | str, *, timeout: float | None = None) -> Call[None]:
        """Make the Actor a member of `spot`, and of no other, ahead of its waiting messages.

        `NotFound` when either is not there; what the Spot's `on_join` raises; the Actor stays where it is then. After
        `DeadlineExceeded` too, but for one that the Spot let in at that very moment: `state` tells.
        """
        return Call(functools.partial(self._move, actor_id, spot_id_of(spot), checked_timeout(timeout, REQUEST_TIMEOUT)))

    def leave(self, actor_id: str, *, timeout: float | None = None) -> Call[None]:
        """Make the Actor a member of no Spot."""
        return Call(functools.partial(self._move, actor_id, None, checked_timeout(timeout, REQUEST_TIMEOUT)))

    def _move(self, actor_id: str, spot_id: str | None, timeout: float, how: Wait | None) -> Completion[None]:
        entry = self.entry(actor_id)
        if how is not None:
            entry.executor.check_wait(None, how)
        turn = TimedTurn(functools.partial(entry.move_to, spot_id), timeout)
        try:
            return entry.executor.execute_lifecycle(turn)
        except BaseException:
            turn.forget()
            raise

    def update(self, actor_id: str, attributes: Mapping[str, str]) -> None:
        """Replace what the registration says about the Actor. A handler that runs keeps the registration it began with."""
        self._lane.run(self._update, self.entry(actor_id), dict(attributes))

    def _update(self, entry: ActorEntry, attributes: Mapping[str, str]) -> None:
        debug_assert_on_lane(self._lane)
        entry.registration = replace(entry.registration, attributes=attributes)

    def state(self, actor_id: str) -> ActorStateSnapshot:
        """The registration of this moment; `NotFound`."""
        return self.entry(actor_id).registration

    def publish(self, entry: ActorEntry, spot: SpotEntry | None) -> None:
        """By a move."""
        self._lane.run(self._publish, entry, spot)

    def _publish(self, entry: ActorEntry, spot: SpotEntry | None) -> None:
        debug_assert_on_lane(self._lane)
        entry.spot = spot
        entry.registration = replace(entry.registration, spot_id=None if spot is None else spot.owner_id)

    async def leave_all(self, spot: SpotEntry, timeout: float) -> None:
        """By a Spot that closes: see its members off, as far as they let go within `timeout` seconds."""
        deadline = _sync.monotonic() + timeout
        while spot.members and (left := deadline - _sync.monotonic()) > 0:
            leaving = [self._see_off(actor_id, spot) for actor_id in list(spot.members)]
            try:
                await within(left, _all_over(leaving))
            except DeadlineExceeded:
                return

    def _see_off(self, actor_id: str, spot: SpotEntry) -> Completion[Any]:
        entry = _sync.look_up(self._entries, actor_id)
        if entry is None:
            spot.members.pop(actor_id, None)
            return spot.accepted
        try:
            return entry.executor.send_away(functools.partial(_leave_if_there, entry, spot))
        except ShuttingDown:  # it closes: that is a way of leaving, too
            return entry.ended

    def inspect(self) -> list[ActorInspection]:
        """Every Actor, each at a moment of its own."""
        return [entry.inspect() for entry in self.entries() if entry.state is not EntryState.CLOSED]


async def _all_over(completions: list[Completion[Any]]) -> None:
    for completion in completions:
        await end_of(completion)


async def _leave_if_there(entry: ActorEntry, spot: SpotEntry) -> None:
    if entry.spot is spot:
        await move(entry, None)
    else:  # on its way out, or gone
        spot.members.pop(entry.owner_id, None)
