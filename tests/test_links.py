"""The connections a topology makes to others: given up, bounded, and hello said again to who does not welcome us."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from spots import Clock
from strangers import Stranger
from support import PATIENCE, Net, Node, echo, eventually

from zlink_nogil.errors import Unavailable
from zlink_nogil.messaging import links as module
from zlink_nogil.messaging import topology, wire
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.links import Links
from zlink_nogil.messaging.peers import Introduction, Link
from zlink_nogil.messaging.wire import Kind
from zlink_nogil.state import StateLane


class Out:
    """In place of an out-socket: notes what is said; the test says what is up or full."""

    def __init__(self) -> None:
        self._aliases = itertools.count(1)
        self.connected: dict[bytes, str] = {}
        self.up: set[bytes] = set()
        self.full: set[bytes] = set()
        self.said: list[tuple[Kind, int]] = []

    def run(self, work: Any, *args: Any) -> Any:
        return work(*args)

    def connect(self, endpoint: str, key: str | None) -> bytes:  # noqa: ARG002
        alias = b"L%d" % next(self._aliases)
        self.connected[alias] = endpoint
        return alias

    def disconnect(self, alias: bytes) -> None:
        self.connected.pop(alias, None)

    def is_up(self, alias: bytes) -> bool:
        return alias in self.up

    def is_full(self, alias: bytes) -> bool:
        return alias in self.full

    def send(self, alias: bytes, record: bytes, done: Any) -> None:  # noqa: ARG002
        if alias not in self.connected:
            raise Unavailable("it is gone")
        header = wire.unpack(record)
        self.said.append((header.kind, Introduction.unpack(record[header.payload_at :]).token))


class Desk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock(monkeypatch)
        self.lane = StateLane("links")
        self.data, self.completion = Out(), Out()
        me = Introduction("test", "me", 1, "tcp://h:1", "tcp://h:2", {}, 1 << 20)
        self.links = Links(self.lane, me, self.data, self.completion, Identity(None))  # type: ignore[arg-type]

    def open(self, node: str, *, static: bool = False) -> Link:
        link = Link(f"tcp://{node}:1", static=static, node=node)
        self.lane.run(self.links.open, link)
        return link

    def due(self) -> tuple[list[Link], list[float]]:
        return self.lane.run(self.links.due, self.clock.now)

    def hear(self, *nodes: str) -> None:
        self.lane.run(self.links.heard, nodes, self.clock.now)

    def hello_from(self, link: Link) -> None:
        assert link.node is not None
        them = Introduction("test", link.node, 7, link.endpoint, "tcp://h:9", {}, 1 << 20)
        self.lane.run(self.links.complete, link, them)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


# -- giving up ----------------------------------------------------------------------------------------------------------


def test_who_told_of_himself_and_is_silent_is_given_up_and_who_was_named_is_not(desk: Desk):
    told, named = desk.open("told"), desk.open("named", static=True)
    assert desk.due() == ([], [desk.clock.now + 15, desk.clock.now + 5, desk.clock.now + 5])
    desk.clock.spend(14_999)
    assert desk.due()[0] == []
    desk.clock.spend(1)
    assert desk.due()[0] == [told]
    desk.clock.spend(1_000_000)
    assert named not in desk.due()[0]


def test_who_goes_on_talking_is_kept_and_who_is_ready_needs_not_talk(desk: Desk):
    link = desk.open("told")
    desk.hello_from(link)
    for _ in range(5):
        desk.clock.spend(14_000)
        desk.hear("told", "somebody else")
        assert desk.due()[0] == []
    desk.lane.run(desk.links.welcome, link)
    desk.clock.spend(1_000_000)
    assert desk.due() == ([], [])


def test_who_was_ready_and_is_away_has_the_same_time(desk: Desk):
    link = desk.open("told")
    desk.hello_from(link)
    desk.lane.run(desk.links.welcome, link)
    desk.clock.spend(100_000)
    desk.lane.run(desk.links.disconnect, link)
    desk.lane.run(desk.links.make_again, link)
    desk.clock.spend(14_999)
    assert desk.due()[0] == []
    desk.clock.spend(1)
    assert desk.due()[0] == [link]
    assert link.was_ready


def test_the_first_to_be_given_up_was_silent_for_longest(desk: Desk):
    links = {name: desk.open(name) for name in ("a", "b", "c")}
    desk.open("named", static=True)
    for link in links.values():
        desk.hello_from(link)
    desk.clock.spend(1)
    desk.hear("a")
    assert [link.node for link in desk.lane.run(desk.links.unready)] == ["b", "c", "a"]
    desk.lane.run(desk.links.welcome, links["b"])
    assert [link.node for link in desk.lane.run(desk.links.unready)] == ["c", "a"]


# -- hello again --------------------------------------------------------------------------------------------------------


def test_hello_is_said_again_over_the_same_connection_more_and_more_seldom_until_it_is_welcomed(desk: Desk):
    link = desk.open("named", static=True)
    desk.data.up.add(link.data_alias)
    said = [(Kind.HELLO, link.token)]
    for seconds in (5, 10, 20, 40, 60, 60):
        desk.clock.spend(1000 * seconds - 1)
        desk.due()
        assert desk.data.said == said
        desk.clock.spend(1)
        desk.due()
        said.append((Kind.HELLO, link.token))
        assert desk.data.said == said
    desk.lane.run(desk.links.welcome, link)
    desk.clock.spend(1_000_000)
    assert desk.due() == ([], [])
    assert desk.data.said == said


def test_hello_does_not_pile_up_where_there_is_no_connection_yet(desk: Desk):
    link = desk.open("named", static=True)
    for _ in range(20):
        desk.clock.spend(60_000)
        desk.due()
    assert desk.data.said == [(Kind.HELLO, link.token)]


# -- on real sockets ----------------------------------------------------------------------------------------------------


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


def tell_of(stranger: Stranger, number: int) -> None:
    """A hello of a node that is nowhere."""
    nowhere = {"data_endpoint": f"tcp://127.0.0.1:{number}", "completion_endpoint": f"tcp://127.0.0.2:{number}"}
    stranger.data_out.send(stranger.says(Kind.HELLO, node=f"nobody-{number}", **nowhere))


def links_of(node: Node) -> list[str | None]:
    links = node.mesh._node.topology.links
    return node.mesh._node.topology.lane.run(lambda: [link.node for link in links])


def test_of_nodes_that_are_not_ready_the_latest_few_have_a_link_and_the_ready_ones_keep_theirs(
    net: Net, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(topology, "MOST_UNREADY", 3)
    server = net.node("server", echo)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    stranger = Stranger(server)
    for number in range(1, 9):
        tell_of(stranger, number)
    eventually(lambda: server.count("given_up") == 5, "the earlier ones are given up")
    assert links_of(server) == ["client", "nobody-6", "nobody-7", "nobody-8"]
    assert len(server.mesh._node.operations.out._endpoints) == 4
    assert client.work.request(b"x", reply=bytes, timeout=PATIENCE).result() == b"x"
    late = net.node("late", peers=(server,))  # pushes one of them out
    net.ready(late, server)
    assert links_of(server) == ["client", "nobody-7", "nobody-8", "late"]
    stranger.close()


def test_a_node_that_never_becomes_ready_is_given_up_in_time_with_all_that_was_kept_of_it(
    net: Net, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    server = net.node("server", echo)
    stranger = Stranger(server)
    tell_of(stranger, 1)
    eventually(lambda: server.count("given_up") == 1, "it is given up")
    assert links_of(server) == []
    node = server.mesh._node
    assert node.operations.out._endpoints == node.replies.out._endpoints == node.topology.senders.asking == {}
    stranger.close()


def test_a_node_that_does_not_welcome_us_hears_our_hello_until_it_does(net: Net, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "HELLO_AGAIN", 0.02)
    client = net.node("client")
    stranger = Stranger(client)
    stranger.hello()
    hellos = [stranger.data_in.recv_multipart() for _ in range(3)]
    assert len({routing_id for routing_id, _ in hellos}) == 1, "over one connection"
    assert len({Introduction.unpack(hello[wire.unpack(hello).payload_at :]).token for _, hello in hellos}) == 1
    stranger.join()
    eventually(lambda: client.mesh.nodes() == ["stranger"], "the stranger can be chosen")
    [link] = client.mesh._node.topology.links
    assert link.hello_at is None
    stranger.close()
