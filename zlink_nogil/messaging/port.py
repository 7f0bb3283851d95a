"""`MeshPort`: a mesh node's data connections, as the host's rotation sees them (design 4.3).

Ownership
    read-only; everything it leads to belongs to the thread that leads the rotation, or to its own lane
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from zlink_nogil import _sync
from zlink_nogil.binding import InSocket, Record
from zlink_nogil.errors import ProtocolError
from zlink_nogil.messaging.answer import Answer
from zlink_nogil.messaging.hearing import Hearing
from zlink_nogil.messaging.inbox import Inbox
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.replies import Replies
from zlink_nogil.messaging.topology import Topology
from zlink_nogil.messaging.wire import Header, Kind

__all__ = ["MeshPort"]


class MeshPort:
    def __init__(self, socket: InSocket, inbox: Inbox, operations: Operations, topology: Topology, replies: Replies) -> None:
        self.inbox = inbox
        self._socket = socket
        self._operations = operations
        self._topology = topology
        self._hearing = Hearing(topology.heard)
        self._replies = replies

    def data(self) -> int:
        return self._socket.fd

    def descriptors(self) -> Collection[int]:
        return self._operations.out.descriptors()

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        records, hot = self._socket.claim(most, most_bytes, until, now)
        if records:
            self._hearing.note(records, now())
        return records, hot

    def answer(self, routing_id: bytes) -> Answer | None:
        source = _sync.look_up(self._topology.senders.asking, routing_id)
        return None if source is None else self._replies.to(source)

    def control(self, routing_id: bytes, header: Header, record: bytes) -> None:
        if header.kind is Kind.PROBE:
            self._topology.on_probe(routing_id)
            return
        introduction = Introduction.unpack(record[header.payload_at :])
        self._topology.vouch(introduction, self._socket.user_of(routing_id))
        if header.kind is Kind.HELLO:
            self._topology.on_hello(routing_id, introduction)
        elif header.kind is Kind.LEFT:
            self._topology.on_left(introduction)
        else:
            raise ProtocolError(f"a {header.kind.name} record on the data connection")

    def manage(self, now: float) -> float | None:
        self._socket.service()
        for alias in self._operations.service():
            self._topology.lost(alias)
        times = (self._operations.expire(), self._topology.manage(), self._operations.out.next_look(now))
        return min((time for time in times if time is not None), default=None)
