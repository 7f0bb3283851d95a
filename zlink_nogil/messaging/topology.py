"""`Topology`: which nodes there are, and who of them can be chosen (decisions 5, 6; design 4.2 E2, 4.7).

A pairing of A with B:

    A  data-out        -> B  data-in          HELLO    who I am, how to reach me
    B  completion-out  -> A  completion-in    WELCOME  your hello arrived, and this is the way replies come: B is ready
    B  data-out        -> A  data-in          HELLO    the same from the other side
    A  completion-out  -> B  completion-in    WELCOME  A is ready

What comes first on a completion connection says whose it is (ACK, where no WELCOME is due): answers count from there.
The outgoing connections are `Links`, who is behind the others `Senders`.

Guarantees
    A node is a candidate only after its welcome for the current connection and life. When a connection is lost, both of
    its link are dropped, the node stops being a candidate, its pending operations end, and the link is made again under
    fresh aliases. Of nodes that nobody named in `peers` and that are not ready, at most `MOST_UNREADY` have a link.

Ownership
    on `lane`    everything; for what others read see `Senders` and `Candidates`
    Lock order: this lane, then a selector's, then the operation or completion lane (decision 8).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import Lost, OutSocket
from zlink_nogil.errors import ProtocolError, ZLinkError
from zlink_nogil.messaging.candidates import Candidates
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.links import Links
from zlink_nogil.messaging.liveness import Liveness
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.peers import ANY_MESH, CLIENT_SERVER, Introduction, Link, Peer, Source
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.senders import Senders
from zlink_nogil.messaging.wire import Kind
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Topology"]

LAST_ANSWERS: Final = 0.5
"""Seconds that answers of a node that left in good order may come after its connection has ended."""
MOST_UNREADY: Final = 1024
LIFE_BYTES: Final = 8
"""Of a routing id, after the node's name."""
_log = logging.getLogger("zlink_nogil.messaging")


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
        self.lane = StateLane(f"topology {me.node}", rank=Rank.TOPOLOGY)
        self.links = Links(self.lane, me, operations.out, completion_out, identity)
        self._operations = operations
        self._identity = identity
        self._farewells: deque[tuple[float, Peer]] = deque()
        self._liveness: Liveness[str] = Liveness(probe_interval, dead_after)  # by node
        self.senders = Senders()
        self.given_up = 0
        """Nodes that told of themselves and never were ready; read by anybody."""
        self.candidates = Candidates(self.lane)

    @property
    def me(self) -> Introduction:
        return self.links.me

    def static_endpoints_ready(self, _ready: Mapping[str, Peer]) -> bool:
        """Is every node named in `peers` ready?"""
        return self.lane.run(lambda: all(link.peer is not None for link in self.links if link.static))

    # -- connecting -------------------------------------------------------------------------------------------------

    def connect(self, endpoints: Mapping[str, str | None]) -> None:
        """Begin to pair with the nodes at these data endpoints, whose ids may be known."""
        for endpoint, node in endpoints.items():
            self.lane.run(self._connect, endpoint, node)
        self._operations.wake()  # so that somebody looks in time

    def _connect(self, endpoint: str, node: str | None) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.to(endpoint)
        if link is None:
            self.links.open(Link(endpoint, static=True, node=node))
        else:  # it was faster than we
            link.static = True

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
        self.senders.asks(routing_id, Source(them.node, them.generation, them.max_record_bytes, link))
        self.links.tell(Kind.WELCOME, link, answers=them.token)

    def on_welcome(self, routing_id: bytes, them: Introduction) -> None:
        """A node answers the hello of our link `them.answers`, and further answers come from there."""
        self.lane.run(self._on_welcome, routing_id, them)

    def _on_welcome(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.by_token.get(them.answers)
        if link is None or not self._acceptable(them):
            return  # for a connection that was given up meanwhile
        if not self._identity.fits(link.node, them):
            raise ProtocolError(f"node {them.node!r} answers what was said to {link.node!r}")
        link = self._adopt(link, them)
        self._answers(routing_id, link)
        if link.token == them.answers:
            self.links.welcome(link)
            self._liveness.watch(them.node, _sync.monotonic())
            self._publish()
            self._operations.wake()  # so that somebody looks in time

    def on_new_way(self, routing_id: bytes, them: Introduction) -> None:
        """A node's answers come by another connection from now on."""
        self.lane.run(self._on_new_way, routing_id, them)

    def _on_new_way(self, routing_id: bytes, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.to_life(them)
        if link is not None:
            self._answers(routing_id, link)

    def _answers(self, routing_id: bytes, link: Link) -> None:
        debug_assert_on_lane(self.lane)
        self.senders.answers(routing_id, link.data_alias)
        self._forget_answering()

    def _forget_answering(self) -> None:
        """Of connections whose operations are all over."""
        known = {known.data_alias for known in self.links} | {peer.data_alias for _, peer in self._farewells}
        self.senders.answers_only(known)

    def on_leaving(self, them: Introduction) -> None:
        """A node wants nothing new: it is no candidate any more, and is told after our last record to it."""
        self.lane.run(self._on_leaving, them)

    def _on_leaving(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.to_life(them)
        if link is not None:
            link.leaving = True
            self._publish()
            self.links.say_last(link)

    def on_channels(self, them: Introduction) -> None:
        """A node says anew what it offers, and at which weights."""
        self.lane.run(self._on_channels, them)

    def _on_channels(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.to_life(them)
        if link is not None:
            link.them = replace(link.them or them, channels=them.channels)
            link.peer = None  # seen anew
            self._publish()

    def offer(self, channels: Mapping[str, int]) -> None:
        """Tell every node what this one offers from now on."""
        self.lane.run(self._offer, channels)

    def _offer(self, channels: Mapping[str, int]) -> None:
        debug_assert_on_lane(self.lane)
        self.links.me = replace(self.me, channels=channels)
        for link in self.links:
            self.links.tell(Kind.CHANNELS, link)

    def on_left(self, them: Introduction) -> None:
        """A node has sent us its last record."""
        self.lane.run(self._on_left, them)

    def _on_left(self, them: Introduction) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.by_node.get(them.node)
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
        link = self.links.by_token.get(them.answers)
        if link is None or not self._identity.fits(link.node, them):  # tokens can be guessed
            known = self.links.to_life(them)
            if known is not None:
                return known
            link = self.links.to(them.data_endpoint)
            if link is not None and not self._identity.fits(link.node, them):
                self._yield_place(link, them)
                link = None
        if link is None:
            unready = self.links.unready()
            for oldest in unready[: max(0, len(unready) - MOST_UNREADY + 1)]:
                self._give_up(oldest)
            link = Link(them.data_endpoint, static=False, node=them.node)
            self.links.open(link, answers=them.token)
        elif link.open_at is not None:  # it has come back by itself
            self.links.open(link, answers=them.token)
        return link

    def _yield_place(self, link: Link, them: Introduction) -> None:
        """`them` are said to be where `link` leads to another node: true only if that one is gone. `ProtocolError`."""
        if link.static or link.them is not None:
            raise ProtocolError(f"node {them.node!r} says that it is at {link.endpoint}, where {link.node!r} is")
        self._drop(link)

    def _adopt(self, link: Link, them: Introduction) -> Link:
        """`link` leads to `them`: one link per node, and its completion connection. Returns the link that is kept."""
        known = self.links.by_node.get(them.node)
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
        self.links.complete(link, them)
        return link

    # -- loss -------------------------------------------------------------------------------------------------------

    def lost(self, alias: Lost) -> None:
        """A connection went down: both connections of its link are made again."""
        self.lane.run(self._on_lost, alias)

    def _on_lost(self, alias: Lost) -> None:
        debug_assert_on_lane(self.lane)
        link = self.links.over(alias)
        if link is not None:
            self._lost(link)

    def _lost(self, link: Link) -> None:
        peer, leaving = link.peer, link.leaving
        self._disconnect(link)
        self._publish()
        if peer is not None and leaving:  # it went in good order: what it answered is on its way, by the other connection
            self._farewells.append((_sync.monotonic() + LAST_ANSWERS, peer))
        elif peer is not None:
            self._operations.peer_lost(peer.data_alias)
        self.links.make_again(link)
        self._operations.wake()

    def _give_up(self, link: Link) -> None:
        if not link.was_ready:
            _log.info("node %r, said to be at %s, never was ready: it is given up", link.node, link.endpoint)
            self.given_up += 1
        self._drop(link)

    def _drop(self, link: Link) -> None:
        self._disconnect(link)
        self.senders.asks_no_more(link)
        self._forget_answering()

    def _disconnect(self, link: Link) -> None:
        them = self.links.disconnect(link)
        if them is not None:
            self._liveness.forget(them.node)

    def heard(self, routing_ids: Iterable[bytes]) -> None:
        """Records came over these connections, in this rotation: their names begin with the node's."""
        self.lane.run(self._heard, {bytes(routing_id[:-LIFE_BYTES]) for routing_id in routing_ids})

    def _heard(self, nodes: set[bytes]) -> None:
        debug_assert_on_lane(self.lane)
        names = [node.decode(errors="replace") for node in nodes]
        now = _sync.monotonic()
        self._liveness.heard(names, now)
        self.links.heard(names, now)

    def on_probe(self, routing_id: bytes) -> None:
        """A node asks over its data connection; the answer goes the way of answers."""
        self.lane.run(self._on_probe, routing_id)

    def _on_probe(self, routing_id: bytes) -> None:
        debug_assert_on_lane(self.lane)
        source = _sync.look_up(self.senders.asking, routing_id)
        if source is not None:
            self.links.tell(Kind.ACK, source.link)

    def _look_who_lives(self, now: float) -> None:
        debug_assert_on_lane(self.lane)
        ask, dead = self._liveness.look(now)
        for node in ask:
            if not self.links.ask(Kind.PROBE, self.links.by_node[node]):
                self._liveness.not_asked(node)  # it would only pile up
        for node in dead:
            _log.warning("nothing was heard of node %r: it is given up for dead", node)
            self._lost(self.links.by_node[node])

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
        over, times = self.links.due(now)
        for link in over:
            self._give_up(link)
        upcoming += times
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
        for link in self.links:
            self.links.tell(Kind.LEAVING, link)

    def forget_unready(self) -> None:
        """Nothing but a hello waits for a node that is not ready: the end of the context must not wait for it."""
        self.lane.run(self._forget_unready)

    def _forget_unready(self) -> None:
        debug_assert_on_lane(self.lane)
        for link in [link for link in self.links if link.peer is None]:
            self._disconnect(link)

    def _all_left(self, _ready: Mapping[str, Peer]) -> bool:
        return self.lane.run(lambda: all(link.left for link in self.links if link.completion_alias))

    # -- candidates -------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Bring `ready` and every selector to the links' present state."""
        for link in self.links:
            link.peer = self._view(link)
        self.candidates.publish([link.peer for link in self.links if link.peer and not link.leaving])

    def _view(self, link: Link) -> Peer | None:
        them = link.them
        if them is None or not link.welcomed:
            return None
        if link.peer is not None and link.peer.data_alias == link.data_alias:
            return link.peer
        return Peer(them.node, them.node.encode(), them.generation, link.data_alias, them.channels, them.max_record_bytes)
