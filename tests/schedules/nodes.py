"""What the scenarios of routes begin with: a node whose connections end in other nodes that are only played, no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.messaging.answer import send_error, send_reply
from zlink_nogil.messaging.codecs import Codecs
from zlink_nogil.messaging.direct import Direct
from zlink_nogil.messaging.keeper import Announce, Claim, Keeper, Locate, Release
from zlink_nogil.messaging.locations import CHANNEL, Location, MemoryLocationStore
from zlink_nogil.messaging.operation import Slots
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.outbox import Outbox
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.tracing import Tracer
from zlink_nogil.messaging.wire import (
    Address,
    Header,
    Kind,
    NotHere,
    OwnerKind,
    pack_route,
    unpack,
    unpack_extras,
    unpack_route,
)
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler.spawning import sleep
from zlink_nogil.spots import Actors, Spot, Spots
from zlink_nogil.spots.elsewhere import Asked
from zlink_nogil.state import StateLane

from .harness import Scenario
from .steps import nothing_left

__all__ = ["KEEPER", "Calling", "Played"]

KEEPER = "keeper"
RECORD = 1 << 20
CODECS = Codecs()
QUESTIONS: dict[str, Any] = {kind.__name__: kind for kind in (Announce, Claim, Locate, Release)}
REPLIES: dict[str, Any] = {"Announce": list[Claim], "Claim": Location, "Locate": Location | None, "Release": None}


class Played:
    """Another node, a daemon of the scenario: takes what is sent to it, in order, and answers at once."""

    def __init__(self, node: Calling, name: str, *owners: str, generation: int = 1) -> None:
        self.node = node
        self.owners = set(owners)
        self.ran: list[str] = []
        """What its owners were told."""
        self.asked: list[Any] = []
        """What it was asked as the keeper."""
        self.deaf = _sync.Event()
        self.deaf.set()
        """Cleared: it takes nothing."""
        self.peer = Peer(name, name.encode(), generation, b"", {}, RECORD)
        self.records: deque[bytes] = deque()
        self.more = _sync.EventFd()
        _sync.Thread(target=self._run, name=name, daemon=True).start()
        self.come()

    def come(self) -> None:
        """It can be reached, by a new connection, and is ready."""
        self.node.made += 1
        self.peer = replace(self.peer, data_alias=f"{self.peer.node} {self.node.made}".encode())
        self.node.connections[self.peer.data_alias] = self
        self.node.publish({**self.node.ready, self.peer.node: self.peer})

    def go(self) -> None:
        """As a topology sees the loss of it."""
        del self.node.connections[self.peer.data_alias]
        self.records.clear()
        self.node.publish({name: peer for name, peer in self.node.ready.items() if peer is not self.peer})
        self.node.operations.peer_lost(self.peer.data_alias)

    def _run(self) -> None:
        epoll = _sync.Epoll()
        epoll.register(self.more.fileno(), 1)
        while True:
            self.deaf.wait()
            if not self.records:
                epoll.poll()
                self.more.clear()
                continue
            self._take(self.records.popleft())

    def _take(self, record: bytes) -> None:
        header = unpack(record)
        content_type, channel, name = unpack_route(header.route)
        payload = record[header.payload_at :]
        codec = CODECS.for_receiving(content_type)
        try:
            if channel == CHANNEL:
                value, declared = self._keep(name, codec.decode(payload, QUESTIONS[name])), REPLIES[name]
            else:
                value, declared = self._handle(header, codec.decode(payload, str)), str
        except ZLinkError as error:
            self._answer(header, send_error, error)
            return
        codec = CODECS.for_sending(declared)
        self._answer(header, send_reply, pack_route(codec.content_type), codec.encode(value, declared))

    def _keep(self, name: str, question: Any) -> Any:
        self.asked.append(question)
        return getattr(self.node.keeper, name.lower())(question, None)

    def _handle(self, header: Header, value: str) -> str:
        address, _ = unpack_extras(header.extras)
        if address.id not in self.owners:
            raise NotHere(address)
        self.ran.append(value)
        return f"{value} at {self.peer.node}"

    def _answer(self, header: Header, send: Callable[..., None], *answer: Any) -> None:
        if header.kind is Kind.REQUEST or isinstance(answer[0], NotHere):
            operation = (header.operation_high, header.operation_low)
            send(self.node.outbox._local_answer, operation, header.reply_route, *answer)


class Room(Spot):
    """Takes its time to be made."""

    async def on_create(self) -> None:
        await sleep(0.1)


class _Connections:
    """In place of an `OutSocket`: always room."""

    def __init__(self, node: Calling) -> None:
        self.node = node

    def send(self, alias: bytes, record: bytes, done: Callable[[ZLinkError | None], None]) -> None:  # noqa: ARG002
        played = self.node.connections.get(alias)
        if played is None:
            raise Unavailable("the peer is gone; the message was not accepted")
        played.records.append(record)
        played.more.set()


class Calling:
    """A node that calls Spots wherever they are, and what became of each call. It stands in for the `Node` of a `Direct`."""

    def __init__(self, s: Scenario, workers: int = 1) -> None:
        self.s = s
        self.me = Introduction("m", "me", 7, "tcp://me:1", "tcp://me:2", {}, RECORD)
        self.pool = WorkerPool(workers)
        self.connections: dict[bytes, Played] = {}
        self.made = 0
        self.ready: dict[str, Peer] = {}
        self.topology: Any = SimpleNamespace(candidates=self)
        self.wakes = _sync.EventFd()
        self.slots = Slots(16)
        lane = StateLane("operations", rank=Rank.SOCKET)
        self.operations = Operations(lane, _Connections(self), self.slots, self.pool, self.wakes.set)  # type: ignore[arg-type]
        shared: Any = SimpleNamespace(codecs=CODECS, permits=Permits(4), pool=self.pool, tracer=Tracer())
        self.outbox = Outbox(self.me, self.operations, None, shared)
        self.spots = Spots(lambda: self.pool, ExecutionLanePolicy(), ExecutionLanePolicy())
        self.spots.actors = Actors(lambda: self.pool, ExecutionLanePolicy())
        self.spots.register(Room)
        self.direct = Direct(self, KEEPER, {OwnerKind.SPOT: self.spots})  # type: ignore[arg-type]
        self.spots.elsewhere = self.direct
        self.operations.refused = self.direct.refused
        self.keep_locations()
        self.begun: list[str] = []
        self.ends: dict[str, str] = {}
        s.check("every call has ended", lambda: sorted(self.ends) == sorted(self.begun))
        s.check("nothing is pending, and nobody waits for a location", self.is_empty)
        s.check("no task is left", lambda: nothing_left(self.pool))

    def keep_locations(self) -> None:
        """From now on, and what was known before is forgotten."""
        self.store = MemoryLocationStore()
        keeper = Introduction("m", KEEPER, 1, "tcp://k:1", "tcp://k:2", {}, RECORD)
        mine = Peer("me", b"me", 7, b"", {}, RECORD)
        self.keeper = Keeper(self.store, lambda: keeper, lambda: {**self.ready, "me": mine})

    def publish(self, ready: dict[str, Peer]) -> None:
        """By the topology."""
        self.ready = ready
        self.direct.look_for_keeper()

    def location(self, spot_id: str) -> str | None:
        """The node that has it, as the keeper knows."""
        location = self.store.find(Address(OwnerKind.SPOT, spot_id))
        return None if location is None else location.node

    def check_usable(self) -> None:
        if self.operations.closed:
            raise ShuttingDown("the mesh is closed")

    def is_empty(self) -> bool:
        counts = self.operations.counts()
        return (counts["pending"], counts["deadlines"], self.slots.taken(), len(self.direct._lines)) == (0, 0, 0, 0)

    def place(self, spot_id: str, at: Played) -> None:
        """The keeper learns that a Spot is there, if it is nowhere else."""
        self.store.claim(Address(OwnerKind.SPOT, spot_id), Location(at.peer.node, at.peer.generation, "Room"))

    def learn(self, spot_id: str, at: Played) -> None:
        """The route there is known."""
        with self.direct._lock:
            self.direct._keep(Address(OwnerKind.SPOT, spot_id), at.peer)

    def move(self, spot_id: str, old: Played, new: Played) -> None:
        address = Address(OwnerKind.SPOT, spot_id)
        old.owners.discard(spot_id)
        known = self.store.find(address)
        assert known is not None
        self.store.release(address, known)
        self.place(spot_id, new)
        self.s.step("moves")
        new.owners.add(spot_id)

    def route(self, spot_id: str) -> str | None:
        """The node that is believed to have it."""
        route = self.direct._routes.get(Address(OwnerKind.SPOT, spot_id))
        return None if route is None else route.peer.node

    def start(self, value: str, *, is_request: bool = True, timeout: float = 1000.0) -> Completion[Any] | None:
        """A call to the Spot whose id is the first letter of the message."""
        self.begun.append(value)
        asked = Asked(value[0], "str", value, str, is_request, str if is_request else None, {}, timeout)
        try:
            return self.direct.start("spot", asked, None)
        except ZLinkError as error:
            self.ends[value] = _name(error)
            return None

    def wait(self, value: str, call: Completion[Any] | None) -> None:
        if call is not None:
            error = call.exception()
            self.s.expect(value not in self.ends, "one end")
            self.ends[value] = str(call.result()) if error is None else _name(error)

    def ask(self, *values: str, timeout: float = 1000.0) -> None:
        """One after the other."""
        for value in values:
            self.wait(value, self.start(value, timeout=timeout))

    def tell(self, *values: str) -> None:
        """Without waiting in between."""
        calls = [(value, self.start(value, is_request=False)) for value in values]
        for value, call in calls:
            self.wait(value, call)

    def lead(self) -> None:
        """Expire deadlines from now on."""
        _sync.Thread(target=self._expire, name="leader", daemon=True).start()

    def _expire(self) -> None:
        epoll = _sync.Epoll()
        epoll.register(self.wakes.fileno(), 1)
        while True:
            upcoming = self.operations.expire()
            epoll.poll(None if upcoming is None else upcoming - _sync.monotonic())
            self.wakes.clear()


def _name(error: BaseException) -> str:
    return "never accepted" if isinstance(error, Unavailable) and not error.accepted else type(error).__name__
