"""`ServerSocket` and `ClientSocket`: read and written by the same connections (decision 3, last sentence; design 4.1).

Guarantees
    As `OutSocket` for what is sent. A send may eat the descriptor's edge, so each one looks afterwards whether something is
    there to read, in the same turn, and wakes the leader; claiming is a turn, too, and ends by looking. The leader itself
    looks again after it has sent what waited: soon while something still waits, at once when nothing does any more.

Ownership
    everything belongs to `lane`, which is also the socket's lock
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from zlink_nogil.binding.inbound import Record, claim_from
from zlink_nogil.binding.outbound import OutSocket, Waiting
from zlink_nogil.binding.raw import Context, DealerSet, RawSocket
from zlink_nogil.errors import ShuttingDown, ZLinkError
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["ClientSocket", "ServerSocket"]


class _Duplex(OutSocket):
    """`look` makes the leader claim, `wake` see to what waits, too."""

    told_of = 0  # its descriptor may not be waited for, for lack of permits

    def __init__(
        self,
        context: Context,
        lane: StateLane,
        node_id: bytes,
        max_record_bytes: int,
        wake: Callable[[], None],
        look: Callable[[], None],
    ) -> None:
        super().__init__(context, lane, node_id, max_record_bytes, wake)
        self._look = look

    def send(self, alias: bytes, record: bytes, done: Callable[[ZLinkError | None], None]) -> Waiting | None:
        debug_assert_on_lane(self.lane)
        try:
            return super().send(alias, record, done)
        finally:
            if self._raw.readable():
                self._look()

    def retry(self) -> None:
        debug_assert_on_lane(self.lane)
        waited = bool(self._waiting)
        super().retry()
        if waited and not self._waiting:
            self._wake()

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        """As `InSocket.claim`; the first of each record is the alias it came from. Takes the lane."""
        return self.lane.run(self._claim, most, most_bytes, until, now)

    def _claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        debug_assert_on_lane(self.lane)
        claimed = claim_from(self._raw, most, most_bytes, until, now)
        if self._waiting:
            self.retry()  # the news of room came the same way
        return claimed

    def _drop_strays(self) -> None:
        """There are none: everything is claimed."""


class ServerSocket(_Duplex):
    """A bound ROUTER. Aliases are the routing ids of clients that were let in."""

    _raw: RawSocket

    def __init__(
        self,
        context: Context,
        lane: StateLane,
        endpoint: str,
        max_record_bytes: int,
        wake: Callable[[], None],
        look: Callable[[], None],
    ) -> None:
        """`OSError` when `endpoint` cannot be bound."""
        super().__init__(context, lane, b"", max_record_bytes, wake, look)
        try:
            self.endpoint = self._raw.bind(endpoint)
        except OSError:
            self._raw.close(0)
            raise
        self.fd, self.monitor_fd = self._raw.descriptors()

    def user_of(self, routing_id: bytes) -> str | None:
        """See `RawSocket.user_of`."""
        return self._raw.user_of(routing_id)

    def stop_listening(self) -> None:
        """Let nobody in any more. Takes the lane; harmless when the socket is closed."""
        with suppress(ShuttingDown):
            self.lane.run(self._raw.stop_listening)

    def let_in(self, routing_id: bytes) -> None:
        """On lane: from now on there may be sends to it."""
        debug_assert_on_lane(self.lane)
        self._endpoints[routing_id] = ""

    def disconnect(self, alias: bytes) -> None:
        """Forget the client; sends that wait for it end as `Unavailable`. Harmless for one that is not known."""
        debug_assert_on_lane(self.lane)
        if self._endpoints.pop(alias, None) is not None:
            self._end_line(alias)

    def close(self, linger: float) -> None:
        debug_assert_on_lane(self.lane)
        self._by_fd = dict(enumerate(self._endpoints))  # none of them is being connected to
        super().close(linger)


class ClientSocket(_Duplex):
    """A DEALER per server."""

    _raw: DealerSet

    def _open(self, context: Context, max_record_bytes: int) -> DealerSet:
        return context.dealers(max_record_bytes)

    def descriptors(self) -> Collection[int]:
        return self.lane.run(super().descriptors)

    def data(self) -> Collection[int]:
        """Those of its descriptors that tell of data."""
        return self._raw.data()
