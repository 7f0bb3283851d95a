"""`Replies`: the completion-out socket - how answers leave a node (W4), and how they arrive at one (E5).

Guarantees
    An answer is sent from the turn that made it, never blocking; what a full peer cannot take waits in the socket's line
    for that peer. An answer to a node that is gone is counted and dropped.

Ownership
    the completion-out socket belongs to its lane; `_dropped` under `_lock`
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from zlink_nogil import _sync
from zlink_nogil.binding import InSocket, OutSocket
from zlink_nogil.errors import ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.messaging.hearing import Hearing
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import Introduction, Source
from zlink_nogil.messaging.senders import UNKNOWN
from zlink_nogil.messaging.topology import Topology
from zlink_nogil.messaging.wire import Kind, Malformed, unpack, unpack_error

__all__ = ["CompletionIngress", "Replies"]

_log = logging.getLogger("zlink_nogil.messaging")


class _RemoteAnswer:
    """An `Answer` over the completion connection to the node that asked."""

    __slots__ = ("_replies", "_source", "generation", "max_record_bytes", "source")

    def __init__(self, replies: Replies, source: Source) -> None:
        self._replies = replies
        self._source = source
        self.source = source.node
        self.generation = source.generation
        self.max_record_bytes = source.max_record_bytes

    def send(self, record: bytes) -> None:
        self._replies.send(self._source, record)


class Replies:
    """Thread-safe."""

    def __init__(self, out: OutSocket) -> None:
        self.out = out
        self._lock = _sync.Lock()
        self._dropped = 0

    def to(self, source: Source) -> _RemoteAnswer:
        return _RemoteAnswer(self, source)

    def send(self, source: Source, record: bytes) -> None:
        alias = source.link.completion_alias
        try:
            if alias is None:
                raise Unavailable("the asking node is gone")
            self.out.run(self.out.send, alias, record, self._sent)
        except (Unavailable, ShuttingDown) as error:  # also a handler that outlives the node
            self._sent(error)

    def _sent(self, error: ZLinkError | None) -> None:
        if error is not None:
            with self._lock:
                self._dropped += 1

    def dropped(self) -> int:
        """Answers that had nobody to go to any more."""
        with self._lock:
            return self._dropped


class CompletionIngress:
    """The `Driver` of the completion sockets: takes pending entries and ends them; never runs user code.

    An answer counts from the node that was asked.
    """

    def __init__(
        self,
        socket: InSocket,
        generation: int,
        operations: Operations,
        replies: Replies,
        topology: Topology,
        wakeup: _sync.EventFd,
    ) -> None:
        self.malformed = 0
        self._socket = socket
        self._generation = generation
        self._operations = operations
        self._replies = replies
        self._topology = topology
        self._hearing = Hearing(topology.heard)
        self._now = _sync.monotonic
        self._wakeup = wakeup
        self._look_at: float | None = None

    def descriptors(self) -> Collection[int]:
        return (self._wakeup.fileno(), self._socket.fd, *self._replies.out.descriptors())

    def wake(self) -> None:
        self._wakeup.set()

    def rotate(self, ready: Collection[int] | None = None, /) -> float | None:
        now = self._now()
        hot = self._receive(now)
        data, time = self._socket.fd, self._look_at
        if ready is None or any(fd != data for fd in ready) or (time is not None and time <= now):
            self._wakeup.clear()
            self._look_at = self._manage(now)
        return now if hot else self._look_at

    def _receive(self, now: float) -> bool:
        """True when there may be more."""
        records, hot = self._socket.claim(64, 1024 * 1024, now + 0.002, self._now)
        if records:
            self._hearing.note(records, now)
        for routing_id, record in records:
            try:
                self._take(routing_id, record)
            except ValueError as error:  # a `ProtocolError`, or a welcome with an endpoint nothing can connect to
                self.malformed += 1
                _log.warning("a malformed completion was dropped: %s", error)
        return hot

    def _manage(self, now: float) -> float | None:
        """Whatever is not data; returns when to look again (monotonic)."""
        self._socket.service()
        for alias in self._replies.out.run(self._replies.out.service):
            self._topology.lost(alias)
        return self._replies.out.next_look(now)

    def _take(self, routing_id: bytes, record: bytes | None) -> None:
        if record is None:
            raise Malformed("a message that has not two frames")
        header = unpack(record)
        if header.kind is Kind.REPLY or header.kind is Kind.ERROR:
            sender = _sync.look_up(self._topology.senders.answering, routing_id) or UNKNOWN
            if header.generation != self._generation:
                self._operations.count_late()  # an answer to an earlier life of this node
            elif not self._operations.may_answer(sender, header.reply_route):
                raise Malformed("an answer from somebody who was not asked")
            elif header.kind is Kind.REPLY:
                self._operations.reply(header.reply_route, record)
            else:
                self._operations.error(header.reply_route, unpack_error(record[header.payload_at :]))
        elif header.kind not in (Kind.WELCOME, Kind.LEAVING, Kind.CHANNELS, Kind.ACK):
            raise Malformed(f"a {header.kind.name} record on the completion connection")
        elif header.kind is not Kind.ACK or routing_id not in self._topology.senders.answering:
            self._control(routing_id, header.kind, Introduction.unpack(record[header.payload_at :]))

    def _control(self, routing_id: bytes, kind: Kind, them: Introduction) -> None:
        self._topology.vouch(them, self._socket.user_of(routing_id))
        if kind is Kind.WELCOME:
            self._topology.on_welcome(routing_id, them)
        elif kind is Kind.ACK:
            self._topology.on_new_way(routing_id, them)
        elif kind is Kind.LEAVING:
            self._topology.on_leaving(them)
        else:
            self._topology.on_channels(them)
