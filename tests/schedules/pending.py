"""What the scenarios of pending operations begin with: a table, its leaders, and a peer."""

from __future__ import annotations

from zlink_nogil import _sync
from zlink_nogil.binding import OutSocket
from zlink_nogil.errors import CapacityExceeded, ShuttingDown, Unavailable
from zlink_nogil.messaging.operation import Operation, Slots
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.state import StateLane

from .harness import Scenario
from .harness.sockets import Network

__all__ = ["MODULES", "PEER", "Watched"]

MODULES = ["zlink_nogil.messaging.operations", "zlink_nogil.messaging.deadlines", "zlink_nogil.binding.outbound"]
RECORD = 1 << 20
PEER = "peer"


class Watched:
    """A pending table with a peer that has room for `room` records, and what became of each operation."""

    def __init__(self, s: Scenario, room: int = 4, slots: int = 4) -> None:
        self.s = s
        self.network = Network(room)
        self.peer = self.network.router(RECORD)
        self.peer.bind("b")
        lane = StateLane("operations")
        self.wakes = _sync.EventFd()
        self.out = OutSocket(self.network, lane, b"node", RECORD, self.wakes.set)  # type: ignore[arg-type]
        self.slots = Slots(slots)
        self.table = Operations(lane, self.out, self.slots, WorkerPool(1), self.wakes.set)
        self.alias = lane.run(self.out.connect, "b")
        self.started: list[Operation] = []
        self.ends: dict[int, list[str]] = {}
        self.refused: list[str] = []
        s.check("every operation ended once", lambda: [len(ends) for ends in self.ends.values()] == [1] * len(self.started))
        s.check("slots are back to zero", lambda: self.slots.taken() == 0)
        s.check("nothing is left in the tables", self.is_empty)

    def is_empty(self) -> bool:
        counts = self.table.counts()
        return counts["pending"] == counts["deadlines"] == 0

    def request(self, timeout: float = 1000.0) -> Operation | None:
        return self.submit(timeout, is_request=True)

    def send(self, timeout: float = 1000.0) -> Operation | None:
        return self.submit(timeout, is_request=False)

    def submit(self, timeout: float, is_request: bool) -> Operation | None:
        operation = self.table.new(Operation, timeout, PEER, bytes.decode if is_request else None)
        route = operation.reply_route
        self.ends[route] = []
        operation.add_waker(lambda _: self.ends[route].append("ended"))
        record = route.to_bytes(8)
        try:
            self.table.submit(operation, lambda started: self.table.send(self.alias, record, is_request, started))
        except (ShuttingDown, CapacityExceeded, Unavailable) as error:
            del self.ends[route]
            self.refused.append(type(error).__name__)
            return None
        self.started.append(operation)
        return operation

    def answer(self, count: int) -> None:
        """The peer: replies to `count` requests, each twice, as a network may."""
        epoll = _sync.Epoll()
        epoll.register(self.peer.fd, 1)
        while count:
            received = self.peer.receive()
            if received is None:
                if not self.peer.readable():
                    epoll.poll()
                continue
            count -= 1
            route = int.from_bytes(received[1] or b"")
            self.table.reply(route, b"reply")
            self.table.reply(route, b"late")

    def expire(self, until: float) -> None:
        """The leader of deadlines, until the virtual time `until`."""
        epoll = _sync.Epoll()
        epoll.register(self.wakes.fileno(), 1)
        while (now := _sync.monotonic()) < until:
            upcoming = self.table.expire()
            epoll.poll(min(until, upcoming if upcoming is not None else until) - now)
            self.wakes.clear()

    def serve(self, rounds: int) -> None:
        """The leader of the out-socket."""
        epoll = _sync.Epoll()
        for fd in self.out.descriptors():
            epoll.register(fd, 1)
        for _ in range(rounds):
            epoll.poll(1.0)
            for alias in self.table.service():
                self.table.lane.run(self.out.disconnect, alias)
                self.table.peer_lost(PEER)
