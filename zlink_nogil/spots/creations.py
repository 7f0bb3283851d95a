"""`Creations`: how the entries of a directory come into being - by a call, or by the first message to an id.

Guarantees
    The entry's activation is its first work: it is in the queue before anybody sees the entry. Where ids are shared with
    other nodes, the activation begins by claiming the id there. A failed creation leaves nothing.

Ownership
    on `_lane`     `_entries` (a single look needs no turn), every entry's `state`, `_closed`
    `_types`       before the start; replaced, never changed
    `elsewhere`    set by the host before the start
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InvalidOperation,
    NotConfigured,
    ShuttingDown,
    TypeMismatch,
)
from zlink_nogil.execution import Call
from zlink_nogil.execution.call import REQUEST_TIMEOUT, checked_timeout
from zlink_nogil.scheduler import Completion, Wait, WorkerPool
from zlink_nogil.scheduler.spawning import Sleep, spawn
from zlink_nogil.scheduler.waiting import end_of, first_of
from zlink_nogil.scheduler.waiting import timeout as within
from zlink_nogil.spots.elsewhere import Elsewhere, TakenElsewhere
from zlink_nogil.spots.entry import Entry, EntryState
from zlink_nogil.spots.handlers import OwnerType
from zlink_nogil.spots.names import check_id
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Creations"]


@dataclass(frozen=True, slots=True)
class _Creation[E: Entry]:
    owner_type: OwnerType
    owner_id: str
    only_new: bool
    timeout: float
    make: Callable[[OwnerType, str], E]


class Creations[E: Entry](ABC):
    elsewhere: Elsewhere | None = None

    def __init__(self, kind: str, pool: Callable[[], WorkerPool]) -> None:
        self.kind = kind
        self.pool = pool
        self._lane = StateLane(f"{kind} directory")
        self._types: Mapping[str, OwnerType] = {}
        self._entries: dict[str, E] = {}
        self._started = False
        self._closed = False

    def _creation(
        self, type_name: str, owner_id: str, only_new: bool, timeout: float | None, make: Callable[[OwnerType, str], E]
    ) -> Call[Any]:
        owner_type = self._types.get(check_id("a type name", type_name))
        if owner_type is None:
            raise NotConfigured(f"there is no {self.kind} type {type_name!r}")
        check_id(f"a {self.kind} id", owner_id)
        wanted = _Creation(owner_type, owner_id, only_new, checked_timeout(timeout, REQUEST_TIMEOUT), make)
        return Call(functools.partial(self._create, wanted))

    def _create(self, wanted: _Creation[E], how: Wait | None) -> Completion[Any]:
        entry, mine, ending = self._lane.run(self._claim, wanted)
        if mine:
            self._begin(entry, wanted)
            return entry.opened
        if entry.opened.done() and entry.state is EntryState.OPEN:
            return entry.opened
        if how is not None and entry.executor.is_current():
            raise InvalidOperation(
                f"{how.value} on a turn of {entry.label} would wait for itself: for its creation, or its successor's"
            )
        after = self._end_then_create(entry, wanted) if ending else self._join(entry, wanted)
        return spawn(after, pool=self.pool())

    def _claim(self, wanted: _Creation[E]) -> tuple[E, bool, bool]:
        """Whose the id is, whether that is ours to begin, and whether it is on its way out already."""
        debug_assert_on_lane(self._lane)
        self._check_open()
        owner_type, owner_id = wanted.owner_type, wanted.owner_id
        entry = _sync.look_up(self._entries, owner_id)
        if entry is None:
            entry = _sync.read_by_many(wanted.make(owner_type, owner_id))
            entry.activation = entry.executor.execute_lifecycle(functools.partial(self._activate, entry))
            self._entries[owner_id] = entry
            return entry, True, False
        if entry.state is EntryState.CREATING or entry.state is EntryState.OPEN:
            if wanted.only_new:
                raise AlreadyExists(f"there is a {self.kind} {owner_id!r} already")
            if entry.owner_type is not owner_type:
                raise TypeMismatch(f"{entry.label} is a {entry.owner_type.type_name!r}, not a {owner_type.type_name!r}")
            return entry, False, False
        return entry, False, True

    def _check_open(self) -> None:
        if not self._started:
            raise InvalidOperation("the host has not been started")
        if self._closed:
            raise ShuttingDown("the host is shutting down")

    def _begin(self, entry: E, wanted: _Creation[E]) -> None:
        opening = self._open(entry, wanted)
        try:
            spawn(opening, pool=self.pool())
        except BaseException:  # the pool is closed: nothing is left of it
            opening.close()
            self._lane.run(self._give_up, entry)
            self._lane.run(self._remove, entry)
            raise

    def on_demand(self, owner_id: str) -> E | None:
        """The entry of an id that is made when it is first spoken to, made now; None when no type here says so."""
        able = [
            known for known in self._types.values() if known.on_demand is not None and owner_id.startswith(known.on_demand)
        ]
        if not able:
            return None
        owner_type = max(able, key=lambda known: len(known.on_demand or ""))
        wanted = _Creation(owner_type, owner_id, False, REQUEST_TIMEOUT, self._first_made)
        entry, mine, _ = self._lane.run(self._claim, wanted)
        if mine:
            self._begin(entry, wanted)
        return entry

    @abstractmethod
    def _first_made(self, owner_type: OwnerType, owner_id: str) -> E:
        """An entry nobody gave options for."""

    async def _join(self, entry: E, wanted: _Creation[E]) -> Any:
        """In a task: the outcome of a creation by somebody else. The deadline and cancellation are this caller's own."""
        await within(wanted.timeout, end_of(entry.opened))
        if entry.opened.cancelled():
            raise ShuttingDown("the creation was cancelled")
        return entry.opened.outcome()

    async def _end_then_create(self, entry: E, wanted: _Creation[E]) -> Any:
        """In a task, as `_join`: when the present one has ended."""
        deadline = _sync.monotonic() + wanted.timeout
        await within(wanted.timeout, end_of(entry.ended))
        return await within(max(0.0, deadline - _sync.monotonic()), self._create(wanted, None))

    async def _open(self, entry: E, wanted: _Creation[E]) -> None:
        """In a task, once per entry."""
        activation = entry.activation
        assert activation is not None, "an entry is activated before anybody sees it"
        try:
            over = await first_of(activation, entry.given_up, alarm := Sleep(wanted.timeout))
            if over is alarm:
                raise DeadlineExceeded(f"not done within {wanted.timeout} s")
            if over is entry.given_up:
                raise Cancelled
            error = activation.exception()
            if isinstance(error, Cancelled):
                error = ShuttingDown("the creation was cancelled")
        except BaseException as raised:
            error = raised
        if not self._lane.run(self._give_up, entry):
            entry.begin()
            entry.opened.succeed(entry.ref)
            return
        assert error is not None, "an activation without an error opens it"
        if not activation.done():  # who waits is told now: it may take its time to end
            self._tell(entry, wanted, error)
            activation.cancel()
            await end_of(activation)
        entry.abandon()
        if self.elsewhere is not None and not isinstance(error, TakenElsewhere):
            self.elsewhere.release(self.kind, entry.owner_id)
        self._lane.run(self._remove, entry)
        self._tell(entry, wanted, error)
        entry.ended.succeed(None)

    def _tell(self, entry: E, wanted: _Creation[E], error: BaseException) -> None:
        """Whoever only wanted to have one has it, wherever it is."""
        if not isinstance(error, TakenElsewhere) or wanted.only_new:
            entry.opened.fail(error)
        elif error.type_name != wanted.owner_type.type_name:
            entry.opened.fail(TypeMismatch(f"{entry.label} is a {error.type_name!r}, not a {wanted.owner_type.type_name!r}"))
        else:
            entry.opened.succeed(entry.ref)

    async def _activate(self, entry: E) -> None:
        """On the owner's first turn: at its end it is decided whether there is one."""
        try:
            if self.elsewhere is not None:
                await self.elsewhere.claim(self.kind, entry.owner_id, entry.owner_type.type_name)
            await entry.activate()
            self._lane.run(entry.move, EntryState.OPEN)  # raises when it was given up
        except BaseException as error:
            entry.failure = error
            await entry.deactivate()
            raise

    def _give_up(self, entry: E) -> bool:
        """False when the creation is over, and well."""
        debug_assert_on_lane(self._lane)
        if entry.state is not EntryState.CREATING:
            return False
        entry.move(EntryState.CLOSING)
        return True

    def _remove(self, entry: E) -> None:
        debug_assert_on_lane(self._lane)
        entry.move(EntryState.CLOSED)
        del self._entries[entry.owner_id]
