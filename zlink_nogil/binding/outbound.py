"""`OutSocket`: a ROUTER that connects to peers and is only sent on (decisions 3, 4, 5).

Guarantees
    Caller order is wire order, per peer: what a full peer cannot take waits in one FIFO per peer, and a new send joins
    it. A send never blocks. Each accepted send ends once: taken by the socket, or failed when the peer is gone. Since
    any send may eat the descriptor's edge, every send looks at the peers that wait for room.

Ownership
    everything here belongs to `lane`, which is also the socket's lock: methods that say "on lane" run in a turn of it
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

from zlink_nogil.binding.raw import Connected, Context, DealerSet, RawSocket
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Lost", "OutSocket", "Waiting"]

MOST_STRAYS: Final = 64
CROWDED_LOOK: Final = 0.01
"""Seconds."""

type Lost = bytes
"""The alias of a connection that went down."""

_aliases = itertools.count(1)


class Waiting:
    """A send that waits for room at its peer. `done(error)` is called once, on the lane: None when the socket took it."""

    __slots__ = ("done", "record")

    def __init__(self, record: bytes, done: Callable[[ZLinkError | None], None]) -> None:
        self.record: bytes | None = record
        self.done = done

    def abandon(self) -> None:
        """The sender gave up: do not send it, and hold its bytes and whoever waits no longer. Any thread."""
        self.record = None
        self.done = _nobody_waits


def _nobody_waits(error: ZLinkError | None) -> None:
    """In place of an abandoned send's `done`."""


class OutSocket:
    """`wake` makes the leader look again."""

    told_of = 1
    """Full peers whose news the descriptor brings; with more the leader has to come back by itself."""

    def __init__(
        self, context: Context, lane: StateLane, node_id: bytes, max_record_bytes: int, wake: Callable[[], None]
    ) -> None:
        self.lane = lane
        self._wake = wake
        self._node_id = node_id
        self._raw: RawSocket | DealerSet = self._open(context, max_record_bytes)
        self._raw.descriptors()  # connections are watched from the start
        self._endpoints: dict[bytes, str] = {}  # alias -> endpoint, of every connection
        self._by_fd: dict[int, bytes] = {}  # descriptor -> alias, of those that are up
        self._waiting: dict[bytes, deque[Waiting]] = {}  # never an empty deque

    def _open(self, context: Context, max_record_bytes: int) -> RawSocket | DealerSet:
        return context.router(max_record_bytes)

    def descriptors(self) -> Collection[int]:
        """Readable when `service` has something to do."""
        return self._raw.descriptors()

    def run[T](self, work: Callable[..., T], /, *args: Any) -> T:
        return self.lane.run(work, *args)

    # -- connections, on lane ---------------------------------------------------------------------------------------

    def connect(self, endpoint: str, key: str | None = None) -> bytes:
        """Start connecting; returns the connection's alias. What is sent at once waits in the connection.

        `key` is the public key that whoever is there must have, where there are keys.

        The routing id the peer sees is new for every connection, so no life can take the place of another (decision 5).
        `ValueError` for an unusable endpoint, and for one that is connected already: ZeroMQ cannot drop one of two.
        """
        debug_assert_on_lane(self.lane)
        if endpoint in self._endpoints.values():
            raise ValueError(f"there is a connection to {endpoint!r} already")
        alias = b"L" + next(_aliases).to_bytes(7, "big")
        self._raw.connect(endpoint, alias, self._node_id + os.urandom(8), key)
        self._endpoints[alias] = endpoint
        return alias

    def disconnect(self, alias: bytes) -> None:
        """Drop the connection; sends that wait for it end as `Unavailable`. Harmless for an unknown alias."""
        debug_assert_on_lane(self.lane)
        endpoint = self._endpoints.pop(alias, None)
        if endpoint is None:
            return
        self._by_fd = {fd: owner for fd, owner in self._by_fd.items() if owner != alias}
        self._raw.disconnect(endpoint)
        self._end_line(alias)
        self.retry()  # the call may have taken the news of another peer's room

    def _end_line(self, alias: bytes) -> None:
        debug_assert_on_lane(self.lane)
        for waiting in self._waiting.pop(alias, ()):
            waiting.done(Unavailable("the peer is gone; the message was not accepted"))

    # -- sending, on lane -------------------------------------------------------------------------------------------

    def send(self, alias: bytes, record: bytes, done: Callable[[ZLinkError | None], None]) -> Waiting | None:
        """None when the socket took the record at once; otherwise it waits for room and `done` is called later.

        Raises `Unavailable` when the connection is gone; nothing was accepted then.
        """
        debug_assert_on_lane(self.lane)
        if alias not in self._endpoints:  # ZeroMQ may still say "full" of a connection that is being dropped
            raise Unavailable("the peer is gone; the message was not accepted")
        if alias not in self._waiting:
            try:
                taken = self._raw.try_send(alias, record)
            except LookupError:
                self.retry()
                raise Unavailable("the peer is gone; the message was not accepted") from None
            if self._waiting:
                self.retry()
            if taken:
                return None
            self._waiting[alias] = deque()
            if len(self._waiting) > self.told_of:
                self._wake()
        line = self._waiting[alias]
        while line and line[-1].record is None:  # abandoned: what a stuck peer holds up does not pile up
            line.pop()
        waiting = Waiting(record, done)
        line.append(waiting)
        return waiting

    def retry(self) -> None:
        """Send what waits to every peer that has room again."""
        debug_assert_on_lane(self.lane)
        for alias, line in list(self._waiting.items()):
            try:
                while line:
                    record = line[0].record
                    if record is not None and not self._raw.try_send(alias, record):
                        break
                    waiting = line.popleft()
                    if record is not None:
                        waiting.done(None)
            except LookupError:
                self.disconnect(alias)
                continue
            if not line:
                self._waiting.pop(alias, None)

    def next_look(self, now: float) -> float | None:
        """When the leader must look again without being told, None for never. Any thread.

        With two full peers an attempt at one can take the news of the other's room, however often one goes round.
        """
        return now + CROWDED_LOOK if len(self._waiting) > self.told_of else None

    def is_full(self, alias: bytes) -> bool:
        """On lane: does anything wait for room at this peer?"""
        debug_assert_on_lane(self.lane)
        return alias in self._waiting

    def is_up(self, alias: bytes) -> bool:
        """On lane: is there a connection now, as far as `service` has seen?"""
        debug_assert_on_lane(self.lane)
        return alias in self._by_fd.values()

    def backlog(self) -> int:
        """Sends that wait for room."""
        debug_assert_on_lane(self.lane)
        return sum(map(len, self._waiting.values()))

    def service(self) -> list[Lost]:
        """What a leader does when a descriptor is readable: retry, drop what nobody should have sent, see who is gone."""
        debug_assert_on_lane(self.lane)
        self._drop_strays()
        self.retry()
        return self._follow_connections()

    def _drop_strays(self) -> None:
        """Nothing is read from an out-socket; a peer that writes to it must neither fill it nor hold the lane."""
        debug_assert_on_lane(self.lane)
        for _ in range(MOST_STRAYS):
            if not self._raw.readable() or self._raw.receive() is None:
                return
        self._wake()  # there may be more, and nothing else would tell

    def _follow_connections(self) -> list[Lost]:
        """Bring `_by_fd` up to date; returns the connections that went down."""
        debug_assert_on_lane(self.lane)
        lost: list[Lost] = []
        for event in self._raw.connection_events():
            if isinstance(event, Connected):
                alias = self._alias_of(event.endpoint)
                if alias is not None:
                    self._by_fd[event.fd] = alias
            elif (gone := self._by_fd.pop(event.fd, None)) is not None:
                lost.append(gone)
        return lost

    def _alias_of(self, endpoint: str) -> bytes | None:
        debug_assert_on_lane(self.lane)
        return next((alias for alias, known in self._endpoints.items() if known == endpoint), None)

    def close(self, linger: float) -> None:
        """Close the socket; accepted records may go out for `linger` seconds more. On lane.

        Only to peers that are there: the hello to one that is not would hold the end of the context up all that time.
        """
        debug_assert_on_lane(self.lane)
        self.lane.close()  # from its own turn: nobody comes after this one
        self._follow_connections()
        up = set(self._by_fd.values())
        for alias in [alias for alias in self._endpoints if alias not in up]:
            self.disconnect(alias)
        for alias in list(self._waiting):
            for waiting in self._waiting.pop(alias):
                waiting.done(Unavailable("the socket was closed before the peer had room"))
        self._raw.close(linger)
