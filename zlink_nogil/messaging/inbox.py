"""`Inbox`: from a claimed record to its owner's queue - I3 and I4 (design 4.3; seed 004 section 4.1).

Guarantees
    Only the header is read. Every application record carries one permit; a record that goes no further gives it back,
    is counted, and answers with an error if it was a request. A batch is committed to each owner in one critical section.

Ownership
    `counts`     the ingress leader adds, anybody reads
    the rest     read-only
"""

from __future__ import annotations

import logging
from collections import Counter

from zlink_nogil import _sync
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.messaging.delivery import Answer, Delivery
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.owners import OwnerName, Owners
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.wire import Header, Kind, Malformed, pack, pack_error, unpack_extras

__all__ = ["Inbox"]

_log = logging.getLogger("zlink_nogil.messaging")


class Inbox:
    """`generation` is this life's; records for another are refused (decision 5)."""

    def __init__(self, generation: int, handlers: Handlers, owners: Owners, permits: Permits, max_record_bytes: int) -> None:
        self.counts: Counter[str] = Counter()
        self._generation = generation
        self._handlers = handlers
        self._owners = owners
        self._permits = permits
        self._max_record_bytes = max_record_bytes
        self._now = _sync.monotonic

    def accept(self, record: bytes, header: Header, answer: Answer) -> tuple[OwnerName, Delivery] | None:
        """I3: the owner and the delivery of an application record that holds a permit; None when it was refused."""
        try:
            owner, delivery = self.prepare(record, header, answer)
        except ZLinkError as error:
            self._refuse(header, error, answer)
            return None
        return owner, delivery

    def prepare(self, record: bytes, header: Header, answer: Answer) -> tuple[OwnerName, Delivery]:
        """Find the handler and the owner; the error that refuses the record otherwise."""
        if header.generation != self._generation:
            raise Unavailable("the record was for an earlier life of this node")
        route = self._handlers.route(header.route)
        key, metadata = unpack_extras(header.extras)
        deadline = self._now() + header.timeout_ms / 1000
        delivery = Delivery(record, header, route, key, metadata, deadline, answer, self._permits, self._max_record_bytes)
        return (route.handler.channel, key), delivery

    def commit(self, batch: dict[OwnerName, list[Delivery]]) -> None:
        """I4: append each owner's records to its queue. The queue wakes one worker when it was empty."""
        for owner, deliveries in batch.items():
            for turn, error in self._owners.admit(owner, deliveries):
                self.counts["refused"] += 1
                turn.fail(error)

    def malformed(self, error: Malformed, answer: Answer | None) -> None:
        """A record that cannot be read: counted, its permit returned, and a request among them answered."""
        self._permits.give_back()
        self.counts["malformed"] += 1
        _log.warning("a malformed record was dropped: %s", error)
        if error.request is not None and answer is not None:
            _, high, low, reply_route = error.request
            self._answer(answer, (high, low), reply_route, error)

    def _refuse(self, header: Header, error: ZLinkError, answer: Answer) -> None:
        self._permits.give_back()
        self.counts["refused"] += 1
        if header.kind is Kind.REQUEST:
            self._answer(answer, (header.operation_high, header.operation_low), header.reply_route, error)
        else:
            _log.warning("a send was refused: %s", error)

    def _answer(self, answer: Answer, operation: tuple[int, int], reply_route: int, error: ZLinkError) -> None:
        payload = pack_error(error)
        answer.send(
            pack(
                Kind.ERROR,
                b"",
                b"",
                payload,
                generation=answer.generation,
                operation=operation,
                reply_route=reply_route,
            )
        )
