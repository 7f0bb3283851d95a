"""Failure kinds of sections F and G that concern whole hosts: `KINDS` says which tests look at each; new ones are here."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from spots import missing, named_tests
from support import PATIENCE, Net, Node, echo, eventually, outcome

from zlink_nogil import Host, ShuttingDown, Unavailable, _sync

KINDS = {
    "F the GIL comes back silently": (
        "test_gil.py::test_importing_leaves_the_gil_off",
        "test_gil.py::test_orjson_is_imported_only_with_the_gil_forced_off",
        "test_gil.py::test_a_gil_that_comes_back_is_told",
        "test_scheduler_failures_threads.py::test_no_gil_came_back",
        "test_bench.py::test_refuses_with_the_gil_on",
    ),
    "G work arrives after the last look": (
        "test_mesh_lifecycle.py::test_nothing_is_lost_when_a_node_leaves_while_others_send",
        "test_mesh_lifecycle.py::test_closing_ends_every_pending_request_once_as_shutting_down",
        "test_mesh_lifecycle.py::test_two_nodes_that_leave_at_once_do_not_wait_for_each_other",
    ),
    "G a drain that is already finished waits for the full grace time": (
        "test_a_drain_with_nothing_in_flight_does_not_wait_for_idle_peers",
        "test_a_drain_names_the_owner_that_is_stuck_and_nothing_is_admitted_afterwards",
        "test_mesh_lifecycle.py::test_a_draining_node_finishes_what_it_accepted_and_gets_nothing_new",
    ),
    "G fork after the runtime has started": (
        "test_mesh_lifecycle.py::test_a_forked_child_is_refused_everywhere_may_start_anew_and_ends_by_itself",
        "test_client_server_failures.py::test_a_forked_child_is_refused_everywhere_and_may_start_anew",
        "test_spots_closing.py::test_a_forked_child_is_told_at_every_entry",
    ),
    "half-open connections": (
        "test_a_node_behind_connections_that_swallow_everything_is_given_up_and_comes_back",
        "test_liveness.py::test_a_frozen_process_is_given_up_and_comes_back",
    ),
    "all handlers blocked": (
        "test_mesh_blocked.py::test_timeouts_replies_new_peers_and_drain_go_on",
        "test_mesh_blocked.py::test_with_no_permit_left_completions_and_new_peers_go_on",
    ),
}


def test_every_kind_is_looked_at():
    mentioned = [reference for references in KINDS.values() for reference in references]
    assert missing(mentioned, __file__) == []
    assert named_tests(__file__) - set(mentioned) == {"test_every_kind_is_looked_at"}


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


def test_a_drain_with_nothing_in_flight_does_not_wait_for_idle_peers(net: Net):
    for used in (False, True):
        client, server = net.pair(echo)
        if used:
            assert client.work.request(b"x", reply=bytes).result() == b"x"
        for node in (server, client):
            began = _sync.monotonic()
            node.host.drain(60.0)
            node.host.drain(60.0)
            assert _sync.monotonic() - began < PATIENCE, "not the grace time"


def test_a_drain_names_the_owner_that_is_stuck_and_nothing_is_admitted_afterwards(
    net: Net, caplog: pytest.LogCaptureFixture
):
    held = net.hold()
    client, server = net.pair(held.answer)
    stuck = client.work.request(b"x", key="the stuck one", timeout=60.0).submit()
    held.wait_begun()
    with caplog.at_level(logging.ERROR):
        server.host.drain(0.05)
    assert "the stuck one" in caplog.text
    assert isinstance(outcome(stuck), ShuttingDown | Unavailable)
    with pytest.raises(ShuttingDown):
        server.mesh.node("server").send(b"x").submit()
    eventually(lambda: client.mesh.nodes() == [], "it is gone")
    assert held.seen == []
    held.gate.set()


class Proxy:
    """In front of one port of 127.0.0.1, at that port of 127.0.0.2; it passes bytes on, or takes them and tells nobody."""

    def __init__(self) -> None:
        self.swallows = threading.Event()
        self._open: list[socket.socket] = []
        self._connected: list[socket.socket] = []

    def front(self, endpoint: str) -> None:
        port = int(endpoint.rpartition(":")[2])
        listener = socket.create_server(("127.0.0.2", port))
        self._open.append(listener)
        threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                one = listener.accept()[0]
                other = socket.create_connection(("127.0.0.1", port))
                self._connected += [one, other]
                for way in ((one, other), (other, one)):
                    threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.swallows.is_set():
                    target.sendall(data)
        self._hang_up(target)

    def pass_on_again(self) -> None:
        """By new connections: in the old ones there are gaps."""
        self.swallows.clear()
        for each in list(self._connected):
            self._hang_up(each)

    def _hang_up(self, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (*self._open, *self._connected):
            self._hang_up(each)
            each.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


def far(net: Net, proxy: Proxy, node_id: str, *peers: str) -> Node:
    """A node that others reach through the proxy only."""
    host = Host(workers=1)
    liveness = {"probe_interval": 0.05, "dead_after": 0.2}
    node = Node(host, host.mesh("test", node_id=node_id, advertise="127.0.0.2", peers=peers, **liveness))
    node.work.handler(echo)
    node.mesh.handler(echo)
    net.nodes.append(node)
    host.start()
    me = node.mesh._node.me
    proxy.front(me.data_endpoint)
    proxy.front(me.completion_endpoint)
    return node


def test_a_node_behind_connections_that_swallow_everything_is_given_up_and_comes_back(net: Net, proxy: Proxy):
    server = far(net, proxy, "server")
    client = far(net, proxy, "client", server.endpoint)
    net.ready(client, server)
    there = client.mesh.node("server")
    assert client.work.request(b"x", reply=bytes).result() == b"x"
    proxy.swallows.set()
    pending = [there.request(b"%d" % number, timeout=60.0).submit() for number in range(5)]
    errors = [outcome(completion) for completion in pending]
    assert [type(error) for error in errors] == [Unavailable] * 5
    assert all(error.accepted for error in errors)
    eventually(lambda: client.mesh.nodes() == server.mesh.nodes() == [], "each gives the other up")
    assert client.count("pending") == client.count("deadlines") == 0
    proxy.pass_on_again()
    net.ready(client, server)
    assert there.request(b"canary", reply=bytes, timeout=PATIENCE).result() == b"canary"
