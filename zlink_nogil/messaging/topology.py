"""`Topology`: which nodes there are, and who of them can be chosen (decisions 5, 6; design 4.2 E2, 4.7).

A pairing of A with B:

    A  data-out        -> B  data-in          HELLO    who I am, how to reach me
    B  completion-out  -> A  completion-in    WELCOME  your hello arrived, and this is the way replies come: B is ready
    B  data-out        -> A  data-in          HELLO    the same from the other side
    A  completion-out  -> B  completion-in    WELCOME  A is ready

What comes first on a completion connection says whose it is (ACK, where no WELCOME is due): answers count from there.

Guarantees
    A node is a candidate only after its welcome for the current connection and life. When a connection is lost, both of
    its link are dropped, the node stops being a candidate, its pending operations end, and the link is made again under
    fresh aliases; a node that was not named in `peers` is given up after `PATIENCE`.

Ownership
    on `lane`    everything but `sources` (written on the lane, single operations read by the ingress leader)
    Lock order: this lane, then a selector's, then the operation or completion lane (decision 8).
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import Lost, OutSocket
from zlink_nogil.errors import ProtocolError, Unavailable, ZLinkError
from zlink_nogil.messaging.candidates import Candidates
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.liveness import Liveness
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import ANY_MESH, CLIENT_SERVER, Introduction, Link, Peer, Source
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.senders import Senders
from zlink_nogil.messaging.wire import Kind, pack
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Topology"]

LAST_ANSWERS: Final = 0.5
"""Seconds that answers of a node that left in good order may come after its connection has ended."""
PATIENCE: Final = 15.0
"""Seconds until a node that went away, and that nobody named in `peers`, is given up."""
LASTING: Final = 1.0
"""Seconds a connection must have lasted for the next one to be made at once."""
LEAST_REST: Final = 0.05
MOST_REST: Final = 5.0
"""Seconds between connections that do not last: at first, and at most."""
LIFE_BYTES: Final = 8
"""Of a routing id, after the node's name."""
KEPT_SOURCES: Final = 4
"""Connections of one node from which records may still be read."""

_log = logging.getLogger("zlink_nogil.messaging")
_tokens = itertools.count(1)


class Topology:
    def __init__(
        self,
        me: Introduction,
        operations: Operations,
        completion_out: OutSocket,
        identity: Identity,
        probe_interval: float,
        dead_after: float,
    ) -> None:
        self.me = me
        self.lane = StateLane(f"topology {me.node}", rank=Rank.TOPOLOGY)
        self.sources: dict[bytes, Source] = {}
        self._operations = operations
        self._data_out = operations.out
        self._completion_out = completion_out
        self._identity = identity
        self._farewells: deque[tuple[float, Peer]] = deque()
        self._links: dict[int, Link] = {}  # by token
        self._by_node: dict[str, Link] = {}
        self._liveness: Liveness[str] = Liveness(probe_interval, dead_after)  # by node
        self.senders = Senders()
        self.candidates = Candidates(self.lane)

    def static_endpoints_ready(self, _ready: Mapping[str, Peer]) -> bool:
        """Is every node named in `peers` ready?"""
        return self.lane.run(lambda: all(link.peer is not None for link in self._links.values() if link.static))

    # -- connecting -------------------------------------------------------------------------------------------------

    def connect(self, endpoints: Mapping[str, str | None]) -> None:
        """Begin to pair with the nodes at these data endpoints, whose ids may be known."""
        for endpoint, node in endpoints.items():
            self.lane.run(self._connect, endpoint, node)

    def _connect(self, endpoint: str, node: str | None) -> None:
        debug_assert_on_lane(self.lane)
        link = self._link_to(endpoint)
        if link is None:
            self._open(Link(endpoint, static=True, node=node), answers=0)
        else:  # it was faster than we
            link.static = True
            link.give_up_at = None

    def _link_to(self, endpoint: str) -> Link | None:
        return next((link for link in self._links.values() if link.endpoint == endpoint), None)

    def _open(self, link: Link, answers: int) -> None:
        """(Re)connect the data connection under a fresh alias and say hello on it."""
        debug_assert_on_lane(self.lane)
        link.data_alias = self._data_out.run(self._data_out.connect, link.endpoint, self._identity.key_of(link.node))
        link.opened_at = _sync.monotonic()
        link.open_at = None
        self._register(link)
        self._say(Kind.HELLO, self._data_out, link.data_alias, link.token, answers)

    def _register(self, link: Link) -> None:
        self._links.pop(link.token, None)
        link.token = next(_tokens)
        self._links[link.token] = link

    def _say(self, kind: Kind, out: OutSocket, alias: bytes, token: int = 0, answers: int = 0) -> None:
        me = self.me
        introduction = Introduction(
            me.mesh,
            me.node,
            me.generation,
            me.data_endpoint,
            me.completion_endpoint,
            me.channels,
            me.max_record_bytes,
            token,
            answers,
        )
        record = pack(kind, b"", b"", introduction.pack(), generation=0)
        try:
            out.run(out.send, alias, record, _nobody_waits)
        except Unavailable:
            return  # the connection is down; the monitor tells, and what follows says it again

    # -- what the others say ----------------------------------------------------------------------------------------

    def vouch(self, them: Introduction, user: str | None) -> None:
        """`ProtocolError` unless who introduces himself so has the key for it."""
        self._identity.check(them, user)

    def on_hello(self, routing_id: bytes, them: Introduction) -> None:
        """A node has connected to our data-in socket. `ValueError` when nothing can connect to where it says it is."""
        self.lane.run(self._on_hello, routing_id, them)

    def _on_hello(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        if not self._acceptable(them):
            return
        link = self._link_for(them)
        try:
            link = self._adopt(link, them)
        except ValueError:
            if link.them is None and not link.static:
                self._drop(link)
            raise
        self.sources[routing_id] = Source(them.node, them.generation, them.max_record_bytes, link)
        former = [rid for rid, source in self.sources.items() if source.link is link]
        for rid in former[:-KEPT_SOURCES]:
            del self.sources[rid]
        assert link.completion_alias is not None, "an adopted link has its completion connection"
        self._say(Kind.WELCOME, self._completion_out, link.completion_alias, answers=them.token)

    def on_welcome(self, routing_id: bytes, them: Introduction) -> None:
        """A node answers the hello of our link `them.answers`, and further answers come from there."""
        self.lane.run(self._on_welcome, routing_id, them)

    def _on_welcome(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._links.get(them.answers)
        if link is None or not self._acceptable(them):
            return  # for a connection that was given up meanwhile
        if not self._identity.fits(link.node, them):
            raise ProtocolError(f"node {them.node!r} answers what was said to {link.node!r}")
        link = self._adopt(link, them)
        self._answers(routing_id, link)
        if link.token == them.answers:
            link.welcomed = True
            self._liveness.watch(them.node, _sync.monotonic())
            self._publish()
            self._operations.wake()  # so that somebody looks in time

    def on_new_way(self, routing_id: bytes, them: Introduction) -> None:
        """A node's answers come by another connection from now on."""
        self.lane.run(self._on_new_way, routing_id, them)

    def _on_new_way(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._by_node.get(them.node)
        if link is not None and link.them is not None and link.them.generation == them.generation:
            self._answers(routing_id, link)

    def _answers(self, routing_id: bytes, link: Link) -> None:
        debug_assert_on_lane(self.lane)
        self.senders.answers(routing_id, link.data_alias)
        self._forget_answering()

    def _forget_answering(self) -> None:
        """Of connections whose operations are all over."""
        known = {known.data_alias for known in self._links.values()} | {peer.data_alias for _, peer in self._farewells}
        self.senders.answers_only(known)

    def on_leaving(self, them: Introduction) -> None:
        """A node wants nothing new: it is no candidate any more, and is told after our last record to it."""
        self.lane.run(self._on_leaving, them)

    def _on_leaving(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._by_node.get(them.node)
        if link is None or link.them is None or link.them.generation != them.generation:
            return
        link.leaving = True
        self._publish()
        self._say(Kind.LEFT, self._data_out, link.data_alias)

    def on_channels(self, them: Introduction) -> None:
        """A node says anew what it offers, and at which weights."""
        self.lane.run(self._on_channels, them)

    def _on_channels(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._by_node.get(them.node)
        if link is None or link.them is None or link.them.generation != them.generation:
            return
        link.them = replace(link.them, channels=them.channels)
        link.peer = None  # seen anew
        self._publish()

    def offer(self, channels: Mapping[str, int]) -> None:
        """Tell every node what this one offers from now on."""
        self.lane.run(self._offer, channels)

    def _offer(self, channels: Mapping[str, int]) -> None:
        debug_assert_on_lane(self.lane)
        self.me = replace(self.me, channels=channels)
        for link in list(self._by_node.values()):
            if link.completion_alias is not None:
                self._say(Kind.CHANNELS, self._completion_out, link.completion_alias)

    def on_left(self, them: Introduction) -> None:
        """A node has sent us its last record."""
        self.lane.run(self._on_left, them)

    def _on_left(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self._by_node.get(them.node)
        if link is not None:
            link.left = True
            self.candidates.notify()

    def _acceptable(self, them: Introduction) -> bool:
        if them.mesh != self.me.mesh and ANY_MESH not in (them.mesh, self.me.mesh):
            level = logging.INFO if them.mesh.startswith(CLIENT_SERVER) else logging.WARNING  # a caller that tries both ways
            _log.log(level, "node %r of mesh %r is not of mesh %r: refused", them.node, them.mesh, self.me.mesh)
            return False
        if them.node == self.me.node:
            _log.warning("node %r meets its own name at %s: refused", them.node, them.data_endpoint)
            return False
        return True

    def _link_for(self, them: Introduction) -> Link:
        """The link that leads to whoever says hello, or a new one."""
        link = self._links.get(them.answers)
        if link is None or not self._identity.fits(link.node, them):  # tokens can be guessed
            known = self._by_node.get(them.node)
            if known is not None and known.them is not None and known.them.generation == them.generation:
                return known
            link = self._link_to(them.data_endpoint)
            if link is not None and not self._identity.fits(link.node, them):
                self._yield_place(link, them)
                link = None
        if link is None:
            link = Link(them.data_endpoint, static=False, node=them.node)
            self._open(link, answers=them.token)
        elif link.open_at is not None:  # it has come back by itself
            self._open(link, answers=them.token)
        return link

    def _yield_place(self, link: Link, them: Introduction) -> None:
        """`them` are said to be where `link` leads to another node: true only if that one is gone. `ProtocolError`."""
        if link.static or link.them is not None:
            raise ProtocolError(f"node {them.node!r} says that it is at {link.endpoint}, where {link.node!r} is")
        self._drop(link)

    def _adopt(self, link: Link, them: Introduction) -> Link:
        """`link` leads to `them`: one link per node, and its completion connection. Returns the link that is kept."""
        known = self._by_node.get(them.node)
        if known is not None and known is not link and known.them is not None:
            if known.them.generation == them.generation:
                known.static = known.static or link.static
                self._drop(link)
                link = known
            else:
                _log.warning("node %r has a new life elsewhere, at %s", them.node, them.data_endpoint)
                self._lost(known)
        if link.them is not None and link.them.generation != them.generation:
            self._lost(link)  # a new life at the same place, and the old one's end was not seen yet
        if link.completion_alias is None:
            key = self._identity.key_of(them.node)
            link.completion_alias = self._completion_out.run(self._completion_out.connect, them.completion_endpoint, key)
            self._say(Kind.ACK, self._completion_out, link.completion_alias)
        link.them = them
        link.give_up_at = None
        self._by_node[them.node] = link
        return link

    # -- loss -------------------------------------------------------------------------------------------------------

    def lost(self, alias: Lost) -> None:
        """A connection went down: both connections of its link are made again."""
        self.lane.run(self._on_lost, alias)

    def _on_lost(self, alias: Lost) -> None:
        debug_assert_on_lane(self.lane)
        link = next((known for known in self._links.values() if alias in (known.data_alias, known.completion_alias)), None)
        if link is not None:
            self._lost(link)

    def _lost(self, link: Link) -> None:
        peer, leaving = link.peer, link.leaving
        self._disconnect(link)
        self._publish()
        now = _sync.monotonic()
        if peer is not None and leaving:  # it went in good order: what it answered is on its way, by the other connection
            self._farewells.append((now + LAST_ANSWERS, peer))
            self._operations.wake()
        elif peer is not None:
            self._operations.peer_lost(peer.data_alias)
        if not link.static:
            link.give_up_at = link.give_up_at or now + PATIENCE
        link.failures = 0 if now - link.opened_at >= LASTING else link.failures + 1
        if link.failures <= 1:
            self._open(link, answers=0)
        else:  # somebody who accepts and hangs up, or two nodes of one name
            link.open_at = now + min(LEAST_REST * 2 ** (link.failures - 2), MOST_REST)
            self._register(link)
            self._operations.wake()

    def _drop(self, link: Link) -> None:
        self._disconnect(link)
        self.sources = {rid: source for rid, source in self.sources.items() if source.link is not link}
        self._forget_answering()

    def _disconnect(self, link: Link) -> None:
        self._links.pop(link.token, None)
        if link.them is not None and self._by_node.get(link.them.node) is link:
            del self._by_node[link.them.node]
            self._liveness.forget(link.them.node)
        self._data_out.run(self._data_out.disconnect, link.data_alias)
        if link.completion_alias is not None:
            self._completion_out.run(self._completion_out.disconnect, link.completion_alias)
        link.data_alias = b""
        link.completion_alias = link.them = link.peer = None
        link.welcomed = link.leaving = link.left = False

    def heard(self, routing_ids: Iterable[bytes]) -> None:
        """Records came over these connections, in this rotation: their names begin with the node's."""
        self.lane.run(self._heard, {bytes(routing_id[:-LIFE_BYTES]) for routing_id in routing_ids})

    def _heard(self, nodes: set[bytes]) -> None:
        debug_assert_on_lane(self.lane)
        self._liveness.heard((node.decode(errors="replace") for node in nodes), _sync.monotonic())

    def on_probe(self, routing_id: bytes) -> None:
        """A node asks over its data connection; the answer goes the way of answers."""
        self.lane.run(self._on_probe, routing_id)

    def _on_probe(self, routing_id: bytes) -> None:
        debug_assert_on_lane(self.lane)
        source = _sync.look_up(self.sources, routing_id)
        if source is not None and source.link.completion_alias is not None:
            self._say(Kind.ACK, self._completion_out, source.link.completion_alias)

    def _look_who_lives(self, now: float) -> None:
        debug_assert_on_lane(self.lane)
        ask, dead = self._liveness.look(now)
        for node in ask:
            alias = self._by_node[node].data_alias
            if self._data_out.run(self._data_out.is_full, alias):
                self._liveness.not_asked(node)  # it would only pile up
            else:
                self._say(Kind.PROBE, self._data_out, alias)
        for node in dead:
            _log.warning("nothing was heard of node %r: it is given up for dead", node)
            self._lost(self._by_node[node])

    def manage(self) -> float | None:
        """Connect again after a rest, give up nodes that stay away; returns when to look again (monotonic), None: never."""
        return self.lane.run(self._manage)

    def _manage(self) -> float | None:
        debug_assert_on_lane(self.lane)
        now = _sync.monotonic()
        while self._farewells and self._farewells[0][0] <= now:
            self._operations.peer_lost(self._farewells.popleft()[1].data_alias)
            self._forget_answering()
        upcoming = [self._farewells[0][0]] if self._farewells else []
        for link in list(self._links.values()):
            if link.give_up_at is not None and link.give_up_at <= now:
                self._drop(link)
                continue
            if link.open_at is not None and link.open_at <= now:
                self._open(link, answers=0)
            upcoming += [time for time in (link.give_up_at, link.open_at) if time is not None]
        self._look_who_lives(now)
        look_at = self._liveness.next()
        if look_at is not None:
            upcoming.append(look_at)
        return min(upcoming, default=None)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def leave(self, timeout: float) -> None:
        """Ask every ready node to choose us no more, and wait until each has sent its last record; at most `timeout` s."""
        self.lane.run(self._leave)
        try:
            self.candidates.wait(self._all_left, timeout, "the other nodes' farewells are")
        except ZLinkError as error:
            _log.info("leaving without all farewells: %s", error)

    def _leave(self) -> None:
        debug_assert_on_lane(self.lane)
        for link in list(self._by_node.values()):
            if link.completion_alias is not None:
                self._say(Kind.LEAVING, self._completion_out, link.completion_alias)

    def forget_unready(self) -> None:
        """Nothing but a hello waits for a node that is not ready: the end of the context must not wait for it."""
        self.lane.run(self._forget_unready)

    def _forget_unready(self) -> None:
        debug_assert_on_lane(self.lane)
        for link in [link for link in self._links.values() if link.peer is None]:
            self._disconnect(link)

    def _all_left(self, _ready: Mapping[str, Peer]) -> bool:
        return self.lane.run(lambda: all(link.left for link in self._by_node.values() if link.completion_alias))

    # -- candidates -------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Bring `ready` and every selector to the links' present state."""
        for link in self._links.values():
            link.peer = self._view(link)
        self.candidates.publish([link.peer for link in self._links.values() if link.peer and not link.leaving])

    def _view(self, link: Link) -> Peer | None:
        them = link.them
        if them is None or not link.welcomed:
            return None
        if link.peer is not None and link.peer.data_alias == link.data_alias:
            return link.peer
        return Peer(them.node, them.node.encode(), them.generation, link.data_alias, them.channels, them.max_record_bytes)


def _nobody_waits(error: ZLinkError | None) -> None:
    """For control records: when one is not accepted, the connection is gone, and that is noticed elsewhere."""
