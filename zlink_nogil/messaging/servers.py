"""`Servers`: which servers a client has, and who of them can be chosen (decisions 5, 6; design 4.4).

Guarantees
    A server is a candidate only after its welcome for the present connection. A connection that is lost is made again,
    with a DEALER of its own: what was pending ends, and nothing of it reaches the server's next life. Between connections
    that do not last there is a rest.

Ownership
    everything belongs to `lane`, but `ready`, which is replaced there and read by anybody
    Lock order: this lane, then the selector's, then the socket's (decision 8).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import ClientSocket, Lost
from zlink_nogil.errors import ProtocolError, Unavailable, ZLinkError
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.liveness import Liveness
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.selection import Selector
from zlink_nogil.messaging.watchers import Watchers
from zlink_nogil.messaging.wire import Kind, pack
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Servers"]

LEAST_REST: Final = 0.05
MOST_REST: Final = 5.0
"""Seconds between connections that do not last."""

_log = logging.getLogger("zlink_nogil.messaging")
_tokens = itertools.count(1)


@dataclass(slots=True, eq=False)
class _Link:
    endpoint: str
    node: str | None
    alias: bytes = b""
    token: int = 0
    peer: Peer | None = None
    leaving: bool = False
    failures: int = 0
    open_at: float | None = None


class Servers:
    def __init__(
        self,
        me: Introduction,
        operations: Operations,
        out: ClientSocket,
        identity: Identity,
        liveness: tuple[float, float],
        changed: Callable[[], None],
    ) -> None:
        self.lane = StateLane(f"servers of {me.node}", rank=Rank.TOPOLOGY)
        self.selector: Selector[Peer] = Selector(me.mesh)
        self.ready: Mapping[str, Peer] = {}
        self._me = me
        self._operations = operations
        self._out = out
        self._identity = identity
        self._changed = changed
        self._now = _sync.monotonic
        self._links: list[_Link] = []
        self._liveness: Liveness[bytes] = Liveness(*liveness)  # by alias
        self.watchers = Watchers()

    def connect(self, endpoints: Mapping[str, str | None]) -> None:
        """Begin to pair with the servers at these endpoints, whose ids may be known."""
        for endpoint, node in endpoints.items():
            self.lane.run(self._connect, endpoint, node)
        self._changed()  # whoever leads waits for the new descriptors, too

    def _connect(self, endpoint: str, node: str | None) -> None:
        debug_assert_on_lane(self.lane)
        link = _Link(endpoint, node)
        self._links.append(link)
        self._open(link)

    def _open(self, link: _Link) -> None:
        debug_assert_on_lane(self.lane)
        link.alias = self._out.run(self._out.connect, link.endpoint, self._identity.key_of(link.node))
        link.token = next(_tokens)
        link.open_at = None
        link.leaving = False
        self._say(link, Kind.HELLO)

    def _say(self, link: _Link, kind: Kind) -> None:
        me = self._me
        said = Introduction(
            me.mesh, me.node, me.generation, link.endpoint, link.endpoint, {}, me.max_record_bytes, link.token
        )
        try:
            self._out.run(self._out.send, link.alias, pack(kind, b"", b"", said.pack(), generation=0), _nobody_waits)
        except Unavailable:
            return  # the monitor tells

    # -- what they say ----------------------------------------------------------------------------------------------

    def on_welcome(self, alias: bytes, them: Introduction) -> None:
        self.lane.run(self._on_welcome, alias, them)

    def _on_welcome(self, alias: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._link(alias)
        if link is None or link.token != them.answers or them.mesh != self._me.mesh:
            return
        if not self._identity.fits(link.node, them):
            raise ProtocolError(f"the server at {link.endpoint} says that it is {them.node!r}, not {link.node!r}")
        namesake = self.ready.get(them.node)
        if namesake is not None and namesake.generation != them.generation and namesake.data_alias != alias:
            _log.warning(
                "two servers of channel %s are called %r: the one at %s is not used", them.mesh, them.node, link.endpoint
            )
            return
        link.failures = 0
        if link.peer is None:
            self._liveness.watch(alias, self._now())
        link.peer = Peer(them.node, them.node.encode(), them.generation, alias, them.channels, them.max_record_bytes)
        self._publish()

    def on_leaving(self, alias: bytes) -> None:
        self.lane.run(self._on_leaving, alias)

    def _on_leaving(self, alias: bytes) -> None:
        debug_assert_on_lane(self.lane)
        link = self._link(alias)
        if link is not None:
            link.leaving = True
            self._publish()

    def acknowledge(self, alias: bytes) -> None:
        """The server asks whether we are there."""
        self.lane.run(self._acknowledge, alias)

    def _acknowledge(self, alias: bytes) -> None:
        debug_assert_on_lane(self.lane)
        link = self._link(alias)
        if link is not None:
            self._say(link, Kind.ACK)

    def heard(self, aliases: set[bytes]) -> None:
        """Records came from these, in this rotation."""
        self.lane.run(self._heard, aliases)

    def _heard(self, aliases: set[bytes]) -> None:
        debug_assert_on_lane(self.lane)
        self._liveness.heard(aliases, self._now())

    # -- loss -------------------------------------------------------------------------------------------------------

    def lost(self, alias: Lost) -> None:
        self.lane.run(self._on_lost, alias)

    def _on_lost(self, alias: Lost) -> None:
        debug_assert_on_lane(self.lane)
        link = self._link(alias)
        if link is not None:
            self._lost(link)

    def _lost(self, link: _Link) -> None:
        debug_assert_on_lane(self.lane)
        peer, link.peer = link.peer, None
        self._liveness.forget(link.alias)
        self._out.run(self._out.disconnect, link.alias)
        self._publish()
        if peer is not None:
            self._operations.peer_lost(peer.data_alias)
        link.alias = b""
        link.open_at = self._now() + min(LEAST_REST * 2**link.failures, MOST_REST)
        link.failures += 1

    def manage(self, now: float) -> float | None:
        """Connect again after a rest, probe the silent, give up the dead; returns when to look again (monotonic)."""
        return self.lane.run(self._manage, now)

    def _manage(self, now: float) -> float | None:
        debug_assert_on_lane(self.lane)
        for link in self._links:
            if link.open_at is not None and link.open_at <= now:
                self._open(link)
        self._look_who_lives(now)
        times = [self._liveness.next(), *(link.open_at for link in self._links)]
        return min((time for time in times if time is not None), default=None)

    def _look_who_lives(self, now: float) -> None:
        debug_assert_on_lane(self.lane)
        ask, dead = self._liveness.look(now)
        for link in self._links:
            if link.alias in dead:
                _log.warning("nothing was heard of the server at %s: it is given up for dead", link.endpoint)
                self._lost(link)
            elif link.alias not in ask:
                continue
            elif self._out.run(self._out.is_full, link.alias):
                self._liveness.not_asked(link.alias)  # it would only pile up
            else:
                self._say(link, Kind.PROBE)

    # -- candidates -------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        debug_assert_on_lane(self.lane)
        peers = [link.peer for link in self._links if link.peer is not None and not link.leaving]
        self.ready = {peer.node: peer for peer in peers}
        self.selector.replace({peer.identifier: (peer, max(peer.channels.values(), default=0)) for peer in peers})
        self._changed()
        self.watchers.notify()

    def _link(self, alias: bytes) -> _Link | None:
        return next((link for link in self._links if link.alias == alias), None)


def _nobody_waits(error: ZLinkError | None) -> None:
    """For control records: when one is not accepted, the connection is gone, and the monitor tells."""
