"""The receive rotation of a host: one budget of permits and one set of limits for all data sockets, and a cursor."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from support import PATIENCE, eventually, new_place

from zlink_nogil import _sync
from zlink_nogil.binding import Context, InSocket, OutSocket, Record
from zlink_nogil.binding.inbound import claim_from
from zlink_nogil.messaging.ingress import MOST_BYTES, MOST_RECORDS, MOST_SECONDS, Ingress
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.tracing import Tracer
from zlink_nogil.messaging.wire import HEADER_BYTES, Kind, pack
from zlink_nogil.scheduler import default_pool, default_standby
from zlink_nogil.state import StateLane


def record(payload: bytes, kind: Kind = Kind.SEND) -> bytes:
    return pack(kind, b"", b"", payload, generation=1)


def numbered(count: int, name: str = "") -> list[bytes]:
    return [f"{name}{number:03}".encode() for number in range(count)]


class Queue:
    """In place of a socket: what has come and was not claimed."""

    def __init__(self) -> None:
        self.records: deque[bytes | None] = deque()
        self.fd = _sync.EventFd()

    def receive(self) -> Record | None:
        return (b"client", self.records.popleft()) if self.records else None

    def readable(self) -> bool:
        return bool(self.records)


class Inbox:
    """Keeps what was committed, one list per batch."""

    def __init__(self, permits: Permits) -> None:
        self.permits = permits
        self.batches: list[list[bytes]] = []
        self.bad: list[Exception] = []

    def accept(self, record: bytes, header: Any, answer: Any) -> tuple[str, bytes]:  # noqa: ARG002 - the real signature
        return "owner", record[HEADER_BYTES:]

    def commit(self, batch: dict[str, list[bytes]]) -> None:
        self.batches += batch.values()

    def malformed(self, error: Exception, answer: Any) -> None:  # noqa: ARG002 - the real signature
        self.permits.give_back()
        self.bad.append(error)

    def all(self) -> list[bytes]:
        return [payload for batch in self.batches for payload in batch]


class Port:
    def __init__(self, permits: Permits, *payloads: bytes) -> None:
        self.inbox: Any = Inbox(permits)
        self.queue = Queue()
        self.queue.records += map(record, payloads)
        self.controls: list[Kind] = []
        self.managed = 0
        self.look: float | None = None

    def data(self) -> int:
        return self.queue.fd.fileno()

    def descriptors(self) -> Collection[int]:
        return ()

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        return claim_from(self.queue, most, most_bytes, until, now)

    def answer(self, routing_id: bytes) -> Any:
        return routing_id

    def control(self, routing_id: bytes, header: Any, record: bytes) -> None:  # noqa: ARG002 - the real signature
        self.controls.append(header.kind)

    def manage(self, now: float) -> float | None:  # noqa: ARG002 - the real signature
        self.managed += 1
        return self.look


class Nobody:
    """In place of the stand-by, the pool and its ready set: the test itself leads."""

    def add(self, driver: Ingress) -> None:
        """It is not led."""

    def remove(self, driver: Ingress | None) -> None:
        """It was not led."""

    @property
    def ready(self) -> Nobody:
        return self

    roles = ready


class World:
    def __init__(self, permits: int = 4096) -> None:
        self.permits = Permits(permits)
        self.ingress = Ingress(self.permits, Nobody(), Nobody(), Tracer())  # type: ignore[arg-type]
        self.ingress._now = self.now
        self.time = 100.0
        self.tick = 0.0
        self.ports: list[Port] = []

    def now(self) -> float:
        self.time += self.tick
        return self.time

    def port(self, *payloads: bytes) -> Port:
        port = Port(self.permits, *payloads)
        self.ports.append(port)
        self.ingress.add(port)
        return port

    def claimed(self) -> list[int]:
        """Rotate once; returns how many records each port's inbox was given."""
        before = [len(port.inbox.all()) for port in self.ports]
        self.look = self.ingress.rotate()
        return [len(port.inbox.all()) - count for port, count in zip(self.ports, before, strict=True)]

    def hot(self) -> bool:
        return self.look == self.time

    def reads(self, port: Port) -> bool:
        return port.data() in self.ingress.descriptors()


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def world(permits: int = 4096) -> World:
        worlds.append(World(permits))
        return worlds[-1]

    yield world
    for made in worlds:
        made.ingress.close()
        for port in made.ports:
            port.queue.fd.close()


# -- the budget ---------------------------------------------------------------------------------------------------------


def test_one_rotation_takes_64_records_and_looks_again_at_once(make):
    world = make()
    port = world.port(*numbered(MOST_RECORDS + 6))
    assert world.claimed() == [MOST_RECORDS]
    assert world.hot()
    assert world.permits.free() == 4096 - MOST_RECORDS
    assert world.claimed() == [6]
    assert world.look is None
    assert port.inbox.batches == [numbered(70)[:64], numbered(70)[64:]]  # one batch per rotation, in order
    assert world.permits.free() == 4096 - 70


def test_with_ten_permits_ten_are_claimed_and_the_rest_stays_where_it_is(make):
    world = make(permits=10)
    port = world.port(*numbered(64))
    assert world.claimed() == [10]
    assert world.claimed() == [0]
    assert (len(port.queue.records), port.inbox.bad, world.permits.free()) == (54, [], 0)
    assert port.inbox.all() == numbered(64)[:10]


def test_without_a_permit_no_data_socket_is_waited_for_and_the_first_returned_brings_all_back(make):
    world = make(permits=1)
    first, second = world.port(b"a", b"b"), world.port(b"c")
    assert world.claimed() == [1, 0]
    assert world.claimed() == [0, 0]
    assert world.look is None
    assert not world.reads(first)
    assert not world.reads(second)
    world.ingress._wakeup.clear()
    world.permits.give_back()
    woken = _sync.Epoll()
    woken.register(world.ingress._wakeup.fileno(), 1)
    assert woken.poll(0) != []
    woken.close()
    assert world.claimed() == [0, 1]  # the permit was kept for it, and the cursor went on
    assert world.reads(first)
    assert world.reads(second)


def test_what_is_not_used_of_the_budget_is_given_back(make):
    world = make(permits=100)
    world.port(b"a")
    world.port()
    assert world.claimed() == [1, 0]
    assert world.permits.free() == 99


# -- the cursor ---------------------------------------------------------------------------------------------------------


def test_the_next_rotation_starts_at_the_port_after_the_one_where_this_one_stopped(make):
    world = make()
    world.port(*numbered(100, "a"))
    world.port(*numbered(100, "b"))
    assert [world.claimed() for _ in range(4)] == [[64, 0], [0, 64], [36, 28], [0, 8]]
    assert [port.inbox.all() for port in world.ports] == [numbered(100, "a"), numbered(100, "b")]


def test_one_permit_at_a_time_goes_round_all_ports(make):
    world = make(permits=1)
    for name in "abc":
        world.port(*numbered(2, name))
    taken = []
    for _ in range(6):
        taken.append(world.claimed().index(1))
        world.permits.give_back()
    assert taken == [0, 1, 2, 0, 1, 2]


def test_a_port_that_always_has_more_does_not_keep_the_others_waiting(make):
    world = make()
    greedy, modest = world.port(), world.port(b"x")
    greedy.queue.records += map(record, numbered(1000))
    assert world.claimed() == [64, 0]
    assert world.claimed()[1] == 1
    assert modest.inbox.all() == [b"x"]


def test_a_port_taken_away_behind_the_cursor_leaves_the_others_in_turn(make):
    world = make()
    first, second = world.port(*numbered(64)), world.port(*numbered(64))
    world.port(*numbered(64))
    assert world.claimed() == [64, 0, 0]
    assert world.claimed() == [0, 64, 0]
    world.ingress.remove(first)
    world.ingress.remove(second)
    first.queue.records.append(record(b"late"))
    assert world.claimed() == [0, 0, 64]
    assert (first.managed, second.managed, len(first.queue.records)) == (2, 2, 1)


# -- the other limits ---------------------------------------------------------------------------------------------------


def test_bytes_are_counted_over_all_ports(make):
    world = make()
    big = b"x" * (MOST_BYTES * 6 // 10)
    world.port(big)
    world.port(big, big)
    world.port(b"small")
    assert world.claimed() == [1, 1, 0]
    assert world.hot()
    assert world.claimed() == [0, 1, 1]  # the third one first


def test_the_first_record_is_claimed_whatever_its_size(make):
    world = make()
    world.port(b"x" * (3 * MOST_BYTES), b"y")
    assert world.claimed() == [1]
    assert world.claimed() == [1]


def test_a_rotation_that_has_taken_its_time_goes_on_in_the_next_one(make):
    world = make()
    world.port(*numbered(3))
    world.port(*numbered(3))
    world.tick = MOST_SECONDS * 0.6  # per look at the clock: one record is in time, the second is not
    assert world.claimed() == [2, 0]
    assert world.claimed() == [0, 2]


# -- bad input, control records, management -------------------------------------------------------------------------------


def test_what_is_no_application_record_keeps_no_permit(make):
    world = make(permits=8)
    port = world.port()
    port.queue.records += [b"rubbish", None, record(b"", Kind.HELLO), record(b"", Kind.LEFT), record(b"x")]
    assert world.claimed() == [1]
    assert world.permits.free() == 7
    assert len(port.inbox.bad) == 2
    assert port.controls == [Kind.HELLO, Kind.LEFT]


def test_every_port_is_managed_once_per_rotation_with_or_without_permits(make):
    world = make(permits=1)
    first, second = world.port(b"a", b"b"), world.port()
    first.look, second.look = 170.0, 150.0
    world.claimed()
    world.claimed()
    assert world.look == 150.0  # the earliest; and no haste, for there is no permit
    assert (first.managed, second.managed) == (2, 2)


def test_management_that_takes_long_goes_on_with_the_next_port_in_the_next_rotation(make):
    world = make()
    ports = [world.port() for _ in range(3)]
    world.claimed()
    world.tick = MOST_SECONDS  # per look at the clock: one port is what there is time for
    for managed in ([2, 1, 1], [2, 2, 1], [2, 2, 2], [3, 2, 2]):
        world.claimed()
        assert [port.managed for port in ports] == managed
        assert world.look is not None  # at once


def test_after_the_last_port_nothing_waits_for_a_permit(make):
    world = make(permits=1)
    port = world.port(b"a", b"b")
    world.claimed()
    world.claimed()
    world.ingress.remove(port)
    world.permits.give_back()
    assert world.permits.free() == 1


# -- led by the stand-by, and real sockets ------------------------------------------------------------------------------


class Slow(Port):
    """Says that it is being claimed from, and stays there until it may go on."""

    def __init__(self, permits: Permits) -> None:
        super().__init__(permits)
        self.inside = threading.Event()
        self.gate = threading.Event()

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        self.inside.set()
        assert self.gate.wait(PATIENCE), "nobody opened the gate"
        return super().claim(most, most_bytes, until, now)


def test_nobody_touches_a_port_once_its_removal_has_returned_and_the_others_are_read_on():
    permits = Permits(16)
    ingress = Ingress(permits, default_standby(), default_pool(), Tracer())
    slow, other = Slow(permits), Port(permits)
    ingress.add(other)
    ingress.add(slow)
    assert slow.inside.wait(PATIENCE)
    removal = threading.Thread(target=ingress.remove, args=(slow,), daemon=True)
    removal.start()
    try:
        removal.join(0.05)
        assert removal.is_alive()  # somebody is in there
    finally:
        slow.gate.set()
    removal.join(PATIENCE)
    assert not removal.is_alive()
    managed = slow.managed
    other.queue.records.append(record(b"x"))
    ingress.wake()
    eventually(lambda: other.inbox.all() == [b"x"], "the other port is read")
    assert slow.managed == managed
    ingress.remove(other)
    ingress.close()
    for port in (slow, other):
        port.queue.fd.close()
    assert permits.free() == 15


class Bound(Port):
    def __init__(self, permits: Permits, socket: InSocket) -> None:
        super().__init__(permits)
        self.socket = socket
        self.queue.fd.close()

    def data(self) -> int:
        return self.socket.fd

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        return self.socket.claim(most, most_bytes, until, now)


def test_what_has_no_permit_stays_in_zeromq_and_comes_in_order_when_permits_return():
    context = Context()
    permits = Permits(10)
    ingress = Ingress(permits, default_standby(), default_pool(), Tracer())
    ports = [Bound(permits, InSocket(context, new_place(), 100_000)) for _ in range(2)]
    out = OutSocket(context, StateLane("out"), b"node", 100_000, lambda: None)
    for port in ports:
        ingress.add(port)
    for port in ports:
        alias = out.run(out.connect, port.socket.endpoint)
        for payload in numbered(64):
            assert out.run(out.send, alias, record(payload), lambda _: None) is None

    def arrived() -> int:
        return sum(len(port.inbox.all()) for port in ports)

    given = 10
    while given < 128:
        eventually(lambda: arrived() == given, f"{given} records are claimed")  # noqa: B023 - looked at now
        assert permits.free() == 0
        permits.give_back(2)
        given += 2
    eventually(lambda: arrived() == 128, "all are claimed")
    assert [port.inbox.all() for port in ports] == [numbered(64)] * 2
    assert [port.inbox.bad for port in ports] == [[], []]
    for port in ports:
        ingress.remove(port)
        port.socket.close()
    ingress.close()
    out.run(out.close, 0.0)
    context.end()
