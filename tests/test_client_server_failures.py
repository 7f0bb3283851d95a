"""ClientServer channels when a side misbehaves: stops reading, is killed, sends too much, asks and does not wait."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from children import Child
from support import PATIENCE, Held, child, echo, eventually, new_place, outcome

from zlink_nogil import CapacityExceeded, Client, DeadlineExceeded, Host, Server, ShuttingDown, Unavailable
from zlink_nogil.binding import raw
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.server import channel_mesh
from zlink_nogil.messaging.wire import Header, Kind, pack, pack_error, pack_route, unpack

MOST = 64 * 1024

SERVER = """
import sys
from zlink_nogil import Host
host = Host(workers=1)
server = host.server("api", bind=sys.argv[1], node_id=sys.argv[2])
held = []

@server.handler
def take(message: int, ctx) -> str:
    return f"{sys.argv[2]} {message}"

@server.handler
def note(message: str, ctx) -> None:
    held.append(message)

@server.handler(name="noted")
def noted(message: None, ctx) -> list[str]:
    return held

host.start()
print("ready", flush=True)
host.serve_forever()
"""


class World:
    def __init__(self) -> None:
        self.stack = ExitStack()

    def start(self, host: Host) -> Host:
        host.start()
        self.stack.callback(host.close, 0.3)
        return host

    def hold(self) -> Held:
        held = Held()
        self.stack.callback(held.gate.set)
        return held

    def server(self, *handlers: Any, at: str | None = None, **options: Any) -> Server:
        host = Host(workers=2, **options)
        server = host.server("api", bind=at or new_place())
        for handler in handlers:
            server.handler(handler)
        self.start(host)
        return server

    def client(self, *places: str, ready: bool = True) -> Client:
        host = Host(workers=2)
        client = host.client("api", servers=places)
        self.start(host)
        if ready:
            client.wait_ready(timeout=PATIENCE)
        return client

    def process(self, place: str, node: str) -> Child:
        process = self.stack.enter_context(Child(sys.executable, "-X", "gil=0", "-W", "error", "-c", SERVER, place, node))
        process.line_with("ready")
        return process

    def stranger(self, place: str) -> Stranger:
        return self.stack.enter_context(Stranger(place))


class Stranger:
    """A client that is not ours: it says hello, asks, and reads only when the test does."""

    def __init__(self, place: str) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.RCVHWM, 2), (zmq.SNDHWM, 100_000)):
            self.socket.setsockopt(option, value)
        self.socket.connect(place)
        me = Introduction(channel_mesh("api"), "stranger", 7, "tcp://h:1", "tcp://h:1", {}, MOST, 1)
        self.socket.send(pack(Kind.HELLO, b"", b"", me.pack(), generation=0))
        self.server = self.read()
        self.asked = itertools.count(1)

    def read(self) -> Introduction:
        assert self.socket.poll(PATIENCE * 1000), "nothing came"
        record = self.socket.recv()
        assert unpack(record).kind is Kind.WELCOME
        return Introduction.unpack(record[unpack(record).payload_at :])

    def ask(self, payload: bytes, generation: int | None = None) -> None:
        number = next(self.asked)
        generation = self.server.generation if generation is None else generation
        route = pack_route("application/octet-stream", "api", "bytes")
        operation = (7, number)
        request = pack(
            Kind.REQUEST,
            route,
            b"",
            payload,
            generation=generation,
            operation=operation,
            reply_route=number,
            timeout_ms=60_000,
        )
        self.socket.send(request)

    def answers(self, count: int) -> list[tuple[Kind, int]]:
        """(kind, reply route) of the next ones."""
        found = []
        for _ in range(count):
            assert self.socket.poll(PATIENCE * 1000), f"{len(found)} of {count} answers came"
            header = unpack(self.socket.recv())
            found.append((header.kind, header.reply_route))
        return found

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()


class FakeServer:
    """A server that is not ours: it answers what the test says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = new_place()
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(self.place)

    def read(self) -> Header:
        assert self.socket.poll(PATIENCE * 1000), "nothing came"
        self.client, self.record = self.socket.recv_multipart()
        return unpack(self.record)

    def welcome(self) -> None:
        hello = self.read()
        them = Introduction.unpack(self.record[hello.payload_at :])
        self.generation = them.generation
        me = Introduction(channel_mesh("api"), self.name, 7, "tcp://h:1", "tcp://h:1", {"api": 100}, MOST, 0, them.token)
        self.socket.send_multipart([self.client, pack(Kind.WELCOME, b"", b"", me.pack(), generation=self.generation)])

    def answer(self, kind: Kind, reply_route: int, payload: bytes) -> None:
        route = pack_route("application/octet-stream") if kind is Kind.REPLY else b""
        record = pack(kind, route, b"", payload, generation=self.generation, reply_route=reply_route)
        self.socket.send_multipart([self.client, record])

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.stack:
        yield world


# -- clients ------------------------------------------------------------------------------------------------------------


def test_the_answers_to_a_client_that_does_not_read_wait_for_it_and_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(raw, "HIGH_WATER_MARK", 2)
    server = world.server(echo)
    stuck = world.stranger(server.endpoint)
    for _ in range(100):
        stuck.ask(b"x" * 60_000)
    node = server._running()
    eventually(lambda: node._lane.run(node._socket.backlog) > 0, "answers wait")
    client = world.client(server.endpoint)
    for number in range(20):
        assert client.request(b"%d" % number, reply=bytes).result(PATIENCE) == b"%d" % number
    assert stuck.answers(100) == [(Kind.REPLY, number) for number in range(1, 101)]
    assert server.statistics()["dropped_replies"] == 0


def test_what_waits_for_a_client_that_goes_is_dropped_and_counted(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(raw, "HIGH_WATER_MARK", 2)
    server = world.server(echo)
    stuck = world.stranger(server.endpoint)
    for _ in range(100):
        stuck.ask(b"x" * 60_000)
    node = server._running()
    eventually(lambda: node._lane.run(node._socket.backlog) > 0, "answers wait")
    stuck.socket.close()
    eventually(lambda: node._lane.run(node._socket.backlog) == 0, "nothing waits")
    assert server.statistics()["dropped_replies"] > 0
    client = world.client(server.endpoint)
    assert client.request(b"x", reply=bytes).result(PATIENCE) == b"x"


def test_a_record_for_an_earlier_life_of_the_server_is_refused(world: World):
    server = world.server(echo)
    stranger = world.stranger(server.endpoint)
    stranger.ask(b"x", generation=stranger.server.generation ^ 1)
    stranger.ask(b"y")
    assert stranger.answers(2) == [(Kind.ERROR, 1), (Kind.REPLY, 2)]
    assert server.statistics()["refused"] == 1


def test_a_record_of_who_has_not_said_hello_is_dropped(world: World):
    server = world.server(echo)
    stranger = world.stranger(server.endpoint)
    silent: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    silent.setsockopt(zmq.LINGER, 0)
    silent.connect(server.endpoint)
    silent.send(b"rubbish")
    silent.send_multipart([b"two", b"frames"])
    eventually(lambda: server.statistics()["malformed"] == 2, "both are counted")
    silent.close()
    stranger.ask(b"x")
    assert stranger.answers(1) == [(Kind.REPLY, 1)]


def test_a_cancelled_request_frees_its_place_and_its_answer_is_late(world: World):
    held = world.hold()
    server = world.server(held.answer)
    client = world.client(server.endpoint)
    request = client.request(b"x", reply=bytes).submit()
    held.wait_begun()
    assert request.cancel()
    assert client.statistics()["pending"] == 0
    held.gate.set()
    eventually(lambda: client.statistics()["late"] == 1, "the late answer is counted")


def test_calls_of_several_threads_that_wait_for_a_server_keep_each_threads_order(world: World):
    seen: list[list[int]] = []

    def take(message: list[int], ctx: Any) -> None:  # noqa: ARG001
        seen.append(message)

    place = new_place()
    client = world.client(place, ready=False)
    started = threading.Barrier(4)
    done: list[Any] = []

    def calls(thread: int) -> None:
        for number in range(100):
            if number == 50:
                started.wait(PATIENCE)  # these wait; the server comes while the others are made
            done.append(client.send([thread, number], declared=list[int], name="list", timeout=PATIENCE).submit())

    threads = [threading.Thread(target=calls, args=(thread,), daemon=True) for thread in range(3)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE)
    world.server(take, at=place)
    for thread in threads:
        thread.join(PATIENCE)
    assert [outcome(completion) for completion in done] == [None] * 300
    eventually(lambda: len(seen) == 300, "all are handled")
    for thread in range(3):
        assert [number for which, number in seen if which == thread] == list(range(100))


# -- servers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_a_record_over_the_servers_limit_is_refused_also_when_it_waited_and_the_connection_stays(world: World, waits: bool):
    place = new_place()
    if not waits:
        world.server(echo, at=place, max_record_bytes=MOST)
    client = world.client(place, ready=not waits)
    calls = [client.request(b"x" * size, reply=bytes) for size in (1, 70_000, 2)]
    small, large, next_one = [call.submit() for call in calls if waits] or [None] * 3
    if waits:
        world.server(echo, at=place, max_record_bytes=MOST)
        assert small.result(PATIENCE) == b"x"
        assert next_one.result(PATIENCE) == b"xx"
        with pytest.raises(CapacityExceeded, match=f"max_record_bytes \\({MOST}\\)"):
            large.result(PATIENCE)
    else:
        with pytest.raises(CapacityExceeded, match=f"max_record_bytes \\({MOST}\\)"):
            calls[1].result(PATIENCE)
        assert calls[2].result(PATIENCE) == b"xx"
    assert client.statistics()["pending"] == 0


def test_a_server_that_is_killed_is_left_and_its_next_life_is_found(world: World):
    place = new_place()
    process = world.process(place, "A")
    client = world.client(place)
    assert client.request(1, reply=str).result(PATIENCE) == "A 1"
    process.signal(signal.SIGSTOP)
    pending = client.request(2, reply=str, timeout=60.0).submit()
    process.signal(signal.SIGKILL)
    lost = outcome(pending)
    assert isinstance(lost, Unavailable), lost
    assert lost.accepted  # it may have been handled
    process.end()
    eventually(lambda: client.servers() == [], "it is out of the list")
    waiting = client.request(3, reply=str, timeout=60.0).submit()
    world.process(place, "B")
    answer = outcome(waiting)
    assert answer == "B 3" or isinstance(answer, Unavailable)  # starting a process may take longer than a call waits
    client.wait_ready(timeout=PATIENCE)
    assert client.request(4, reply=str).result(PATIENCE) == "B 4"
    assert client.servers() == ["B"]


def test_only_the_server_that_was_asked_can_answer(world: World):
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeServer(name)) for name in "ab"]
        client = world.client(*(fake.place for fake in fakes), ready=False)
        for fake in fakes:
            fake.welcome()
        client.wait_ready(timeout=PATIENCE)
        pending = client.request(b"x", reply=bytes).submit()
        asked, other = fakes  # the smaller name comes first
        reply_route = asked.read().reply_route
        other.answer(Kind.REPLY, reply_route, b"forged")
        other.answer(Kind.ERROR, reply_route, pack_error(Unavailable("forged")))
        eventually(lambda: client.statistics()["malformed"] == 2, "they are counted")
        assert not pending.done()
        asked.answer(Kind.REPLY, reply_route, b"right")
        assert pending.result(PATIENCE) == b"right"


def test_a_server_that_stops_reading_holds_up_its_own_calls_and_gets_them_in_order(world: World):
    slow, quick = new_place(), new_place()
    process = world.process(slow, "slow")
    world.process(quick, "quick")
    client = world.client(slow)
    others = world.client(quick)
    process.signal(signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        client.request(1, reply=str, timeout=0.1).result(PATIENCE)
    sends = [client.send(f"{number:05}" + "x" * 10_000, timeout=60.0).submit() for number in range(1500)]
    assert not sends[-1].done()  # more than the connection takes
    assert others.request(2, reply=str).result(PATIENCE) == "quick 2"
    process.signal(signal.SIGCONT)
    assert [outcome(send) for send in sends] == [None] * 1500
    noted = client.request(None, name="noted", reply=list[str], timeout=60.0).result(60.0)
    assert [int(message[:5]) for message in noted] == list(range(1500))


def test_closing_twice_is_harmless_on_both_sides(world: World):
    host, user = Host(workers=1), Host(workers=1)
    server = host.server("api", bind=new_place())
    server.handler(echo)
    world.start(host)
    client = user.client("api", servers=[server.endpoint])
    world.start(user)
    client.wait_ready(timeout=PATIENCE)
    for closing in (user, host, host, user):
        closing.close()
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            client.request(b"x").result(PATIENCE)


FORK = """
import os, sys
from zlink_nogil import Host, InvalidOperation

def echo(message: bytes, ctx) -> bytes:
    return message

def pair(place):
    host = Host(workers=2)
    server = host.server("api", bind=place)
    server.handler(echo)
    return host, server, host.client("api", servers=[place])

host, server, client = pair(sys.argv[1])
host.start()
host.wait_ready()
child = os.fork()
if child == 0:
    refused = 0
    for use in (client.send(b"x").submit, client.request(b"x").submit, client.servers, client.wait_ready, client.statistics,
                lambda: server.endpoint, server.statistics, lambda: server.set_weight(3), host.close):
        try:
            use()
        except InvalidOperation as error:
            refused += 1
        except BaseException as error:
            print("child:", use, repr(error), flush=True)
    fresh, _, own = pair(sys.argv[2])
    with fresh:
        fresh.wait_ready()
        assert own.request(b"fresh", reply=bytes).result() == b"fresh"
    print("child refused", refused, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("parent", status, client.request(b"x", reply=bytes).result(), server.statistics()["clients"], flush=True)
host.close()
"""


def test_a_forked_child_is_refused_everywhere_and_may_start_anew():
    with child(FORK, new_place(), new_place()) as parent:
        told, _ = parent.communicate(timeout=60)
    assert told.splitlines() == ["child refused 9", "parent 0 b'x' 1"], told
    assert parent.returncode == 0
