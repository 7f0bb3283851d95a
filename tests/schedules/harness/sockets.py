"""An in-memory stand-in for `zlink_nogil.binding.raw`: sockets with the measured behaviour of libzmq (decisions 3-5).

Guarantees
    A socket's descriptor is readable while commands wait for it (a first message, room at a peer, a lost connection), and
    *every* call on the socket - a send, also a refused one, a receive, a look at EVENTS, disconnect - takes them and so
    may eat the edge (connect leaves one of its own). A peer has room for `room` messages and tells of new room after
    every half of that. A send to a full peer takes nothing; to an unknown one it raises. What was accepted for a peer
    that died waits for its endpoint's next life. Messages of one connection keep their order; between connections the
    reader goes round.

Leaves out
    The delay on the way, and that a send within a millisecond of another call may not take the commands.

Ownership: all fields belong to the holder of the baton.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from zlink_nogil.binding.raw import Connected, DealerSet, Disconnected

from .descriptors import Descriptor
from .locks import the_world

__all__ = ["Dealer", "Network", "Router"]


class Network:
    """Stands in for the binding's `Context`; all its sockets see each other.

    `shy`: a receive that finds nothing takes the commands and does not look again, as the documentation of ZMQ_FD allows.
    """

    def __init__(self, room: int = 2, shy: bool = False) -> None:
        self.room = room
        self.shy = shy
        self.unusable = ""
        """An endpoint that nothing can connect to."""
        self.bound: dict[str, Router] = {}
        self.pipes: list[_Pipe] = []
        self.routers: list[Router] = []
        self.numbers = itertools.count(1)

    def router(self, max_record_bytes: int) -> Router:  # noqa: ARG002 - the real signature
        router = Router(self)
        self.routers.append(router)
        return router

    def dealers(self, max_record_bytes: int) -> DealerSet:  # noqa: ARG002 - the real signature
        return DealerSet(lambda: Dealer(self))  # type: ignore[arg-type,return-value]

    def authenticator(self) -> None:
        """There are no keys here."""

    def end(self) -> None:
        """Nothing lingers here."""


class _Pipe:
    """One connection, from the socket that connected to the endpoint that is bound."""

    def __init__(self, sender: Router, endpoint: str, routing_id: bytes, room: int) -> None:
        self.sender = sender
        self.endpoint = endpoint
        self.routing_id = routing_id
        self.room = room
        self.reader: Router | None = None
        self.number = 0
        self.waiting: deque[bytes] = deque()
        self.asleep = True
        """The reader has found it empty: the next message is a command for it."""
        self.announced = False
        """The reader has taken that command."""
        self.unacknowledged = 0
        self.read = 0

    def put(self, record: bytes) -> None:
        self.waiting.append(record)
        self.unacknowledged += 1
        self._tell_reader()

    def take(self) -> bytes:
        record = self.waiting.popleft()
        self.read += 1
        half = (self.room + 1) // 2
        if self.read % half == 0:
            self.sender.post(lambda: self._has_room(half))
        return record

    def is_known(self) -> bool:
        return bool(self.waiting) and self.announced

    def is_full(self) -> bool:
        return self.unacknowledged >= self.room

    def come_up(self, reader: Router, number: int) -> None:
        self.reader, self.number, self.asleep = reader, number, True
        reader.inputs.append(self)
        self.sender.tell(Connected(self.endpoint, number))
        if self.waiting:
            self._tell_reader()

    def go_down(self) -> None:
        if self.reader is not None:
            self.reader.inputs.remove(self)
            self.reader = None
            self.sender.tell(Disconnected(self.number))

    def _tell_reader(self) -> None:
        if self.asleep and self.reader is not None:
            self.asleep = self.announced = False
            self.reader.post(self._announce)

    def _announce(self) -> None:
        self.announced = True

    def _has_room(self, count: int) -> None:
        self.unacknowledged -= count


class _Back(_Pipe):
    def end(self) -> None:
        """What has come can still be read."""
        if self.reader is not None:
            self.reader = None
            self.sender.tell(Disconnected(self.number))


class _Both(_Pipe):
    """A DEALER's connection: there is a way back."""

    back: _Back | None = None

    def come_up(self, reader: Router, number: int) -> None:
        super().come_up(reader, number)
        self.back = reader._outputs[self.routing_id] = _Back(reader, self.endpoint, b"", self.room)
        self.back.come_up(self.sender, number)

    def go_down(self) -> None:
        if self.reader is not None:
            self.reader._outputs.pop(self.routing_id, None)
        super().go_down()
        if self.back is not None:
            self.back.end()


def _nothing() -> None:
    """A command that does nothing: taking it is all there is to it."""


class Router:
    """The same methods as `RawSocket`, each an operation."""

    pipe: type[_Pipe] = _Pipe

    def __init__(self, network: Network) -> None:
        self._world = the_world()
        self._network = network
        self._descriptor = Descriptor("Socket")
        self._monitor = Descriptor("Monitor")
        self._commands: deque[Callable[[], None]] = deque()
        self._events: deque[Connected | Disconnected] = deque()
        self._outputs: dict[bytes, _Pipe] = {}
        self._dropping: set[bytes] = set()
        self.inputs: deque[_Pipe] = deque()
        self.fd = self._descriptor.fileno()
        self.taken = 0
        """Records it has accepted from who sends on it."""
        self.closed = False

    # -- what arrives from other sockets ----------------------------------------------------------------------------

    def post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._descriptor.raise_()

    def tell(self, event: Connected | Disconnected) -> None:
        self._events.append(event)
        self._monitor.raise_()

    def _begin(self, op: str) -> None:
        """One call: others may run before it, then it takes the commands and with them the edge."""
        self._world.offer(op, self._descriptor)
        assert not self.closed, f"{op} on a closed socket"
        while self._commands:
            self._commands.popleft()()
        self._descriptor.lower()

    # -- connections ------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> str:
        """Port 0 stands for one of the system's choice."""
        self._begin("bind")
        if endpoint.endswith(":0"):
            endpoint = f"{endpoint[:-1]}{7000 + len(self._network.bound)}"
        if endpoint in self._network.bound:
            raise OSError(f"cannot bind {endpoint}")
        self._network.bound[endpoint] = self
        for pipe in self._network.pipes:
            if pipe.endpoint == endpoint:
                pipe.come_up(self, next(self._network.numbers))
        return endpoint

    def connect(self, endpoint: str, alias: bytes | None, routing_id: bytes, key: str | None = None) -> None:  # noqa: ARG002
        self._begin("connect")
        assert alias is not None, "the alias of a connection"
        if endpoint == self._network.unusable:
            raise ValueError(f"cannot connect to {endpoint}")
        pipe = self._outputs[alias] = self.pipe(self, endpoint, routing_id, self._network.room)
        self._network.pipes.append(pipe)
        if endpoint in self._network.bound:
            pipe.come_up(self._network.bound[endpoint], next(self._network.numbers))
        self.post(_nothing)  # from the thread that connects

    def disconnect(self, endpoint: str) -> None:
        self._begin("disconnect")
        for alias, pipe in list(self._outputs.items()):
            if pipe.endpoint == endpoint:
                del self._outputs[alias]
                if pipe.is_full():
                    self._dropping.add(alias)
                self._drop(pipe)

    def _drop(self, pipe: _Pipe) -> None:
        self._network.pipes.remove(pipe)
        pipe.go_down()

    # -- messages ---------------------------------------------------------------------------------------------------

    def try_send(self, alias: bytes, record: bytes) -> bool:
        self._begin("send")
        pipe = self._outputs.get(alias)
        if pipe is None and alias not in self._dropping:
            raise LookupError(alias)
        if pipe is None or pipe.is_full():
            return False
        pipe.put(record)
        self.taken += 1
        return True

    def receive(self) -> tuple[bytes, bytes | None] | None:
        known = set(filter(_Pipe.is_known, self.inputs))
        self._begin("receive")
        if not self._network.shy:
            known.update(self.inputs)
        for pipe in self.inputs:
            if pipe not in known:
                continue
            if pipe.waiting:
                self.inputs.remove(pipe)
                self.inputs.append(pipe)
                return pipe.routing_id, pipe.take()
            pipe.asleep = True
        return None

    def readable(self) -> bool:
        self._begin("look at EVENTS of")
        for pipe in self.inputs:
            if pipe.waiting:
                return True
            pipe.asleep = True
        return False

    def write_back(self, count: int) -> None:
        """To whoever has connected, as a peer may that knows no better."""
        self._begin("write back")
        for pipe in self.inputs:
            back = _Pipe(self, pipe.endpoint, b"", count)
            back.come_up(pipe.sender, next(self._network.numbers))
            for _ in range(count):
                back.put(b"stray")

    def user_of(self, routing_id: bytes) -> None:
        """Nor users."""

    # -- monitoring and closing -------------------------------------------------------------------------------------

    def descriptors(self) -> tuple[int, int]:
        return self.fd, self._monitor.fileno()

    def connection_events(self) -> list[Connected | Disconnected]:
        self._world.offer("read events of", self._monitor)
        events = list(self._events)
        self._events.clear()
        self._monitor.lower()
        return events

    def close(self, linger: float) -> None:  # noqa: ARG002 - nothing lingers here
        self._begin("close")
        self.closed = True
        for endpoint in [endpoint for endpoint, owner in self._network.bound.items() if owner is self]:
            del self._network.bound[endpoint]
        for pipe in list(self.inputs):
            pipe.go_down()
        self.inputs.clear()
        for pipe in self._outputs.values():
            self._drop(pipe)
        self._outputs.clear()


class Dealer(Router):
    """Connected to one ROUTER, and read as well."""

    pipe = _Both

    def connect(self, endpoint: str, alias: bytes | None, routing_id: bytes, key: str | None = None) -> None:
        assert alias is None, "a DEALER has one connection"
        super().connect(endpoint, b"one", routing_id, key)

    def try_send_bare(self, record: bytes) -> bool:
        return self.try_send(b"one", record)

    def receive_bare(self) -> tuple[bytes | None] | None:
        received = self.receive()
        return None if received is None else (received[1],)
