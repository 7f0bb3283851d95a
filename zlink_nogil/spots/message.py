"""`Message`: one message to a Spot or an Actor of this process, from the call to the outcome.

The value itself is handed over, not a copy: who sends it lets go of it.

Guarantees
    A request ends at its deadline, wherever it waits then; it does not begin afterwards.
    The owner's registration is read once, when the handler begins. What was made for filters is cleaned up once, when
    the handler is over, before the outcome is known.

Ownership
    read-only after construction, but for `registration` and `_scope`: set once, on the turn
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.dependencies import Scope
from zlink_nogil.errors import Cancelled, NotFound, ShuttingDown
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.execution._submitted import SubmittedTurn
from zlink_nogil.spots.deadline import Alarm, too_late
from zlink_nogil.spots.handlers import Handling
from zlink_nogil.spots.snapshot import ActorStateSnapshot

if TYPE_CHECKING:
    from zlink_nogil.spots.entry import Entry

__all__ = ["Message", "MessageContext", "Request", "checked_metadata"]

_log = logging.getLogger("zlink_nogil.spots")

NO_METADATA: Final[Mapping[str, bytes]] = {}


def checked_metadata(metadata: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """A copy; `ValueError` for what is not str to bytes."""
    if metadata is NO_METADATA:
        return metadata
    if not isinstance(metadata, Mapping) or not all(
        isinstance(name, str) and isinstance(content, bytes) for name, content in metadata.items()
    ):
        raise ValueError(f"metadata is a mapping of str to bytes, not {metadata!r}")
    return dict(metadata)


class _Known(Protocol):
    """A message as its context knows it: a `Message`, or one that has come from another node."""

    @property
    def source(self) -> str | None: ...
    @property
    def deadline(self) -> float: ...
    @property
    def metadata(self) -> Mapping[str, bytes]: ...
    @property
    def handling(self) -> Handling: ...
    @property
    def entry(self) -> Entry: ...
    @property
    def registration(self) -> ActorStateSnapshot | None: ...
    @property
    def interruption(self) -> BaseException | None: ...


class MessageContext:
    """What a handler may know of its message. `deadline` is in `time.monotonic()`'s seconds, infinite for a send.

    `actor` is the Actor's registration as it was when the handler began, None for a Spot's handler. `channel` and `key` are
    None, so that one filter can tell it from a channel's message.
    """

    __slots__ = ("_message",)

    channel: ClassVar[str | None] = None
    key: ClassVar[str | None] = None

    def __init__(self, message: _Known) -> None:
        self._message = message

    @property
    def message_name(self) -> str:
        return self._message.handling.message_name

    @property
    def metadata(self) -> Mapping[str, bytes]:
        return self._message.metadata

    @property
    def deadline(self) -> float:
        return self._message.deadline

    @property
    def source(self) -> str | None:
        """The id of the node it came from, None for this process."""
        return self._message.source

    @property
    def spot_id(self) -> str | None:
        """The Spot's id; for an Actor that of the Spot it was a member of when the handler began."""
        actor = self.actor
        return self._message.entry.owner_id if actor is None else actor.spot_id

    @property
    def actor_id(self) -> str | None:
        actor = self.actor
        return None if actor is None else actor.actor_id

    @property
    def actor(self) -> ActorStateSnapshot | None:
        return self._message.registration

    @property
    def cancelled(self) -> bool:
        """Has the turn been asked to stop?"""
        return self._message.interruption is not None


class Message(SubmittedTurn):
    """A send."""

    __slots__ = ("_scope", "deadline", "entry", "handling", "metadata", "registration", "value")

    source: str | None = None

    def __init__(self, entry: Entry, handling: Handling, value: Any, metadata: Mapping[str, bytes]) -> None:
        super().__init__(None, _size(value, metadata))
        self.entry = entry
        self.handling = handling
        self.value = value
        self.metadata = metadata
        self.deadline = math.inf
        self.registration: ActorStateSnapshot | None = None
        self._scope: Scope | None = None

    def connect(self, queue: SerialExecutionQueue) -> None:  # noqa: ARG002 - a send has nothing to cancel
        """Nobody waits for the outcome of a send: it is over when it was accepted."""
        self.completion = self.entry.accepted

    def forget(self) -> None:
        """It was refused: nothing of it may stay behind."""

    def describe(self) -> str:
        return f"{self.handling.function.__qualname__} ({self.entry.label})"

    def begin(self) -> Any:
        entry = self.entry
        owner = entry.owner
        if owner is None:
            raise NotFound(f"{entry.label} could not be created")
        self.registration = entry.registration
        value, self.value = self.value, None
        handling = self.handling
        if handling.filters is None:
            return handling.function(owner, value, MessageContext(self))
        self._scope = scope = Scope()
        return handling.prepare(scope, owner, MessageContext(self))(value)

    def _close_scope(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close()

    def succeed(self, value: Any) -> None:  # noqa: ARG002 - what a handler returns for a send is dropped
        if self._scope is not None:
            self._close_scope()

    def fail(self, error: BaseException) -> None:
        self._close_scope()
        self.value = None
        if not isinstance(error, ShuttingDown | Cancelled):
            _log.error("a send to %s failed in %s", self.entry.label, self.handling.message_name, exc_info=error)


class Request(Message):
    """A request; `timeout` in seconds from now."""

    __slots__ = ("alarm",)

    def __init__(self, entry: Entry, handling: Handling, value: Any, metadata: Mapping[str, bytes], timeout: float) -> None:
        super().__init__(entry, handling, value, metadata)
        self.deadline = _sync.monotonic() + timeout
        self.alarm = Alarm()

    def connect(self, queue: SerialExecutionQueue) -> None:
        self.completion = self.alarm.completion(queue, self, self.deadline)

    def forget(self) -> None:
        self.alarm.cancel()

    def begin(self) -> Any:
        if self.completion.done():
            raise too_late()  # told already
        return super().begin()

    def succeed(self, value: Any) -> None:
        if self._scope is not None:
            self._close_scope()
        self.completion.succeed(value)

    def fail(self, error: BaseException) -> None:
        self._close_scope()
        self.value = None
        self.completion.fail(error)


def _size(value: Any, metadata: Mapping[str, bytes]) -> int:
    """Bytes held besides the fixed cost, as far as they can be told without encoding."""
    size = sum(len(name) + len(content) for name, content in metadata.items()) if metadata else 0
    return size + len(value) if isinstance(value, (bytes, bytearray)) else size
