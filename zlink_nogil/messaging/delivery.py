"""`Delivery`: one record on its way through its owner's queue - W2 to W4 (design 4.3; seed 004 section 4.3).

Guarantees
    The payload is decoded once, on the owner's turn. The permit goes back just before the handler's first instruction, or
    when the record will never run; once in either case. A request gets exactly one answer, from the same turn. What was
    made for the handler is cleaned up once, when that is over, however it ended.

Ownership
    read-only after construction, but for `mark`, set before it is admitted, and `_permit` and `_scope`, which belong to
    whoever runs or ends the turn
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zlink_nogil import _sync
from zlink_nogil.dependencies import Scope
from zlink_nogil.errors import (
    Cancelled,
    CapacityExceeded,
    DeadlineExceeded,
    InternalFailure,
    ProtocolError,
    ShuttingDown,
    Unavailable,
    ZLinkError,
)
from zlink_nogil.execution import Turn
from zlink_nogil.messaging.answer import Answer, send_error, send_reply
from zlink_nogil.messaging.handlers import Route
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.tracing import Mark
from zlink_nogil.messaging.wire import HEADER_BYTES, Header, Kind, NotHere, pack_route

__all__ = ["Context", "Delivery"]

_log = logging.getLogger("zlink_nogil.messaging")


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know of its record. `deadline` is in `time.monotonic()`'s seconds, infinite for a send.

    `spot_id` and `actor_id` are None, so that one filter can tell it from a Spot's or an Actor's message.
    """

    spot_id: ClassVar[str | None] = None
    actor_id: ClassVar[str | None] = None

    channel: str
    message_name: str
    key: str | None
    metadata: Mapping[str, bytes]
    source: str
    deadline: float
    _turn: Turn

    @property
    def cancelled(self) -> bool:
        """Has the turn been asked to stop (the host is closing)?"""
        return self._turn.interruption is not None


class Delivery(Turn):
    __slots__ = (
        "_answer",
        "_header",
        "_key",
        "_most",
        "_permit",
        "_permits",
        "_record",
        "_route",
        "_scope",
        "deadline",
        "mark",
        "metadata",
    )

    def __init__(
        self,
        record: bytes,
        header: Header,
        route: Route,
        key: str | None,
        metadata: Mapping[str, bytes],
        deadline: float,
        answer: Answer,
        permits: Permits,
        max_record_bytes: int,
    ) -> None:
        super().__init__(len(record))
        self._record: bytes | None = record
        self._header = header
        self._route = route
        self._key = key
        self.metadata = metadata
        self.deadline = deadline
        self._answer = answer
        self._permits = permits
        self._permit = True
        self._scope: Scope | None = None
        self.mark: Mark | None = None
        self._most = min(max_record_bytes, answer.max_record_bytes)

    @property
    def is_request(self) -> bool:
        return self._header.kind is Kind.REQUEST

    @property
    def _operation(self) -> tuple[int, int]:
        return self._header.operation_high, self._header.operation_low

    def begin(self) -> Any:
        mark = self.mark
        if mark is not None:
            mark.note("W1")
        if _sync.monotonic() >= self.deadline:
            raise DeadlineExceeded("the request waited for its turn until its deadline")
        handler = self._route.handler
        record, self._record = self._record, None
        assert record is not None, "a delivery begins once"
        try:
            message = self._route.codec.decode(record[self._header.payload_at :], handler.message_type)
        except Exception as error:  # whatever a codec or a message type's constructor makes of bad bytes
            raise ProtocolError(f"{handler.message_name!r} cannot be decoded: {error}") from None
        if mark is not None:
            mark.copied += 1  # what the codec was given
            mark.note("W2")
            mark.note("W3")
        return self._call(message)

    def _call(self, message: Any) -> Any:
        """W3: the permit goes back just before the handler's first instruction."""
        handler = self._route.handler
        ctx = Context(
            handler.channel,
            handler.message_name,
            self._key,
            self.metadata,
            self._answer.source,
            self.deadline,
            self,
        )
        dispatch = handler.dispatch
        if dispatch is None:
            self.return_permit()
            return handler.function(message, ctx)
        self._scope = scope = Scope()
        call = dispatch.prepare(scope, ctx)
        self.return_permit()
        return call(message)

    def _close_scope(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close()

    def succeed(self, value: Any) -> None:
        self._close_scope()
        if self.is_request:
            self._reply(value)
        if self.mark is not None:
            self.mark.end("W5")

    def _reply(self, value: Any) -> None:
        handler = self._route.handler
        if handler.reply_type is None:
            payload, content_type = b"", ""
        else:
            codec = self._route.reply_codec
            assert codec is not None, "a request handler has a codec for its reply"
            payload, content_type = codec.encode(value, handler.reply_type), codec.content_type
        size = HEADER_BYTES + len(content_type) + 2 + len(payload)
        if size > self._most:
            raise CapacityExceeded(f"the reply is a record of {size} bytes, over max_record_bytes ({self._most})")
        send_reply(self._answer, self._operation, self._header.reply_route, pack_route(content_type), payload)
        if self.mark is not None:
            self.mark.copied += 1
            self.mark.note("W4")

    def fail(self, error: BaseException) -> None:
        self._close_scope()
        self.return_permit()
        begun, self._record = self._record is None, None
        if self.is_request:
            self.tell(_as_told(error))
        elif isinstance(error, CapacityExceeded) and not begun:  # one line each: there are many when there are any
            _log.warning("a send to %r was refused: %s", self._route.handler.message_name, error)
        elif not isinstance(error, ShuttingDown | Cancelled):
            _log.error("a send to %r failed", self._route.handler.message_name, exc_info=error)
        if self.mark is not None:
            self.mark.end("W5")

    def tell(self, error: ZLinkError) -> None:
        """Answer with `error`."""
        send_error(self._answer, self._operation, self._header.reply_route, error)
        if self.mark is not None:
            self.mark.note("W4")

    def return_permit(self) -> None:
        """Give the permit back if it was not yet."""
        if self._permit:
            self._permit = False
            self._permits.give_back()


def _as_told(error: BaseException) -> ZLinkError:
    """What the asking side learns: our own errors as they are, others by type and text, no traceback (design 4.5)."""
    try:
        if isinstance(error, Unavailable):
            return Unavailable(error.message, accepted=True)  # whoever was asked for help: this record had been accepted
        if isinstance(error, NotHere):
            return error
        if isinstance(error, ZLinkError):
            return ZLinkError.of(error.kind, error.message)
        if isinstance(error, Cancelled):
            return ShuttingDown("the handler was cancelled")
        return InternalFailure(f"{type(error).__name__}: {error}")
    except Exception:  # an exception class of the user's that cannot even say what it is
        return InternalFailure(type(error).__name__)
