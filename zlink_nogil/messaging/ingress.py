"""`Ingress`: the receive rotation of a node's data sockets - I0 to I4 and M (design 4.3; seed 004 section 4).

Guarantees
    No application record is claimed without a permit; with none to be had the data-in socket leaves the wait set, and
    the first permit returned brings it back. A claim stopped by a limit is looked at again before anybody sleeps. Bad
    input of any kind is counted and survived. Management runs once per rotation.

Ownership
    everything belongs to the thread that leads; `wake` is thread-safe
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import InSocket, Record
from zlink_nogil.errors import ProtocolError
from zlink_nogil.messaging.delivery import Delivery
from zlink_nogil.messaging.inbox import Inbox, Owner
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.replies import Replies
from zlink_nogil.messaging.topology import Topology
from zlink_nogil.messaging.wire import Header, Kind, Malformed, unpack

__all__ = ["Ingress"]

MOST_RECORDS: Final = 64
MOST_BYTES: Final = 1024 * 1024
MOST_SECONDS: Final = 0.002

_log = logging.getLogger("zlink_nogil.messaging")


class Ingress:
    """A `Driver`."""

    def __init__(
        self,
        socket: InSocket,
        inbox: Inbox,
        permits: Permits,
        operations: Operations,
        topology: Topology,
        replies: Replies,
        wakeup: _sync.EventFd,
    ) -> None:
        self._socket = socket
        self._inbox = inbox
        self._permits = permits
        self._operations = operations
        self._topology = topology
        self._replies = replies
        self._wakeup = wakeup
        self._now = _sync.monotonic
        self._reading = True

    def descriptors(self) -> Collection[int]:
        fds = [self._wakeup.fileno(), *self._operations.out.descriptors()]
        return [*fds, self._socket.fd] if self._reading else fds

    def wake(self) -> None:
        self._wakeup.set()

    def rotate(self) -> float | None:
        self._wakeup.clear()
        hot = self._receive()
        for alias in self._operations.service():
            self._topology.lost(alias)
        now = self._now()
        deadlines = (self._operations.expire(), self._topology.manage(), self._operations.out.next_look(now))
        return now if hot else min((time for time in deadlines if time is not None), default=None)

    def _receive(self) -> bool:
        """One claim, as many records as there are permits; True when there may be more."""
        budget = self._permits.take(MOST_RECORDS, self.wake)
        self._reading = budget > 0
        if not self._reading:
            return False
        records, hot = self._socket.claim(budget, MOST_BYTES, self._now() + MOST_SECONDS, self._now)
        if budget > len(records):
            self._permits.give_back(budget - len(records))
        batch: dict[Owner, list[Delivery]] = {}
        for record in records:
            self._classify(record, batch)
        self._inbox.commit(batch)
        return hot

    def _classify(self, received: Record, batch: dict[Owner, list[Delivery]]) -> None:
        routing_id, record = received
        source = self._topology.sources.get(routing_id)
        answer = None if source is None else self._replies.to(source)
        try:
            if record is None:
                raise Malformed("a message that has not two frames")
            header = unpack(record)
            if header.kind not in (Kind.SEND, Kind.REQUEST):
                self._control(routing_id, header, record)
                self._permits.give_back()
                return
            if answer is None:
                raise Malformed("a record from a node that has not said hello")
        except Malformed as error:
            self._inbox.malformed(error, answer)
            return
        accepted = self._inbox.accept(record, header, answer)
        if accepted is not None:
            owner, delivery = accepted
            batch.setdefault(owner, []).append(delivery)

    def _control(self, routing_id: bytes, header: Header, record: bytes) -> None:
        """Handled here and now; `Malformed` when it cannot be."""
        try:
            introduction = Introduction.unpack(record[header.payload_at :])
            if header.kind is Kind.HELLO:
                self._topology.on_hello(routing_id, introduction)
            elif header.kind is Kind.LEFT:
                self._topology.on_left(introduction)
            else:
                raise ProtocolError(f"a {header.kind.name} record on the data connection")
        except ValueError as error:  # an unreadable introduction, or an endpoint nothing can connect to
            raise Malformed(str(error)) from None
