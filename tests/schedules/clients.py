"""What the scenarios of ClientServer channels begin with: a client with its leader, and servers that are only played."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.messaging import client as client_module
from zlink_nogil.messaging.client import ClientNode
from zlink_nogil.messaging.codecs import Codecs
from zlink_nogil.messaging.operation import Slots
from zlink_nogil.messaging.outbox import Message
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.server import channel_mesh
from zlink_nogil.messaging.tracing import Tracer
from zlink_nogil.messaging.wire import NOBODY, Kind, pack, pack_route, unpack
from zlink_nogil.scheduler import Completion, WorkerPool

from .harness import Scenario
from .harness.sockets import Network, Router

__all__ = ["Client", "Played", "end_of"]

CHANNEL = "c"
RECORD = 1 << 20
CODECS = Codecs()


class Played:
    """A server, a daemon of the scenario: welcomes whoever says hello, and answers at once."""

    def __init__(self, client: Client, name: str, generation: int = 1) -> None:
        self.name = name
        self.generation = generation
        self.endpoint = endpoint(name)
        self.router: Router = client.network.router(RECORD)
        self.ran: list[str] = []
        self.probes = 0
        self.mute = False
        """It takes what comes, and says nothing: not before it speaks again."""
        self.sessions: dict[bytes, int] = {}
        self.unsaid: list[tuple[bytes, bytes]] = []
        self.orders: deque[Callable[[], object]] = deque()
        self.wake = _sync.EventFd()
        self.alive = True
        self.router.bind(self.endpoint)
        _sync.Thread(target=self._run, name=name, daemon=True).start()

    def order(self, act: Callable[[], object]) -> None:
        """Do that, when the server comes to it."""
        self.orders.append(act)
        self.wake.set()

    def leave(self) -> None:
        self.order(lambda: self._say_all(Kind.LEAVING))

    def die(self, *, answer_first: bool = False) -> None:
        over = _sync.Event()

        def die() -> None:
            if answer_first:
                self._speak()
            self.alive = False
            self.router.close(0.0)
            over.set()

        self.order(die)
        over.wait()

    def speak(self) -> None:
        self.order(self._speak)

    def _speak(self) -> None:
        self.mute = False
        for routing_id, record in self.unsaid:
            self._send(routing_id, record)
        self.unsaid.clear()

    def _run(self) -> None:
        epoll = _sync.Epoll()
        for fd in (self.router.fd, self.wake.fileno()):
            epoll.register(fd, 1)
        while self.alive:
            if self.orders:
                self.orders.popleft()()
                continue
            received = self.router.receive()
            if received is not None:
                self._take(*received)
            elif not self.router.readable():
                epoll.poll()
                self.wake.clear()

    def _take(self, routing_id: bytes, record: bytes | None) -> None:
        assert record is not None
        header = unpack(record)
        if header.kind is Kind.HELLO:
            self.sessions[routing_id] = Introduction.unpack(record[header.payload_at :]).token
            self._say(routing_id, Kind.WELCOME)
        elif header.kind is Kind.PROBE:
            self.probes += 1
            self._say(routing_id, Kind.ACK)
        elif header.generation == self.generation:  # else it was for an earlier life, and waited in the connection
            self.ran.append(CODECS.for_receiving("application/json").decode(record[header.payload_at :], str))
            self._answer(routing_id, record)

    def _answer(self, routing_id: bytes, record: bytes) -> None:
        header = unpack(record)
        if header.kind is Kind.REQUEST:
            codec = CODECS.for_sending(str)
            route, payload = pack_route(codec.content_type), codec.encode(self.name, str)
            asked, generation = header.reply_route, header.operation_high
            self._send(routing_id, pack(Kind.REPLY, route, b"", payload, generation=generation, reply_route=asked))

    def _say_all(self, kind: Kind) -> None:
        for routing_id in self.sessions:
            self._say(routing_id, kind)

    def _say(self, routing_id: bytes, kind: Kind) -> None:
        said = Introduction(
            channel_mesh(CHANNEL),
            self.name,
            self.generation,
            self.endpoint,
            self.endpoint,
            {CHANNEL: 1},
            RECORD,
            0,
            self.sessions[routing_id],
        )
        self._send(routing_id, pack(kind, b"", b"", said.pack(), generation=0))

    def _send(self, routing_id: bytes, record: bytes) -> None:
        if self.mute:
            self.unsaid.append((routing_id, record))
            return
        with suppress(LookupError):  # that connection is gone
            self.router.try_send(routing_id, record)


class _Leader:
    """In place of the stand-by: one thread for one driver."""

    def add(self, driver: ClientNode) -> None:
        self.driver = driver
        self.stop = False
        self.over = _sync.Event()
        _sync.Thread(target=self._lead, name="leader", daemon=True).start()

    def remove(self, driver: ClientNode) -> None:
        self.stop = True
        driver.wake()
        self.over.wait()

    def _lead(self) -> None:
        epoll = _sync.Epoll()
        watched: set[int] = set()
        ready: list[int] | None = None
        while not self.stop:
            again = self.driver.rotate(ready)
            wanted = set(self.driver.descriptors())
            for fd in sorted(watched - wanted):
                epoll.unregister(fd)
            for fd in sorted(wanted - watched):
                epoll.register(fd, 1)
            watched = wanted
            ready = [fd for fd, _ in epoll.poll(None if again is None else max(0.0, again - _sync.monotonic()))]
        self.over.set()


class Client:
    """A client of the channel, and what became of each call."""

    def __init__(self, s: Scenario, *servers: str, room: int = 8, liveness: tuple[float, float] = (1000.0, 5000.0)) -> None:
        self.s = s
        self.network = network = Network(room)
        client_module.Context = lambda _keys: network  # type: ignore[misc,assignment] # put back after the run
        self.slots = Slots(16)
        pool = WorkerPool(1)
        shared: Any = SimpleNamespace(
            pool=pool,
            standby=_Leader(),
            permits=Permits(4),
            slots=self.slots,
            codecs=CODECS,
            max_record_bytes=RECORD,
            tracer=Tracer(),
        )
        self.node = ClientNode(CHANNEL, "client", None, liveness, shared)
        self.servers = servers
        self.begun: list[str] = []
        self.ends: dict[str, str] = {}
        s.check("every call has ended", lambda: sorted(self.ends) == sorted(self.begun))
        s.check("nothing is pending", self.is_empty)

    def connect(self) -> None:
        self.node.start({endpoint(server): None for server in self.servers})

    def is_empty(self) -> bool:
        waiting = [operation for operation, _ in self.node._line._line if not operation.done()]
        return not self.node.operations._pending and self.slots.taken() == 0 and not waiting

    def wait_ready(self, count: int) -> None:
        began = self.s.now
        servers = self.node.servers
        servers.watchers.wait(lambda: len(servers.ready) >= count, 1000.0, lambda: "nobody is ready")
        self.s.expect(self.s.now - began < 10.0, "told when it is so")

    def start(self, value: str, *, is_request: bool = True, timeout: float = 1000.0) -> Completion[Any] | None:
        self.begun.append(value)
        kind = Kind.REQUEST if is_request else Kind.SEND
        message = Message(self.node.choose, kind, CHANNEL, "str", value, str, str, NOBODY, b"", timeout)
        try:
            return self.node.start_call(message, None)
        except ZLinkError as error:
            self.ends[value] = end_of(error)
            return None

    def wait(self, value: str, call: Completion[Any] | None) -> None:
        if call is not None:
            error = call.exception()
            self.s.expect(value not in self.ends, "one end")
            self.ends[value] = str(call.result()) if error is None else end_of(error)

    def ask(self, *values: str, timeout: float = 1000.0) -> None:
        """One after the other."""
        for value in values:
            self.wait(value, self.start(value, timeout=timeout))

    def tell(self, *values: str) -> None:
        """Without waiting in between."""
        calls = [(value, self.start(value, is_request=False)) for value in values]
        for value, call in calls:
            self.wait(value, call)


def endpoint(name: str) -> str:
    return f"tcp://{name}:1"


def end_of(error: BaseException) -> str:
    return "never accepted" if isinstance(error, Unavailable) and not error.accepted else type(error).__name__
