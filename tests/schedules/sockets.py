"""What the scenarios of sockets begin with: a node that sends and one that receives, with the leader of each."""

from __future__ import annotations

from zlink_nogil import _sync
from zlink_nogil.binding import InSocket, OutSocket
from zlink_nogil.binding.outbound import Waiting
from zlink_nogil.errors import ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.state import StateLane

from .harness import Scenario
from .harness.sockets import Network

__all__ = ["Receiving", "Sending"]

RECORD = 1 << 20


class Sending:
    """A node's out-socket with its leader, who sleeps on its descriptors and services it."""

    def __init__(self, s: Scenario, network: Network, records: int) -> None:
        self.s = s
        self.lane = StateLane("operations")
        self.wakeup = _sync.EventFd()
        self.out = OutSocket(network, self.lane, b"node", RECORD, self.wakeup.set)  # type: ignore[arg-type]
        self.records = records
        self.ended: dict[bytes, list[str]] = {}
        self.waiting: dict[bytes, Waiting] = {}
        self.lost: list[bytes] = []
        self.stop = _sync.EventFd()
        s.check("every send ended once", lambda: [len(ends) for ends in self.ended.values()] == [1] * records)
        s.check("nothing waits for room", lambda: self.backlog() == 0)

    def connect(self, endpoint: str) -> bytes:
        return self.lane.run(self.out.connect, endpoint)

    def backlog(self) -> int:
        try:
            return self.lane.run(self.out.backlog)
        except ShuttingDown:
            return 0  # by the close, or else somebody was not told

    def send(self, alias: bytes, *records: bytes) -> None:
        for record in records:
            self.ended[record] = []
            self.lane.run(self._send, alias, record)

    def _send(self, alias: bytes, record: bytes) -> None:
        def done(error: ZLinkError | None) -> None:
            self._end(record, "accepted" if error is None else "refused")

        try:
            waiting = self.out.send(alias, record, done)
            if waiting is None:
                done(None)
            else:
                self.waiting[record] = waiting
        except Unavailable:
            self._end(record, "refused")

    def abandon(self, record: bytes) -> None:
        self.waiting[record].abandon()
        self._end(record, "abandoned")

    def _end(self, record: bytes, how: str) -> None:
        self.ended[record].append(how)
        if sum(map(bool, self.ended.values())) == self.records:
            self.stop.set()

    def lead(self) -> None:
        """Until every send has ended."""
        epoll = _sync.Epoll()
        for fd in (*self.out.descriptors(), self.wakeup.fileno(), self.stop.fileno()):
            epoll.register(fd)
        while True:
            for alias in self.lane.run(self.out.service):
                self.lost.append(alias)
                self.lane.run(self.out.disconnect, alias)
            look = self.out.next_look(_sync.monotonic())
            if (self.stop.fileno(), 1) in epoll.poll(None if look is None else look - _sync.monotonic()):
                return
            self.wakeup.clear()


class Receiving:
    """A node's in-socket with its leader, who claims until it has `records`."""

    def __init__(self, network: Network, endpoint: str, records: int) -> None:
        self.socket = InSocket(network, endpoint, RECORD)  # type: ignore[arg-type]
        self.records = records
        self.received: list[bytes] = []

    def lead(self) -> None:
        epoll = _sync.Epoll()
        epoll.register(self.socket.fd, 1)
        while len(self.received) < self.records:
            claimed, more = self.socket.claim(1, RECORD, 1e9, _sync.monotonic)
            self.received += [record or b"" for _, record in claimed]
            if not more and len(self.received) < self.records:
                epoll.poll()
