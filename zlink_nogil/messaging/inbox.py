"""`Inbox`: from a claimed record to its owner's queue - I3 and I4 (design 4.3; seed 004 section 4.1).

Guarantees
    Only the header is read. Every application record carries one permit; a record that goes no further gives it back,
    is counted, and answers with an error if it was a request. A batch is committed to each owner in one critical section.

Ownership
    `counts`      the ingress leader adds, anybody reads
    `_refusing`   set once by the closing thread, read by the leader
    the rest      read-only
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable

from zlink_nogil import _sync
from zlink_nogil.errors import InternalFailure, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.execution import Turn
from zlink_nogil.messaging.answer import Answer, send_error
from zlink_nogil.messaging.delivery import Delivery
from zlink_nogil.messaging.doors import Doors
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.owners import OwnerName, Owners, owner_of
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.wire import Header, Kind, Malformed, NotHere, OwnerKind, unpack_extras
from zlink_nogil.spots.entry import Entry

__all__ = ["Inbox", "Owner"]

_log = logging.getLogger("zlink_nogil.messaging")


type Owner = OwnerName | Entry
"""Of a channel's messages, or a Spot or an Actor."""


class Inbox:
    """`generation` is this life's; records for another are refused (decision 5)."""

    def __init__(
        self,
        generation: int,
        handlers: Handlers,
        owners: Owners,
        doors: Doors,
        permits: Permits,
        max_record_bytes: int,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._refusing = False
        self._generation = generation
        self._handlers = handlers
        self.owners = owners
        self._doors = doors
        self._permits = permits
        self._max_record_bytes = max_record_bytes
        self._now = _sync.monotonic

    def refuse_new(self) -> None:
        """The node is closing: from now on other nodes' records are refused, this node's own still go on."""
        self._refusing = True

    def accept(self, record: bytes, header: Header, answer: Answer) -> tuple[Owner, Delivery] | None:
        """I3: the owner and the delivery of an application record that holds a permit; None when it was refused."""
        try:
            if self._refusing:
                raise self._refusal(header)
            owner, delivery = self.prepare(record, header, answer)
        except ZLinkError as error:
            self._refuse(header, error, answer)
            return None
        except Exception as error:  # a codec's `matches` is user code: it must not take the rest of the batch along
            _log.exception("no codec could be chosen for a record")
            self._refuse(header, InternalFailure(f"{type(error).__name__}: {error}"), answer)
            return None
        return owner, delivery

    def _refusal(self, header: Header) -> ZLinkError:
        address, _ = unpack_extras(header.extras)
        return NotHere(address) if address.kind >= OwnerKind.SPOT else ShuttingDown("the node is shutting down")

    def prepare(self, record: bytes, header: Header, answer: Answer) -> tuple[Owner, Delivery]:
        """Find the handler and the owner; the error that refuses the record otherwise."""
        if header.generation != self._generation:
            raise Unavailable("the record was for an earlier life of this node")
        address, metadata = unpack_extras(header.extras)
        deadline = self._now() + header.timeout_ms / 1000 if header.kind is Kind.REQUEST else math.inf
        if address.kind >= OwnerKind.SPOT:
            return self._doors.prepare(record, header, address, metadata, deadline, answer)
        route = self._handlers.route(header.route)
        owner = owner_of(route.handler.channel, address)
        key = owner[1]
        delivery = Delivery(record, header, route, key, metadata, deadline, answer, self._permits, self._max_record_bytes)
        return owner, delivery

    def commit(self, batch: dict[Owner, list[Delivery]]) -> None:
        """I4: append each owner's records to its queue. The queue wakes one worker when it was empty."""
        for owner, deliveries in batch.items():
            for turn, error in self.admit(owner, deliveries):
                self.counts["refused"] += 1
                turn.fail(error)

    def admit(self, owner: Owner, deliveries: Iterable[Delivery]) -> list[tuple[Turn, ZLinkError]]:
        """In one critical section; returns the refused ones with the reason each."""
        return owner.admit(deliveries) if isinstance(owner, Entry) else self.owners.admit(owner, deliveries)

    def malformed(self, error: Malformed, answer: Answer | None) -> None:
        """A record that cannot be read: counted, its permit returned, and a request among them answered."""
        self._permits.give_back()
        self.counts["malformed"] += 1
        _log.warning("a malformed record was dropped: %s", error)
        if error.request is not None and answer is not None:
            _, high, low, reply_route = error.request
            send_error(answer, (high, low), reply_route, error)

    def _refuse(self, header: Header, error: ZLinkError, answer: Answer) -> None:
        self._permits.give_back()
        self.counts["refused"] += 1
        if header.kind is Kind.REQUEST or isinstance(error, NotHere):  # whose sender must not go on sending it here
            send_error(answer, (header.operation_high, header.operation_low), header.reply_route, error)
        if header.kind is Kind.SEND:
            _log.warning("a send was refused: %s", error)
