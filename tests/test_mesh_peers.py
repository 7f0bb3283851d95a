"""How nodes find and lose each other: started in either order, restarted, moved, killed, two of one name."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from support import PATIENCE, Net, Node, child, echo, eventually, new_place, outcome, together

from zlink_nogil import DeadlineExceeded, Host, InvalidOperation, NotFound, ShuttingDown, Unavailable
from zlink_nogil.messaging import links as module
from zlink_nogil.messaging.topology import Topology


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


@pytest.fixture
def place() -> str:
    """An endpoint that is known before anybody is there."""
    return new_place()


def canary(client: Node) -> None:
    assert client.work.request(b"canary", reply=bytes, timeout=PATIENCE).result() == b"canary"


# -- coming -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["client", "server"])
def test_peers_may_start_in_either_order(net: Net, place, first):
    if first == "server":
        net.node("server", echo, bind=place)
    client = net.node("client", peers=(place,))
    if first == "client":
        with pytest.raises(DeadlineExceeded, match="the peers of mesh 'test' are not ready"):
            client.host.wait_ready(0.05)
        net.node("server", echo, bind=place)
    client.host.wait_ready(PATIENCE)
    canary(client)


def test_two_hosts_that_name_each_other_have_one_link_each(net: Net):
    places = [new_place(), new_place()]
    nodes = [net.node(name, echo, bind=places[i], peers=(places[1 - i],)) for i, name in enumerate("ab")]
    for node in nodes:
        node.host.wait_ready(PATIENCE)
    for node in nodes:
        canary(node)
        assert len(node.mesh._node.topology.links.by_token) == 1


def test_a_name_that_does_not_resolve_and_the_own_endpoint_do_not_keep_the_others_out(net: Net, place):
    server = net.node("server", echo)
    client = net.node("client", bind=place, peers=(server, place, "tcp://no-such-host.invalid:7001"))
    net.ready(client, server)
    canary(client)
    with pytest.raises(DeadlineExceeded):
        client.host.wait_ready(0.05)


def test_a_peer_that_hangs_up_at_once_is_not_called_again_and_again(net: Net):
    calls: list[int] = []
    third = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return
                calls.append(1)
                if len(calls) == 3:
                    third.set()

        threading.Thread(target=hang_up, daemon=True).start()
        net.node("client", peers=(f"tcp://127.0.0.1:{listener.getsockname()[1]}",))
        assert third.wait(PATIENCE)
        threading.Event().wait(0.3)
        assert len(calls) < 12
        listener.shutdown(socket.SHUT_RDWR)


def test_two_nodes_of_one_name_do_not_throw_each_other_out_for_ever(net: Net, caplog):
    twins = [net.node("twin", echo), net.node("twin", echo)]
    client = net.node("client", peers=tuple(twins))
    eventually(lambda: "has a new life elsewhere" in caplog.text, "it is said aloud")
    threading.Event().wait(0.3)
    assert caplog.text.count("has a new life elsewhere") < 12
    eventually(lambda: client.mesh.nodes() == ["twin"], "one of them is there")


def test_a_failed_start_leaves_nothing_running(net: Net):
    taken = net.node("taken")
    threads = threading.active_count()
    host = Host(workers=1)
    host.mesh("fine")
    host.mesh("test", bind=taken.endpoint)
    with pytest.raises(OSError, match="cannot bind"):
        host.start()
    assert threading.active_count() == threads
    with pytest.raises(InvalidOperation):
        host.start()
    host.close()


def test_a_peer_that_calls_before_it_is_called_is_one_link_and_stays(net: Net, place):
    """Its hello may be there when the own peers are gone through: one of two links would be dropped, and take both along."""
    client = net.node("client", peers=(place,))
    connect = Topology.connect
    for _ in range(5):
        server = net.node("server", echo, bind=place, peers=(client,), start=False)
        with pytest.MonkeyPatch.context() as patch:

            def late(topology: Topology, endpoints: list[str], server: Node = server) -> None:
                eventually(lambda: server.mesh._node.topology.senders.asking, "the client has called")
                connect(topology, endpoints)

            patch.setattr(Topology, "connect", late)
            server.host.start()
        net.ready(client, server)
        server.host.wait_ready(PATIENCE)
        canary(client)
        assert server.mesh.node("client").send(b"x").result() is None
        assert [link.static for link in server.mesh._node.topology.links.by_token.values()] == [True]
        server.close()


def test_a_node_named_in_two_ways_is_one_node(net: Net):
    server = net.node("server", echo)
    client = net.node("client", peers=(server, server.endpoint.replace("127.0.0.1", "localhost")))
    client.host.wait_ready(PATIENCE)
    topology = client.mesh._node.topology
    eventually(lambda: len(topology.links.by_token) == 1, "one of the links is dropped")
    net.ready(client, server)
    for _ in range(3):
        canary(client)
    [link] = topology.links.by_token.values()
    topology.lost(link.data_alias)
    net.ready(client, server)
    canary(client)


def test_a_wildcard_is_reached_at_the_advertised_host(net: Net):
    host = Host(workers=1)
    mesh = host.mesh("test", bind="tcp://*:0", advertise="127.0.0.1", node_id="server", insecure=True)
    mesh.channel("work").handler(echo)
    with host:
        assert mesh.endpoint.startswith("tcp://127.0.0.1:")
        client = net.node("client", peers=(mesh.endpoint,))
        client.host.wait_ready(PATIENCE)
        canary(client)


def test_a_host_may_be_in_two_meshes_that_do_not_know_of_each_other(net: Net):
    server = net.node("server", echo)
    host = Host(workers=2)
    here = host.mesh("test", peers=[server.endpoint])
    there = host.mesh("other", node_id="there")
    there.channel("work").handler(echo)
    with host:
        host.wait_ready(PATIENCE)
        assert here.channel("work").request(b"x", reply=bytes).result() == b"x"
        with pytest.raises(NotFound):
            there.channel("work").request(b"x").submit()
        client = net.node("client", peers=(there.endpoint,), mesh="other")
        client.host.wait_ready(PATIENCE)
        canary(client)


def test_answers_that_come_by_a_new_connection_count(net: Net, place):
    held = net.hold()
    server = net.node("server", held.answer, bind=place)
    client = net.node("client", peers=(place,))
    net.ready(client, server)
    for _ in range(6):
        held.gate.clear()
        pending = client.work.request(b"x", reply=bytes).submit()
        held.wait_begun()
        topology = server.mesh._node.topology
        [link] = topology.links.by_token.values()
        link.failures = 0
        topology.lost(link.completion_alias)
        eventually(lambda: server.mesh.nodes() == ["client"], "the way for answers is there again")
        held.gate.set()
        assert pending.result(PATIENCE) == b"x"
    assert client.count("malformed") == 0
    assert len(client.mesh._node.topology.senders.answering) <= 4


# -- restarting ---------------------------------------------------------------------------------------------------------


def test_a_node_that_is_started_again_at_its_place_is_found_again(net: Net, place):
    held = net.hold()
    first = net.node("server", held.answer, bind=place)
    client = net.node("client", peers=(place,))
    net.ready(client, first)
    lives = []
    for _ in range(2):
        lives.append(client.mesh.peer("server").generation)
        pending = [client.work.request(b"x", reply=bytes, timeout=30.0).submit() for _ in range(5)]
        held.wait_begun()
        first.close(0.1)  # its handler does not end in time
        errors = [outcome(completion) for completion in pending]
        assert {type(error) for error in errors} <= {Unavailable, ShuttingDown}
        assert isinstance(errors[0], Unavailable)
        assert errors[0].accepted
        eventually(lambda: client.mesh.nodes() == [], "the old life is gone")
        with pytest.raises(NotFound):
            client.work.request(b"x").submit()
        held.gate.set()
        held = net.hold()
        first = net.node("server", held.answer, bind=place)
        net.ready(client, first)
    held.gate.set()
    canary(client)
    assert len(set(lives)) == 2
    assert client.count("pending") == 0


def test_a_node_that_has_moved_is_found_when_it_calls(net: Net):
    client = net.node("client")
    for _ in range(3):
        server = net.node("server", echo, peers=(client,))
        net.ready(client, server)
        canary(client)
        server.close()
    assert len(client.mesh._node.topology.senders.asking) <= 3


def test_a_node_that_nobody_named_is_given_up_when_it_stays_away(net: Net, monkeypatch):
    server = net.node("server", echo)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    client.close()
    topology = server.mesh._node.topology
    eventually(lambda: topology.lane.run(lambda: not topology.links.by_token), "it is given up")
    assert topology.senders.asking == {}
    eventually(lambda: topology.senders.answering == {}, "its last answers would have come by now")
    assert server.mesh._node.operations.out._endpoints == {}


def test_a_peer_that_calls_while_its_link_rests_is_there_at_once(net: Net, place, monkeypatch):
    monkeypatch.setattr(module, "LEAST_REST", 60.0)
    monkeypatch.setattr(module, "MOST_REST", 60.0)
    client = net.node("client")
    server = net.node("server", echo, bind=place, peers=(client,))
    net.ready(client, server)
    topology = client.mesh._node.topology
    [link] = topology.links.by_token.values()
    link.failures = 5
    topology.lost(link.data_alias)
    assert client.mesh.nodes() == []
    assert link.open_at is not None
    [theirs] = server.mesh._node.topology.links.by_token.values()
    server.mesh._node.topology.lost(theirs.data_alias)  # says hello again
    net.ready(client, server)
    canary(client)


def test_reconnecting_does_not_pile_up_what_is_known_of_a_peer(net: Net, place):
    client = net.node("client", bind=place)
    server = net.node("server", echo, peers=(place,))
    net.ready(client, server)
    topology = server.mesh._node.topology
    for _ in range(12):
        [link] = topology.links.by_token.values()
        link.failures = 0  # as if it had lasted
        topology.lost(link.data_alias)
        net.ready(server, client)
    assert len(client.mesh._node.topology.senders.asking) <= 4
    for node in (client, server):
        assert len(node.mesh._node.topology.senders.answering) <= 4
    assert len(topology.links.by_token) == len(client.mesh._node.topology.links.by_token) == 1
    canary(client)


# -- being killed -------------------------------------------------------------------------------------------------------

SERVER = """
import sys, threading
from zlink_nogil import Host

def hang(message: bytes, ctx) -> bytes:
    if message == b"hang":
        threading.Event().wait()
    return message

host = Host(workers=4)
host.mesh("test", bind=sys.argv[1], node_id="server").channel("work").handler(hang)
host.start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_killed_peer_ends_what_was_in_flight_once_each_and_comes_back_as_a_new_life(net: Net, place):
    client = net.node("client", peers=(place,))
    for _ in range(2):
        with child(SERVER, place) as server:
            try:
                assert server.stdout.readline() == "ready\n"
                client.host.wait_ready(PATIENCE)
                canary(client)
                ended: Counter[int] = Counter()
                calls = [client.work.request(b"hang", key=str(n % 8), timeout=30.0).submit() for n in range(50)]
                for number, call in enumerate(calls):
                    call.add_done_callback(lambda _, number=number, ended=ended: ended.update([number]))
            finally:
                server.send_signal(signal.SIGKILL)
            errors = [outcome(call) for call in calls]
        assert {type(error) for error in errors} == {Unavailable}
        assert all(error.accepted for error in errors)
        eventually(lambda ended=ended: ended == dict.fromkeys(range(50), 1), "each callback has run once")
        assert client.count("pending") == client.count("deadlines") == 0
        eventually(lambda: client.mesh.nodes() == [], "nobody is ready")


# -- all of it at once --------------------------------------------------------------------------------------------------


def test_whatever_happens_to_the_connections_every_operation_ends_once(net: Net, place):
    """Callers go on while the server is started again and again and connections are cut at both ends."""
    client = net.node("client", peers=(place,))
    stop = threading.Event()
    ended: list[str] = []
    begun: Counter[str] = Counter()

    def call(name: str) -> None:
        for number in range(100_000):
            if stop.is_set():
                return
            make = client.work.send if number % 3 == 0 else client.work.request
            try:
                completion = make(b"x", key=name, timeout=5.0).submit()
            except (NotFound, Unavailable):
                stop.wait(0.001)
                continue
            begun[name] += 1
            completion.add_done_callback(lambda _: ended.append(name))
            error = completion.exception(PATIENCE)
            assert error is None or isinstance(error, Unavailable | ShuttingDown), error

    works = [lambda name=name: call(name) for name in "ab"]

    def disturb() -> None:
        for round_ in range(4):
            server = net.node("server", echo, bind=place)
            net.ready(client, server)
            for node in (client, server):
                for link in list(node.mesh._node.topology.links.by_token.values()):
                    link.failures = 0
                    alias = link.data_alias if round_ % 2 else link.completion_alias
                    node.mesh._node.topology.lost(alias or b"nobody")
            net.ready(client, server)
            server.close(0.1)
        stop.set()

    assert together(*works, disturb) == [None, None, None]
    assert min(begun.values()) > 0
    eventually(lambda: Counter(ended) == begun, "each callback has run once")
    assert client.count("pending") == client.count("deadlines") == 0
    eventually(lambda: client.host._slots.taken() == 0, "the slots are back")
