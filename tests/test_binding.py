"""The binding over real sockets: order and room per peer, lives, limits of a claim, messages of the wrong shape."""

from __future__ import annotations

import math
import select
import socket as plain
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from support import PATIENCE, eventually, new_place

from zlink_nogil.binding import Context, InSocket, OutSocket, Record, raw
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.state import StateLane

MOST = 100_000
BIG = b"x" * 60_000


class Bench:
    """Makes sockets and closes them."""

    def __init__(self) -> None:
        self.context = Context()
        self.woken = threading.Event()
        self.ins: list[InSocket] = []
        self.outs: list[OutSocket] = []
        self.clients: list[zmq.Socket[bytes]] = []

    def bound(self, endpoint: str | None = None) -> InSocket:
        self.ins.append(InSocket(self.context, endpoint or new_place(), MOST))
        return self.ins[-1]

    def out(self, node: bytes = b"node") -> OutSocket:
        self.outs.append(OutSocket(self.context, StateLane("out"), node, MOST, self.woken.set))
        return self.outs[-1]

    def client(self, endpoint: str, kind: int = zmq.DEALER, name: bytes = b"stranger") -> zmq.Socket[bytes]:
        """Somebody who does not use our binding."""
        client = zmq.Context.instance().socket(kind)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.ROUTING_ID, name)
        client.connect(endpoint)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for out in self.outs:
            if not out.lane._closed:
                out.run(out.close, 0.0)
        for socket in self.ins:
            socket.close()
        self.context.end()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(raw, "HIGH_WATER_MARK", 2)
    bench = Bench()
    yield bench
    bench.close()


def receive(socket: InSocket, count: int, while_waiting: Callable[[], Any] = lambda: None) -> list[Record]:
    """Claim until there are `count` records, sleeping on the descriptor in between."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        claimed, hot = socket.claim(count - len(records), 1 << 30, math.inf, time.monotonic)
        records += claimed
        while_waiting()
        if not hot and len(records) < count:
            select.select([socket.fd], [], [], 0.05)
    return records


def nothing_more(socket: InSocket) -> bool:
    return socket.claim(10, 1 << 30, math.inf, time.monotonic) == ([], False)


class Sent:
    """Keeps how the sends of one peer ended, in order."""

    def __init__(self, out: OutSocket, alias: bytes) -> None:
        self.out = out
        self.alias = alias
        self.ended: list[tuple[bytes, ZLinkError | None]] = []

    def send(self, record: bytes) -> Any:
        def send() -> Any:
            waiting = self.out.send(self.alias, record, lambda error: self.ended.append((record[:4], error)))
            if waiting is None:
                self.ended.append((record[:4], None))
            return waiting

        return self.out.run(send)

    def fill(self) -> int:
        """Send until one has to wait and goes on waiting; returns how many were sent, that one included."""
        for number in range(1000):
            self.send(b"%04d" % number + BIG)
            if self.stays_full():
                return number + 1
        raise AssertionError("the peer is never full")

    def stays_full(self) -> bool:
        """Has something waited through what ZeroMQ's own thread still had to do?"""
        for _ in range(15):
            if not self.out.run(lambda: [self.out.retry(), self.out.backlog()][1]):
                return False
            threading.Event().wait(0.002)
        return True


def connected(out: OutSocket, socket: InSocket) -> bytes:
    alias = out.run(out.connect, socket.endpoint)
    eventually(lambda: [out.run(out.service), alias in out._by_fd.values()][1], "connected")
    return alias


# -- sending ------------------------------------------------------------------------------------------------------------


def test_what_is_sent_before_the_connection_is_there_waits_in_it(bench):
    socket, out = bench.bound(), bench.out()
    alias = out.run(out.connect, socket.endpoint)
    sent = Sent(out, alias)
    assert sent.send(b"hello") is None
    [(_, record)] = receive(socket, 1)
    assert record == b"hello"


def test_caller_order_is_wire_order_also_through_a_full_peer_and_each_send_ends_once(bench):
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    count = sent.fill()
    for number in range(count, count + 20):
        assert sent.send(b"%04d" % number + BIG) is not None  # behind the one that waits
    assert out.run(out.backlog) == 21
    assert len(sent.ended) == count - 1
    total = count + 20
    records = receive(socket, total, lambda: out.run(out.service))
    assert [record[:4] for _, record in records if record] == [b"%04d" % number for number in range(total)]
    eventually(lambda: [out.run(out.service), len(sent.ended) == total][1], "all have ended")
    assert sent.ended == [(b"%04d" % number, None) for number in range(total)]
    assert out.run(out.backlog) == 0
    assert sent.send(b"after") is None


def test_a_full_peer_holds_up_nobody_else(bench):
    stuck, free, out = bench.bound(), bench.bound(), bench.out()
    slow = Sent(out, connected(out, stuck))
    quick = Sent(out, connected(out, free))
    slow.fill()
    for number in range(50):
        quick.send(b"%d" % number)
        assert receive(free, 1, lambda: out.run(out.service))[0][1] == b"%d" % number
    assert out.run(out.backlog) == 1


def test_any_send_looks_at_the_peers_that_wait_for_room(bench):
    stuck, free, out = bench.bound(), bench.bound(), bench.out()
    slow = Sent(out, connected(out, stuck))
    quick = Sent(out, connected(out, free))
    count = slow.fill()
    receive(stuck, count - 1)

    def another() -> bool:
        quick.send(b"x")
        receive(free, 1)
        return len(slow.ended) == count

    eventually(another, "a send to the one has sent what waited for the other")  # without `service` or `retry`


def test_a_send_to_nobody_is_unavailable_and_never_accepted(bench):
    out = bench.out()
    with pytest.raises(Unavailable) as caught:
        Sent(out, b"nobody").send(b"x")
    assert not caught.value.accepted


def test_disconnecting_ends_what_waits_once_and_the_alias_is_dead(bench):
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    count = sent.fill()
    out.run(out.disconnect, sent.alias)
    out.run(out.disconnect, sent.alias)
    out.run(out.disconnect, b"nobody")
    assert len(sent.ended) == count
    assert isinstance(sent.ended[-1][1], Unavailable)
    with pytest.raises(Unavailable):  # ZeroMQ itself still calls it full
        sent.send(b"x")
    assert out.run(out.backlog) == 0


def test_an_abandoned_send_is_not_sent_and_does_not_pile_up_at_a_stuck_peer(bench):
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    count = sent.fill()
    for _ in range(100):
        sent.send(b"gone").abandon()
    assert out.run(out.backlog) <= 2
    sent.send(b"last")
    records = receive(socket, count + 1, lambda: out.run(out.service))
    assert [record[:4] for _, record in records if record][-2:] == [b"%04d" % (count - 1), b"last"]
    assert [ended for ended in sent.ended if ended[0] == b"gone"] == []


# -- lives --------------------------------------------------------------------------------------------------------------


def test_every_connection_has_a_name_of_its_own_on_the_wire_that_begins_with_the_nodes(bench):
    socket, out = bench.bound(), bench.out(b"node")
    names = set()
    for _ in range(3):
        alias = connected(out, socket)
        Sent(out, alias).send(b"x")
        names.add(receive(socket, 1)[0][0])
        out.run(out.disconnect, alias)
    assert len(names) == 3
    assert all(name.startswith(b"node") and len(name) == 12 for name in names)


def test_a_stranger_cannot_take_a_name_that_is_in_use(bench):
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    sent.send(b"ours")
    [(name, _)] = receive(socket, 1)
    bench.client(socket.endpoint, name=name).send(b"theirs")
    for number in range(5):
        sent.send(b"%d" % number)
    assert receive(socket, 5, lambda: out.run(out.service)) == [(name, b"%d" % number) for number in range(5)]


def test_the_end_of_a_connection_is_told_once_with_its_alias(bench):
    first, second, out = bench.bound(), bench.bound(), bench.out()
    aliases = [connected(out, first), connected(out, second)]
    lost: list[bytes] = []
    first.close()
    eventually(lambda: lost.extend(out.run(out.service)) or lost, "the loss is told")
    assert lost == [aliases[0]]
    out.run(out.disconnect, aliases[0])
    assert out.run(out.service) == []
    assert Sent(out, aliases[1]).send(b"still here") is None


def test_the_descriptors_tell_of_a_loss(bench):
    socket, out = bench.bound(), bench.out()
    connected(out, socket)
    while select.select(out.descriptors(), [], [], 0)[0]:
        out.run(out.service)
    socket.close()
    assert select.select(out.descriptors(), [], [], PATIENCE)[0]


def test_what_somebody_writes_to_an_out_socket_is_dropped(bench):
    endpoint = new_place()
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(endpoint)
    bench.clients.append(router)
    out = bench.out()
    sent = Sent(out, out.run(out.connect, endpoint))
    sent.send(b"hello")
    name, _ = router.recv_multipart()
    for _ in range(50):
        router.send_multipart([name, b"who are you"])
        out.run(out.service)
    sent.send(b"still here")
    assert router.recv_multipart() == [name, b"still here"]


# -- claiming -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(bench: Bench) -> InSocket:
    """Two records of ten bytes and one of a hundred are there."""
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    for record in (b"1" * 10, b"2" * 10, b"3" * 100):
        sent.send(record)
    eventually(lambda: out.run(lambda: [out.retry(), out.backlog()][1]) == 0, "all are sent")
    eventually(socket._raw.readable, "the first has come")
    return socket


def sizes(records: list[Record]) -> list[int]:
    return [len(record or b"") for _, record in records]


def test_a_claim_stops_at_its_number_of_records_and_says_that_there_may_be_more(filled):
    claimed, hot = filled.claim(1, 1 << 20, math.inf, time.monotonic)
    assert (sizes(claimed), hot) == ([10], True)
    assert sizes(receive(filled, 2)) == [10, 100]
    assert nothing_more(filled)


def test_a_claim_stops_at_its_bytes_and_always_takes_the_first(filled):
    claimed, hot = filled.claim(64, 1, math.inf, time.monotonic)
    assert (sizes(claimed), hot) == ([10], True)
    assert sizes(receive(filled, 2)) == [10, 100]


def test_a_claim_stops_at_its_time_and_always_takes_the_first(filled):
    claimed, hot = filled.claim(64, 1 << 20, 5.0, lambda: 6.0)
    assert (sizes(claimed), hot) == ([10], True)
    receive(filled, 2)


def test_nothing_there_is_an_empty_claim(bench):
    assert nothing_more(bench.bound())


# -- limits and bad input -----------------------------------------------------------------------------------------------


def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_ends_the_connection(bench):
    socket, out = bench.bound(), bench.out()
    alias = connected(out, socket)
    Sent(out, alias).send(b"x" * MOST)
    assert sizes(receive(socket, 1)) == [MOST]
    Sent(out, alias).send(b"x" * (MOST + 1))
    eventually(lambda: alias in out.run(out.service), "the connection is lost")
    assert nothing_more(socket)


@pytest.mark.parametrize("frames", [[b""], [b"", b""], [b"a", b"b"], [b"a", b"", b"c"], [b""] * 30])
def test_a_message_that_has_not_two_frames_is_told_apart_and_the_next_is_whole(bench, frames):
    socket = bench.bound()
    client = bench.client(socket.endpoint)
    client.send_multipart(frames)
    client.send(b"whole")
    [(name, record), (_, whole)] = receive(socket, 2)
    assert name == b"stranger"
    assert record == (frames[0] if len(frames) == 1 else None)
    assert whole == b"whole"


def test_a_peer_that_does_not_speak_zeromq_is_survived(bench):
    with plain.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    socket = bench.bound(f"tcp://127.0.0.1:{port}")
    with plain.create_connection(("127.0.0.1", port)) as http:
        http.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
    with plain.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL")  # the beginning of a greeting
    bench.client(socket.endpoint).send(b"whole")
    while receive(socket, 1)[0] != (b"stranger", b"whole"):
        pass  # ZeroMQ takes some of it for messages of its first version


def test_an_endpoint_in_use_is_an_os_error(bench):
    socket = bench.bound("tcp://127.0.0.1:0")
    assert not socket.endpoint.endswith(":0")
    with pytest.raises(OSError, match="cannot bind"):
        bench.bound(socket.endpoint)


def test_an_endpoint_nothing_can_connect_to_is_a_value_error_and_leaves_nothing(bench):
    out = bench.out()
    with pytest.raises(ValueError, match="cannot connect"):
        out.run(out.connect, "tcp://not a host!:1")
    assert out._endpoints == {}


def test_there_is_one_connection_to_an_endpoint_since_zeromq_could_not_drop_one_of_two(bench):
    socket, out = bench.bound(), bench.out()
    alias = connected(out, socket)
    with pytest.raises(ValueError, match="already"):
        out.run(out.connect, socket.endpoint)
    out.run(out.disconnect, alias)
    assert Sent(out, connected(out, socket)).send(b"again") is None


# -- closing ------------------------------------------------------------------------------------------------------------


def test_what_was_accepted_still_goes_out_and_what_waits_is_told(bench):
    socket, out = bench.bound(), bench.out()
    sent = Sent(out, connected(out, socket))
    count = sent.fill()
    out.run(out.close, PATIENCE)
    assert isinstance(sent.ended[-1][1], Unavailable)
    assert len(receive(socket, count - 1)) == len(sent.ended) - 1
    out.lane.close()


def test_closing_does_not_wait_for_peers_that_are_not_there():
    bench = Bench()
    out = bench.out()
    Sent(out, out.run(out.connect, new_place())).send(b"hello?")
    begun = time.monotonic()
    out.run(out.close, 30.0)
    out.lane.close()
    bench.close()
    assert time.monotonic() - begun < 10.0
