"""`Links`: the outgoing half of a topology - a data and a completion connection to each node, made again when lost.

Guarantees
    Each data connection has a fresh alias and a fresh token. Between connections that do not last there is a rest. A node
    that was not named in `peers` is given up when it is not ready, and not heard of, for `PATIENCE`. Who does not welcome us
    hears our hello again: it may have given us up. What is said first on a completion connection is whose it is.

Ownership
    on `lane`, the topology's    everything
    Lock order: this lane, then the operation or completion lane (decision 8).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import Lost, OutSocket
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.peers import Introduction, Link
from zlink_nogil.messaging.wire import Kind, pack
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Links"]

PATIENCE: Final = 15.0
"""Seconds until a node that is away or never was there, and that nobody named in `peers`, is given up."""
LASTING: Final = 1.0
"""Seconds a connection must have lasted for the next one to be made at once."""
LEAST_REST: Final = 0.05
MOST_REST: Final = 5.0
"""Seconds between connections that do not last: at first, and at most."""

HELLO_AGAIN: Final = 5.0
MOST_HELLO_AGAIN: Final = 60.0
"""Seconds between two hellos to who does not welcome us: at first, and at most."""

_tokens = itertools.count(1)


class Links:
    """`me` is what is said of this node."""

    def __init__(
        self, lane: StateLane, me: Introduction, data_out: OutSocket, completion_out: OutSocket, identity: Identity
    ) -> None:
        self.me = me
        self.by_token: dict[int, Link] = {}
        self.by_node: dict[str, Link] = {}
        self._lane = lane
        self._data_out = data_out
        self._completion_out = completion_out
        self._identity = identity

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self.by_token.values()))

    def to(self, endpoint: str) -> Link | None:
        return next((link for link in self if link.endpoint == endpoint), None)

    def over(self, alias: Lost) -> Link | None:
        return next((link for link in self if alias in (link.data_alias, link.completion_alias)), None)

    def to_life(self, them: Introduction) -> Link | None:
        """The link to who says so, if it leads to this very life of his."""
        link = _sync.look_up(self.by_node, them.node)
        return link if link is not None and link.them is not None and link.them.generation == them.generation else None

    # -- connections ------------------------------------------------------------------------------------------------

    def open(self, link: Link, answers: int = 0) -> None:
        """(Re)connect the data connection under a fresh alias and say hello on it."""
        debug_assert_on_lane(self._lane)
        link.data_alias = self._data_out.run(self._data_out.connect, link.endpoint, self._identity.key_of(link.node))
        link.opened_at = now = _sync.monotonic()
        link.open_at = None
        link.hello_at, link.hellos = now + HELLO_AGAIN, 0
        if not link.static:
            link.give_up_at = link.give_up_at or now + PATIENCE
        self._register(link)
        self._say(Kind.HELLO, self._data_out, link.data_alias, link.token, answers)

    def _register(self, link: Link) -> None:
        self.by_token.pop(link.token, None)
        link.token = next(_tokens)
        self.by_token[link.token] = link

    def complete(self, link: Link, them: Introduction) -> None:
        """`link` leads to `them`: connect the completion connection, if there is none. `ValueError` where that cannot be."""
        debug_assert_on_lane(self._lane)
        if link.completion_alias is None:
            key = self._identity.key_of(them.node)
            link.completion_alias = self._completion_out.run(self._completion_out.connect, them.completion_endpoint, key)
            self.tell(Kind.ACK, link)
        link.them = them
        self.by_node[them.node] = link
        self.heard([them.node], _sync.monotonic())

    def welcome(self, link: Link) -> None:
        """It is ready."""
        debug_assert_on_lane(self._lane)
        link.welcomed = link.was_ready = True
        link.give_up_at = link.hello_at = None

    def heard(self, nodes: Iterable[str], now: float) -> None:
        """They are there, ready or not."""
        debug_assert_on_lane(self._lane)
        for node in nodes:
            link = _sync.look_up(self.by_node, node)
            if link is not None and link.give_up_at is not None:
                link.give_up_at = now + PATIENCE

    def unready(self) -> list[Link]:
        """Links to nodes that nobody named in `peers` and that are not ready, the one to give up first at the beginning."""
        found = [(link.give_up_at, link.token, link) for link in self if link.give_up_at is not None and not link.static]
        return [link for _, _, link in sorted(found, key=lambda each: each[:2])]

    def disconnect(self, link: Link) -> Introduction | None:
        """Drop both connections; returns who was there, if it was his link."""
        debug_assert_on_lane(self._lane)
        self.by_token.pop(link.token, None)
        them = link.them
        if them is not None and _sync.look_up(self.by_node, them.node) is link:
            del self.by_node[them.node]
        else:
            them = None
        self._data_out.run(self._data_out.disconnect, link.data_alias)
        if link.completion_alias is not None:
            self._completion_out.run(self._completion_out.disconnect, link.completion_alias)
        link.data_alias = b""
        link.completion_alias = link.them = link.peer = None
        link.welcomed = link.leaving = link.left = False
        link.hello_at = None
        return them

    def make_again(self, link: Link) -> None:
        """After `disconnect`: at once, or, when it did not last, after a rest; `due` tells when."""
        debug_assert_on_lane(self._lane)
        now = _sync.monotonic()
        link.failures = 0 if now - link.opened_at >= LASTING else link.failures + 1
        if link.failures <= 1:
            self.open(link)
            return
        # somebody who accepts and hangs up, or two nodes of one name
        link.open_at = now + min(LEAST_REST * 2 ** (link.failures - 2), MOST_REST)
        if not link.static:
            link.give_up_at = link.give_up_at or now + PATIENCE
        self._register(link)

    def due(self, now: float) -> tuple[list[Link], list[float]]:
        """Connect again who has rested, say hello again; returns whom to give up, and when to look again."""
        debug_assert_on_lane(self._lane)
        over: list[Link] = []
        upcoming: list[float] = []
        for link in self:
            give_up_at = None if link.static else link.give_up_at
            if give_up_at is not None and give_up_at <= now:
                over.append(link)
                continue
            if link.open_at is not None and link.open_at <= now:
                self.open(link)
            if link.hello_at is not None and link.hello_at <= now:
                self._say_hello_again(link, now)
            upcoming += [time for time in (give_up_at, link.open_at, link.hello_at) if time is not None]
        return over, upcoming

    def _say_hello_again(self, link: Link, now: float) -> None:
        link.hellos += 1
        link.hello_at = now + min(HELLO_AGAIN * 2**link.hellos, MOST_HELLO_AGAIN)
        if self._data_out.run(self._data_out.is_up, link.data_alias):  # or else the first one still waits to go out
            self._say(Kind.HELLO, self._data_out, link.data_alias, link.token)

    # -- saying -----------------------------------------------------------------------------------------------------

    def ask(self, kind: Kind, link: Link) -> bool:
        """Over the data connection; False, and nothing said, when that is full already."""
        debug_assert_on_lane(self._lane)
        if self._data_out.run(self._data_out.is_full, link.data_alias):
            return False
        self._say(kind, self._data_out, link.data_alias)
        return True

    def tell(self, kind: Kind, link: Link, answers: int = 0) -> None:
        """Over the completion connection, if there is one."""
        debug_assert_on_lane(self._lane)
        if link.completion_alias is not None:
            self._say(kind, self._completion_out, link.completion_alias, answers=answers)

    def say_last(self, link: Link) -> None:
        """After our last record, over the data connection."""
        debug_assert_on_lane(self._lane)
        self._say(Kind.LEFT, self._data_out, link.data_alias)

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


def _nobody_waits(error: ZLinkError | None) -> None:
    """For control records: when one is not accepted, the connection is gone, and that is noticed elsewhere."""
