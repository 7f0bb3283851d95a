"""`ClientNode`: the calling side of a ClientServer channel (design 4.1; seed 004 section 5).

Guarantees
    Everything that comes back on a client's connections is an answer or a control record, and takes no permit. An answer
    counts from the server that was asked, also when it came just before the connection was lost.

Ownership
    the sockets belong to the operation lane; `malformed` to the thread that leads; the rest is read-only
    Closing order as `Node`'s: no new operations, the pending ones end, the role is taken back, the sockets, the context.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.binding import ClientSocket, Context, Keys, Record
from zlink_nogil.errors import ProtocolError, ShuttingDown, Unavailable
from zlink_nogil.messaging.hearing import Hearing
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.outbox import Message, Outbox, Routed
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.server import channel_mesh
from zlink_nogil.messaging.servers import Servers
from zlink_nogil.messaging.waiting_line import MOST_WAIT, WaitingLine
from zlink_nogil.messaging.wire import Header, Kind, Malformed, unpack, unpack_error
from zlink_nogil.scheduler import Completion, Wait
from zlink_nogil.state import StateLane

__all__ = ["ClientNode"]

_log = logging.getLogger("zlink_nogil.messaging")


class ClientNode:
    """A running client, and the `Driver` of its connections."""

    def __init__(
        self, channel: str, node_id: str, keys: Keys | None, liveness: tuple[float, float], resources: Resources
    ) -> None:
        self._channel = channel
        self._standby = resources.standby
        self._now = _sync.monotonic
        self._wakeup = _sync.EventFd()
        self._due = True
        self._look_at: float | None = None
        self._context = Context(keys)
        self._generation = secrets.randbits(63) | 1
        most = resources.max_record_bytes
        me = Introduction(channel_mesh(channel), node_id, self._generation, "", "", {}, most)
        lane = StateLane(f"client {channel}/{node_id}", rank=Rank.SOCKET)
        self._socket = ClientSocket(self._context, lane, node_id.encode(), most, self.wake, self.look)
        self.operations = Operations(lane, self._socket, resources.slots, resources.pool, self.wake)
        self._outbox = Outbox(me, self.operations, None, resources)
        self.servers = Servers(me, self.operations, self._socket, Identity(keys), liveness, self.wake)
        self._hearing = Hearing(self.servers.heard)
        self._line = WaitingLine(self.servers.selector.choose, self._dispatch, self.wake)
        self._watchers: list[_sync.Parker] = []
        self.malformed = 0

    def start(self, endpoints: Mapping[str, str | None]) -> None:
        self.operations.role = self._standby.add(self)
        self.servers.connect(endpoints)

    def check_usable(self) -> None:
        """`ShuttingDown` once operations are refused."""
        if self.operations.closed:
            raise ShuttingDown(f"the client of {self._channel!r} is closed")

    # -- calls ------------------------------------------------------------------------------------------------------

    def start_call(self, message: Message, how: Wait | None) -> Completion[Any]:
        """At once to a server that is ready, and nobody waits for one; otherwise at the end of the line."""
        self.check_usable()
        if self._line.empty and self.servers.ready:
            try:
                return self._outbox.start(message, how)
            except _NobodyReady:
                pass
        operation = self._outbox.line_up(message, self._line.enter)
        self._line.flush()
        return operation

    def choose(self) -> Peer:
        peer = self.servers.selector.choose()
        if peer is None:
            raise _NobodyReady
        return peer

    def _dispatch(self, operation: Routed, peer: Peer) -> None:
        self._outbox.dispatch(operation, peer)

    # -- a driver ---------------------------------------------------------------------------------------------------

    def descriptors(self) -> Collection[int]:
        return (self._wakeup.fileno(), *self._socket.descriptors())

    def wake(self) -> None:
        """Receive and manage."""
        self._due = True
        self._wakeup.set()

    def look(self) -> None:
        """Receive."""
        self._wakeup.set()

    def rotate(self, ready: Collection[int] | None = None, /) -> float | None:
        wakeup = self._wakeup.fileno()
        if ready is None or wakeup in ready:
            self._wakeup.clear()
        hot = self._receive()
        if self._due or ready is None or not {wakeup, *self._socket.data()}.issuperset(ready) or self._is_time():
            self._due = False
            self._look_at = self._manage()
        return self._now() if hot else self._look_at

    def _is_time(self) -> bool:
        return self._look_at is not None and self._look_at <= self._now()

    def _manage(self) -> float | None:
        """Whatever is not data; returns when to look again (monotonic)."""
        lost = self.operations.service()
        while lost and self._receive():  # what had come before the end
            pass
        for alias in lost:
            self.servers.lost(alias)
        now = self._now()
        times = [self.operations.expire(), self.servers.manage(now), self._socket.next_look(now)]
        over, upcoming = self._line.expire(now)
        for operation in over:
            nobody = Unavailable(f"no server of channel {self._channel!r} was ready within {MOST_WAIT:g} s")
            self.operations.error(operation.reply_route, nobody)
        self._line.flush()
        times.append(upcoming)
        return min((time for time in times if time is not None), default=None)

    def _receive(self) -> bool:
        now = self._now()
        records, hot = self._socket.claim(64, 1024 * 1024, now + 0.002, self._now)
        if records:
            self._hearing.note(records, now)
        for received in records:
            try:
                self._take(received)
            except ValueError as error:
                self.malformed += 1
                _log.warning("a malformed record was dropped: %s", error)
        return hot

    def _take(self, received: Record) -> None:
        alias, record = received
        if record is None:
            raise Malformed("a message that has not one frame")
        header = unpack(record)
        if header.kind is Kind.REPLY or header.kind is Kind.ERROR:
            self._answer(alias, header, record)
        elif header.kind is Kind.WELCOME:
            self.servers.on_welcome(alias, Introduction.unpack(record[header.payload_at :]))
        elif header.kind is Kind.LEAVING:
            self.servers.on_leaving(alias)
        elif header.kind is Kind.PROBE:
            self.servers.acknowledge(alias)
        elif header.kind is not Kind.ACK:
            raise ProtocolError(f"a {header.kind.name} record from a server")

    def _answer(self, alias: bytes, header: Header, record: bytes) -> None:
        if header.generation != self._generation:
            self.operations.count_late()
        elif not self.operations.may_answer(alias, header.reply_route):
            raise Malformed("an answer from a server that was not asked")
        elif header.kind is Kind.REPLY:
            self.operations.reply(header.reply_route, record)
        else:
            self.operations.error(header.reply_route, unpack_error(record[header.payload_at :]))

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        self.operations.close()
        self._standby.remove(self)
        self._socket.run(self._socket.close, timeout)
        self.servers.lane.close()
        self._context.end()
        self._wakeup.close()


class _NobodyReady(Exception):
    """No server is ready."""
