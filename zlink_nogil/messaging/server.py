"""`Server`: the serving side of a ClientServer channel (design 4.1; seed 004 section 5).

    client DEALER -> server ROUTER    HELLO    who I am, and which channel I mean
    server ROUTER -> client DEALER    WELCOME  who I am, my weight and limits: now I may be chosen; again when they change
    server ROUTER -> client DEALER    LEAVING  send me nothing new

Guarantees
    One connection per client: its answers go back where its requests came from. A client whose connection is gone is
    forgotten with the first record that cannot reach it, at the latest when it is probed. (ZeroMQ's monitor tells earlier,
    but by descriptor: whose it was only the first frame of each connection says, in a property that is deprecated.)

Ownership
    `_sessions`, `_weight`, `_leaving`   on the socket's lane; single look-ups by the thread that leads
    `_dropped`                           on the socket's lane
    `_probe_at`, a session's `heard_at`  the thread that leads
    `_state`                             under `_lock`
    Closing order as `Node`'s: nothing new, what was accepted ends, the port leaves the rotation, the socket, the context.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from zlink_nogil import _sync
from zlink_nogil.binding import Context, Keys, Record, ServerSocket
from zlink_nogil.errors import DeadlineExceeded, ProtocolError, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.messaging.doors import Doors
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.inbox import Inbox
from zlink_nogil.messaging.owners import Owners
from zlink_nogil.messaging.peers import ANY_MESH, CLIENT_SERVER, Introduction, reachable
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.wire import Header, Kind, pack
from zlink_nogil.state import StateLane, debug_assert_on_lane

if TYPE_CHECKING:
    from zlink_nogil.messaging.answer import Answer
    from zlink_nogil.messaging.handlers import Handlers
    from zlink_nogil.messaging.resources import Resources

__all__ = ["ServerNode", "channel_mesh"]

PROBE_EVERY: Final = 15.0
"""Seconds between two looks whether a silent client is still there."""

_log = logging.getLogger("zlink_nogil.messaging")


def channel_mesh(channel: str) -> str:
    """What the two sides of a channel call their mesh."""
    return CLIENT_SERVER + channel


class _Session:
    """A client, by the routing id of its connection. An `Answer`."""

    __slots__ = ("_routing_id", "_server", "generation", "heard_at", "max_record_bytes", "source", "token")

    def __init__(self, server: ServerNode, routing_id: bytes, them: Introduction, now: float) -> None:
        self._server = server
        self._routing_id = routing_id
        self.source = them.node
        self.generation = them.generation
        self.max_record_bytes = them.max_record_bytes
        self.token = them.token
        self.heard_at = now

    def send(self, record: bytes) -> None:
        self._server.send(self._routing_id, record)


class ServerNode:
    """One running server, and a `Port` of the host's rotation. `OSError` when `bind` is not possible."""

    def __init__(
        self,
        channel: str,
        node_id: str,
        bind: str,
        advertise: str | None,
        weight: int,
        keys: Keys | None,
        handlers: Handlers,
        resources: Resources,
    ) -> None:
        self._channel = channel
        self._resources = resources
        self._weight = weight
        most = resources.max_record_bytes
        self._context = Context(keys)
        self._authenticator = self._context.authenticator()
        self._identity = Identity(keys)
        lane = StateLane(f"server {channel}/{node_id}", rank=Rank.SOCKET)
        try:
            ingress = resources.ingress
            self._socket = ServerSocket(self._context, lane, bind, most, ingress.wake, ingress.look)
        except OSError:
            self._end_context()
            raise
        if self._authenticator is not None:
            self._authenticator.on_death = self._socket.stop_listening
        self._lane = lane
        self._now = _sync.monotonic
        self._sessions: dict[bytes, _Session] = {}
        self._leaving = False
        self._dropped = 0
        self._probe_at = self._now() + PROBE_EVERY
        self._generation = secrets.randbits(63) | 1
        self._node_id = node_id
        self.endpoint = reachable(self._socket.endpoint, advertise)
        permits = resources.permits
        self.owners = Owners(resources.pool, resources.policy, permits.most + 1)
        self.inbox = Inbox(
            self._generation, handlers, self.owners, Doors({}, resources.codecs, permits, most), permits, most
        )

    def _end_context(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.end()

    def start(self) -> None:
        if self._authenticator is not None:
            self._resources.standby.add(self._authenticator)
        self._resources.ingress.add(self)

    # -- a port -----------------------------------------------------------------------------------------------------

    def data(self) -> int:
        return self._socket.fd

    def descriptors(self) -> Collection[int]:
        return (self._socket.monitor_fd,)

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        return self._socket.claim(most, most_bytes, until, now)

    def answer(self, routing_id: bytes) -> Answer | None:
        session = _sync.look_up(self._sessions, routing_id)
        if session is not None:
            session.heard_at = self._probe_at - PROBE_EVERY  # in this round: no look at the clock per record
        return session

    def control(self, routing_id: bytes, header: Header, record: bytes) -> None:
        if header.kind is Kind.HELLO:
            them = Introduction.unpack(record[header.payload_at :])
            self._identity.check(them, self._socket.user_of(routing_id))
            self._lane.run(self._on_hello, routing_id, them)
        elif header.kind is Kind.PROBE:
            self._lane.run(self._say, routing_id, Kind.ACK)
        elif header.kind is not Kind.ACK:
            raise ProtocolError(f"a {header.kind.name} record from a client")

    def manage(self, now: float) -> float | None:
        self._lane.run(self._socket.service)
        if now >= self._probe_at:
            self._lane.run(self._probe, now)
        times = (self._socket.next_look(now), self._probe_at if self._sessions else None)
        return min((time for time in times if time is not None), default=None)

    # -- on the lane ------------------------------------------------------------------------------------------------

    def _on_hello(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self._lane)
        if them.mesh != channel_mesh(self._channel):
            level = logging.INFO if them.mesh == ANY_MESH else logging.WARNING  # a caller that tries both ways
            _log.log(level, "%r wants %r, and this is channel %r: refused", them.node, them.mesh, self._channel)
            return
        self._socket.let_in(routing_id)
        self._sessions[routing_id] = _Session(self, routing_id, them, self._now())
        self._say(routing_id, Kind.LEAVING if self._leaving else Kind.WELCOME)

    def _say(self, routing_id: bytes, kind: Kind) -> None:
        debug_assert_on_lane(self._lane)
        session = _sync.look_up(self._sessions, routing_id)
        if session is None:
            return
        introduction = Introduction(
            channel_mesh(self._channel),
            self._node_id,
            self._generation,
            self.endpoint,
            self.endpoint,
            {self._channel: self._weight},
            self._resources.max_record_bytes,
            0,
            session.token,
        )
        try:
            self._socket.send(routing_id, pack(kind, b"", b"", introduction.pack(), generation=session.generation), _sent)
        except Unavailable:
            self._forget(routing_id)

    def _forget(self, routing_id: bytes) -> None:
        debug_assert_on_lane(self._lane)
        self._sessions.pop(routing_id, None)
        self._socket.disconnect(routing_id)

    def _probe(self, now: float) -> None:
        """Who has been silent for a round is sent something: if its connection is gone, that is noticed."""
        debug_assert_on_lane(self._lane)
        for routing_id, session in list(self._sessions.items()):
            if session.heard_at < self._probe_at - PROBE_EVERY:
                self._say(routing_id, Kind.PROBE)
        self._probe_at = now + PROBE_EVERY

    def _send(self, routing_id: bytes, record: bytes) -> None:
        debug_assert_on_lane(self._lane)
        try:
            self._socket.send(routing_id, record, self._answered)
        except Unavailable:
            self._dropped += 1
            self._forget(routing_id)

    def _answered(self, error: ZLinkError | None) -> None:
        """On the lane: an answer that had waited for room."""
        debug_assert_on_lane(self._lane)
        if error is not None:
            self._dropped += 1

    # -- by others --------------------------------------------------------------------------------------------------

    def send(self, routing_id: bytes, record: bytes) -> None:
        """Start sending an answer; never blocks, never raises."""
        try:
            self._lane.run(self._send, routing_id, record)
        except ShuttingDown:  # a handler that outlives the server
            return

    def set_weight(self, weight: int) -> None:
        self._lane.run(self._set_weight, weight)

    def _set_weight(self, weight: int) -> None:
        debug_assert_on_lane(self._lane)
        self._weight = weight
        self._tell_all(Kind.WELCOME)

    def _tell_all(self, kind: Kind) -> None:
        debug_assert_on_lane(self._lane)
        for routing_id in list(self._sessions):
            self._say(routing_id, kind)

    def statistics(self) -> dict[str, int]:
        counts = {"refused": 0, "malformed": 0, **self.inbox.counts, "owners": len(self.owners)}
        return {**counts, "clients": len(self._sessions), "dropped_replies": self._dropped}

    def leave(self, timeout: float) -> None:
        """Be chosen no more, and finish what was accepted within `timeout` seconds."""
        deadline = _sync.monotonic() + timeout
        self._lane.run(self._leave)
        self.inbox.refuse_new()
        self.owners.drain(deadline)

    def _leave(self) -> None:
        debug_assert_on_lane(self._lane)
        self._leaving = True
        self._tell_all(Kind.LEAVING)

    def close(self, timeout: float) -> None:
        """After `leave`."""
        deadline = _sync.monotonic() + timeout
        try:
            self.owners.close(max(0.1, timeout))
        except DeadlineExceeded as error:
            _log.error("closing with work still running: %s", error)
        self._resources.ingress.remove(self)
        self._lane.run(self._socket.close, max(0.1, deadline - _sync.monotonic()))
        if self._authenticator is not None:
            self._resources.standby.remove(self._authenticator)
        self._end_context()


def _sent(error: ZLinkError | None) -> None:
    """For control records: one that is not accepted is said again, or nobody is there."""
