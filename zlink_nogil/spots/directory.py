"""`Directory`: the Spots, or the Actors, of one host by id.

Guarantees
    There is one entry per id at a time, whoever creates it from however many threads. A failed creation leaves nothing.
    A message goes to the entry that is there when it is accepted, or fails; never to one that is closed. While one closes,
    a creation of the same id waits for its end.

Ownership
    on `_lane`     `_entries` (a single look needs no turn), every entry's `state`, `_closed`
    `_types`       before the start; replaced, never changed
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InvalidOperation,
    NotConfigured,
    NotFound,
    ShuttingDown,
    TypeMismatch,
)
from zlink_nogil.execution import Call
from zlink_nogil.execution.call import REQUEST_TIMEOUT, checked_timeout
from zlink_nogil.scheduler import Completion, Wait, WorkerPool
from zlink_nogil.scheduler.spawning import spawn
from zlink_nogil.scheduler.waiting import end_of
from zlink_nogil.scheduler.waiting import timeout as within
from zlink_nogil.spots.annotations import message_name
from zlink_nogil.spots.entry import Entry, EntryState
from zlink_nogil.spots.handlers import OwnerType, read_class
from zlink_nogil.spots.message import NO_METADATA, Message, Request, checked_metadata
from zlink_nogil.spots.names import check_id
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["CLOSE_TIMEOUT", "Directory"]

CLOSE_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Creation[E: Entry]:
    owner_type: OwnerType
    owner_id: str
    only_new: bool
    timeout: float
    make: Callable[[OwnerType, str], E]


class Directory[E: Entry]:
    """Thread-safe. `kind` ("spot") appears in errors; `pool()` is asked for when the first entry is made."""

    owner_class: type[Any]
    has_timers = False

    def __init__(self, kind: str, pool: Callable[[], WorkerPool]) -> None:
        self.kind = kind
        self.pool = pool
        self._lane = StateLane(f"{kind} directory")
        self._types: Mapping[str, OwnerType] = {}
        self._entries: dict[str, E] = {}
        self._started = False
        self._closed = False

    # -- before the start -------------------------------------------------------------------------------------------

    def register(
        self, owner_class: type[Any], *, type_name: str | None = None, factory: Callable[[], Any] | None = None
    ) -> None:
        """Make `owner_class` known as `type_name` (default: its name), before the host starts.

        `factory()` makes an object (default: the class without arguments), on the object's own first turn. `TypeError` for
        what is no such class or has a handler that is none, `AlreadyExists` for a second one of that name.
        """
        if not (isinstance(owner_class, type) and issubclass(owner_class, self.owner_class)):
            raise TypeError(f"a {self.kind} is a subclass of {self.owner_class.__name__}, not {owner_class!r}")
        name = check_id("a type name", owner_class.__name__ if type_name is None else type_name)
        owner_type = read_class(name, owner_class, factory)
        if owner_type.timers and not self.has_timers:
            raise TypeError(
                f"{owner_class.__qualname__} has a timer {owner_type.timers[0][0]!r}, but a {self.kind} has none"
            )
        self._lane.run(self._register, owner_type)

    def _register(self, owner_type: OwnerType) -> None:
        debug_assert_on_lane(self._lane)
        if self._started:
            raise InvalidOperation("types are registered before the host starts")
        if owner_type.type_name in self._types:
            raise AlreadyExists(f"there is a {self.kind} type {owner_type.type_name!r} already")
        self._types = {**self._types, owner_type.type_name: owner_type}

    def start(self) -> None:
        """By the host."""
        self._started = True

    # -- creating ---------------------------------------------------------------------------------------------------

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
        entry, mine = self._lane.run(self._claim, wanted)
        if mine:
            opening = self._open(entry, wanted.timeout)
            try:
                entry.opening = spawn(opening, pool=self.pool())
            except BaseException:  # the pool is closed: nothing is left of it
                opening.close()
                self._lane.run(self._give_up, entry)
                self._lane.run(self._remove, entry)
                raise
            return entry.opened
        if entry.opened.done() and entry.state is EntryState.OPEN:
            return entry.opened
        if how is not None and entry.executor.is_current():
            raise InvalidOperation(
                f"{how.value} on a turn of {entry.label} would wait for itself: for its creation, or its successor's"
            )
        return spawn(self._create_after(entry, wanted), pool=self.pool())

    def _claim(self, wanted: _Creation[E]) -> tuple[E, bool]:
        debug_assert_on_lane(self._lane)
        self._check_open()
        owner_type, owner_id = wanted.owner_type, wanted.owner_id
        entry = self._entries.get(owner_id)
        if entry is None:
            entry = self._entries[owner_id] = _sync.read_by_many(wanted.make(owner_type, owner_id))
            return entry, True
        if entry.state is EntryState.CREATING or entry.state is EntryState.OPEN:
            if wanted.only_new:
                raise AlreadyExists(f"there is a {self.kind} {owner_id!r} already")
            if entry.owner_type is not owner_type:
                raise TypeMismatch(f"{entry.label} is a {entry.owner_type.type_name!r}, not a {owner_type.type_name!r}")
        return entry, False

    def _check_open(self) -> None:
        if not self._started:
            raise InvalidOperation("the host has not been started")
        if self._closed:
            raise ShuttingDown("the host is shutting down")

    async def _create_after(self, entry: E, wanted: _Creation[E]) -> Any:
        """In a task: when the present one has opened, or ended. Its deadline and cancellation are this caller's own."""
        deadline = _sync.monotonic() + wanted.timeout
        if entry.state is EntryState.CREATING or entry.state is EntryState.OPEN:
            await within(wanted.timeout, end_of(entry.opened))
            if entry.opened.cancelled():
                raise ShuttingDown("the creation was cancelled")
            return entry.opened.outcome()
        await within(wanted.timeout, end_of(entry.ended))
        return await within(max(0.0, deadline - _sync.monotonic()), self._create(wanted, None))

    async def _open(self, entry: E, timeout: float) -> None:
        """In a task, once per entry."""
        activation: Completion[None] | None = None
        try:
            activation = entry.executor.execute_lifecycle(functools.partial(self._activate, entry))
            await within(timeout, end_of(activation))
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
        entry.opened.fail(error)
        if activation is not None:
            activation.cancel()
            await end_of(activation)
        entry.abandon()
        self._lane.run(self._remove, entry)
        entry.ended.succeed(None)

    async def _activate(self, entry: E) -> None:
        """On the owner's first turn: at its end it is decided whether there is one."""
        try:
            await entry.activate()
            self._lane.run(entry.move, EntryState.OPEN)  # raises when it was given up
        except BaseException:
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

    # -- messages ---------------------------------------------------------------------------------------------------

    def send(
        self,
        owner_id: str,
        message: Any,
        *,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[None]:
        """A one-way message, complete when it was accepted. Options as in `request`."""
        name = name or message_name(type(message) if declared is None else declared)
        return Call(functools.partial(self._start, owner_id, name, message, checked_metadata(metadata), None))

    def request[R](
        self,
        owner_id: str,
        message: Any,
        *,
        reply: type[R] | Any = Any,  # noqa: ARG002 - for the reader and the type checker: values are handed over as they are
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[R]:
        """A message whose handler's return value comes back.

        `reply` is the value's type; `timeout` in seconds (default 5) until the answer is here; `metadata` str to bytes;
        `declared` the type that names the message (default: the message's class), `name` its name. Errors of the call:
        `NotFound` (no such id, no such handler), `CapacityExceeded`, `DeadlineExceeded`, `ShuttingDown`, `InvalidOperation`
        where the caller's turn would wait for itself, and whatever the handler raises.
        """
        name = name or message_name(type(message) if declared is None else declared)
        seconds = checked_timeout(timeout, REQUEST_TIMEOUT)
        return Call(functools.partial(self._start, owner_id, name, message, checked_metadata(metadata), seconds))

    def _start(
        self,
        owner_id: str,
        name: str,
        value: Any,
        metadata: Mapping[str, bytes],
        timeout: float | None,
        how: Wait | None,
    ) -> Completion[Any]:
        while True:
            entry = self._entries.get(owner_id) or self.entry(owner_id)
            handling = entry.owner_type.handlers.get(name)
            if handling is None:
                raise NotFound(f"{entry.label}, a {entry.owner_type.type_name!r}, has no handler for {name!r}")
            if timeout is None:
                message = Message(entry, handling, value, metadata)
            else:
                if how is not None:
                    entry.executor.check_wait(None, how)
                message = Request(entry, handling, value, metadata, timeout)
            try:
                return entry.submit(message)
            except ShuttingDown:
                message.forget()
                if self._entries.get(owner_id) in (entry, None):
                    raise
            except BaseException:
                message.forget()
                raise

    def entry(self, owner_id: str) -> E:
        """`NotFound` when there is none; `InvalidOperation` before the start, `ShuttingDown` after the end."""
        entry = self._entries.get(owner_id)
        if entry is None:
            self._check_open()
            raise NotFound(f"there is no {self.kind} {owner_id!r}")
        return entry

    # -- closing ----------------------------------------------------------------------------------------------------

    def close(self, owner_id: str, *, timeout: float = CLOSE_TIMEOUT) -> Call[None]:
        """Refuse new messages, finish accepted ones within `timeout` seconds, run `on_close`, forget the id.

        Of several closes all wait for the one end. `NotFound` when there is none.
        """
        return Call(functools.partial(self._close, owner_id, checked_timeout(timeout, CLOSE_TIMEOUT)))

    def _close(self, owner_id: str, timeout: float, how: Wait | None) -> Completion[None]:
        entry = self.entry(owner_id)
        if how is not None and entry.executor.is_current():
            raise InvalidOperation(f"{how.value} on a turn of {entry.label} would wait for itself: it is its own end")
        if self._lane.run(self._begin_close, entry):
            spawn(self._end(entry, timeout), pool=self.pool())
        return entry.ended

    def _begin_close(self, entry: E) -> bool:
        debug_assert_on_lane(self._lane)
        if entry.state is EntryState.CREATING:
            raise InvalidOperation(f"{entry.label} is being created and cannot be closed yet")
        if entry.state is not EntryState.OPEN:
            return False
        entry.move(EntryState.CLOSING)
        return True

    async def _end(self, entry: E, timeout: float) -> None:
        """In a task, once per entry."""
        error: BaseException | None = None
        try:
            await entry.end(timeout)
        except BaseException as raised:
            error = raised
        self._lane.run(self._remove, entry)
        if error is None:
            entry.ended.succeed(None)
        else:
            entry.ended.fail(error)

    async def end_all(self, timeout: float) -> list[BaseException]:
        """By the host, in a task, after `refuse_creations`: close everything; returns what went wrong.

        A creation has `timeout` seconds, a close three times that: for what was accepted, for what had to be interrupted,
        and for `on_close`.
        """
        deadline = _sync.monotonic() + timeout
        entries = list(self._entries.values())
        for entry in sorted(entries, key=lambda entry: entry.state is EntryState.CREATING):
            if not await _over(entry.opened, deadline):
                entry.opened.cancel()
                await end_of(entry.opened)
            if self._lane.run(self._begin_close, entry):
                spawn(self._end(entry, timeout), pool=self.pool())
        errors: list[BaseException] = []
        for entry in entries:
            if not await _over(entry.ended, deadline + 3 * timeout):
                errors.append(DeadlineExceeded(f"{entry.label} has not ended"))
            elif (error := entry.ended.exception()) is not None:
                errors.append(error)
        return errors

    def refuse_creations(self) -> None:
        """By the host."""
        self._lane.run(self._refuse_creations)

    def _refuse_creations(self) -> None:
        debug_assert_on_lane(self._lane)
        self._closed = True

    # -- asking -----------------------------------------------------------------------------------------------------

    def __contains__(self, owner_id: object) -> bool:
        return owner_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> list[str]:
        """The ids of this moment, those that are being created or closed among them."""
        return list(self._entries)

    def entries(self) -> list[E]:
        return list(self._entries.values())


async def _over(completion: Completion[Any], deadline: float) -> bool:
    """Wait until it has ended, or the time has come."""
    if not completion.done():
        try:
            await within(max(0.0, deadline - _sync.monotonic()), end_of(completion))
        except DeadlineExceeded:
            return False
    return True
