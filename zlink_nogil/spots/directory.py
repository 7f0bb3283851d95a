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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.dependencies import Container
from zlink_nogil.dependencies.filters import Filter, Filters
from zlink_nogil.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidOperation,
    NotFound,
    ShuttingDown,
)
from zlink_nogil.execution import Call
from zlink_nogil.execution.call import REQUEST_TIMEOUT, SEND_TIMEOUT, checked_timeout
from zlink_nogil.scheduler import Completion, Wait
from zlink_nogil.scheduler.spawning import spawn
from zlink_nogil.scheduler.waiting import end_of
from zlink_nogil.scheduler.waiting import timeout as within
from zlink_nogil.spots.annotations import message_name
from zlink_nogil.spots.creations import Creations
from zlink_nogil.spots.elsewhere import Asked
from zlink_nogil.spots.entry import Entry, EntryState
from zlink_nogil.spots.handlers import OwnerType, read_class
from zlink_nogil.spots.message import NO_METADATA, Message, Request, checked_metadata
from zlink_nogil.spots.names import check_id
from zlink_nogil.state import debug_assert_on_lane

__all__ = ["CLOSE_TIMEOUT", "Directory"]

CLOSE_TIMEOUT: Final = 5.0


class Directory[E: Entry](Creations[E]):
    """Thread-safe. `kind` ("spot") appears in errors; `pool()` is asked for when the first entry is made."""

    owner_class: type[Any]
    has_timers = False

    # -- before the start -------------------------------------------------------------------------------------------

    def register(
        self,
        owner_class: type[Any],
        *,
        type_name: str | None = None,
        factory: Callable[..., Any] | None = None,
        on_demand: str | None = None,
    ) -> None:
        """Make `owner_class` known as `type_name` (default: its name), before the host starts.

        With `on_demand`, ids that begin with it are made when they are first spoken to, at one of the nodes that registered
        the same (the longest beginning decides). Otherwise somebody creates them.
        `factory` makes an object (default: the class), on the object's own first turn; its parameters come by type from
        `host.container`, in a scope of the object's own, cleaned up after `on_close`. `TypeError` for
        what is no such class or has a handler that is none, `AlreadyExists` for a second one of that name.
        """
        if not (isinstance(owner_class, type) and issubclass(owner_class, self.owner_class)):
            raise TypeError(f"a {self.kind} is a subclass of {self.owner_class.__name__}, not {owner_class!r}")
        name = check_id("a type name", owner_class.__name__ if type_name is None else type_name)
        owner_type = read_class(name, owner_class, factory, on_demand)
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

    def beginnings(self) -> list[str]:
        """Of the ids that are made on demand here."""
        return [known.on_demand for known in self._types.values() if known.on_demand is not None]

    def plan(self, container: Container, filters: Sequence[Filter]) -> None:
        """By the host, before the start: how each type's objects are made, and the filters around its handlers.

        `NotConfigured` for what cannot be made.
        """
        around = Filters(container, filters)
        self._types = {name: known.planned(container, around) for name, known in self._types.items()}

    def start(self) -> None:
        """By the host."""
        self._started = True

    # -- messages ---------------------------------------------------------------------------------------------------

    def send(
        self,
        owner_id: str,
        message: Any,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[None]:
        """A one-way message, complete when it was accepted: by the owner's queue here, or by the socket to its node.

        `timeout` in seconds (default 1) for finding another node and for its socket. Options as in `request`.
        """
        timeout = checked_timeout(timeout, SEND_TIMEOUT)
        return self._call(owner_id, message, False, None, timeout, metadata, declared, name)

    def request[R](
        self,
        owner_id: str,
        message: Any,
        *,
        reply: type[R] | Any = Any,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[R]:
        """A message whose handler's return value comes back.

        `reply` is the value's type (within a process the value is handed over as it is); `timeout` in seconds (default 5)
        until the answer is here; `metadata` str to bytes; `declared` the type that names and encodes the message (default:
        the message's class), `name` its name. Errors of the call: `NotFound` (no such id, no such handler),
        `CapacityExceeded`, `DeadlineExceeded`, `ShuttingDown`, `InvalidOperation` where the caller's turn would wait for
        itself, and whatever the handler raises; from another node also `Unavailable`, and `InternalFailure` with type and
        text for what the handler raises.
        """
        timeout = checked_timeout(timeout, REQUEST_TIMEOUT)
        return self._call(owner_id, message, True, reply, timeout, metadata, declared, name)

    def _call(
        self,
        owner_id: str,
        value: Any,
        is_request: bool,
        reply: Any,
        timeout: float,
        metadata: Mapping[str, bytes],
        declared: Any,
        name: str | None,
    ) -> Call[Any]:
        declared = type(value) if declared is None else declared
        name = name or message_name(declared)
        metadata = checked_metadata(metadata)
        asked = Asked(owner_id, name, value, declared, is_request, reply, metadata, timeout)
        return Call(functools.partial(self._start, asked))

    def _start(self, asked: Asked, how: Wait | None) -> Completion[Any]:
        owner_id = asked.owner_id
        while True:
            entry = _sync.look_up(self._entries, owner_id) or self._found(owner_id)
            if entry is None:
                assert self.elsewhere is not None, "what is nowhere else is made here or refused"
                return self.elsewhere.start(self.kind, asked, how)
            handling = _sync.look_up(entry.owner_type.handlers, asked.name) or entry.handling(asked.name)
            if not asked.is_request:
                message = Message(entry, handling, asked.value, asked.metadata)
            else:
                if how is not None:
                    entry.executor.check_wait(None, how)
                message = Request(entry, handling, asked.value, asked.metadata, asked.timeout)
            try:
                return entry.submit(message)
            except ShuttingDown:
                message.forget()
                if _sync.look_up(self._entries, owner_id) is entry or self._closed:
                    raise
            except BaseException:
                message.forget()
                raise

    def _found(self, owner_id: str) -> E | None:
        """By a message to nobody known: who is made for it; None to look elsewhere; `NotFound` when there is no more."""
        if self.elsewhere is None:
            return self.on_demand(owner_id) or self.entry(owner_id)
        if not self._started:
            self._check_open()
        return None

    def find(self, owner_id: str) -> E | None:
        """Who is here now."""
        return _sync.look_up(self._entries, owner_id)

    def entry(self, owner_id: str) -> E:
        """`NotFound` when there is none; `InvalidOperation` before the start, `ShuttingDown` after the end."""
        entry = _sync.look_up(self._entries, owner_id)
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
        entry.close_scope()
        if self.elsewhere is not None:
            self.elsewhere.release(self.kind, entry.owner_id)
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
