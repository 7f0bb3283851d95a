"""Who may speak: keys, the list of them, node ids bound to keys, and listeners without."""

from __future__ import annotations

import json
import logging
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from children import COMMAND, run
from support import PATIENCE, Held, eventually, new_place
from zmq.utils.monitor import parse_monitor_message

from zlink_nogil import Host, Keys, Mesh, Unavailable
from zlink_nogil.binding import authenticator
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.wire import Kind, pack


def pairs(*names: str) -> dict[str, Keys]:
    """A pair per name, and everybody knows everybody."""
    made = {name: Keys.generate({}) for name in names}
    known = {name: keys.public for name, keys in made.items()}
    return {name: Keys(keys.public, keys.secret, known) for name, keys in made.items()}


def echo(message: str, ctx: Any) -> str:
    return f"{ctx.source}: {message}"


class Net:
    def __init__(self) -> None:
        self.keys = pairs("a", "b")
        self.place = f"tcp://127.0.0.1:{_free_port()}"
        self.a, self.b = Host(workers=1), Host(workers=1)
        self.mesh: Mesh = self.a.mesh("m", node_id="a", bind=self.place, keys=self.keys["a"])
        self.ran: list[str] = []

        @self.mesh.handler
        def take(message: str, ctx: Any) -> str:
            self.ran.append(message)
            return echo(message, ctx)

    def __enter__(self) -> Net:
        self.a.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.b.close()
        self.a.close()


def _free_port() -> int:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        return socket.bind_to_random_port("tcp://127.0.0.1")


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


# -- those who may ------------------------------------------------------------------------------------------------------


def test_two_nodes_with_keys_talk_both_ways(net: Net):
    other = net.b.mesh("m", node_id="b", peers={"a": net.place}, keys=net.keys["b"])
    other.handler(echo)
    net.b.start()
    net.b.wait_ready(PATIENCE)
    eventually(lambda: net.mesh.nodes() == ["b"])
    assert other.node("a").request("x", reply=str).result(PATIENCE) == "b: x"
    assert net.mesh.node("b").request("y", reply=str).result(PATIENCE) == "a: y"


def test_a_client_and_a_server_with_keys(net: Net):
    serving, calling = Host(workers=1), Host(workers=1)
    server = serving.server("api", node_id="a", keys=net.keys["a"])
    server.handler(echo)
    with serving:
        client = calling.client("api", servers={"a": server.endpoint}, node_id="b", keys=net.keys["b"])
        with calling:
            calling.wait_ready(PATIENCE)
            assert client.request("x", reply=str).result(PATIENCE) == "b: x"


# -- those who may not --------------------------------------------------------------------------------------------------


def stranger(
    endpoint: str,
    server_key: str,
    pair: tuple[str, str] | None,
    node: str,
    at: str = "tcp://127.0.0.1:1",
    answers: int = 0,
) -> tuple[zmq.Context[Any], Any]:
    """A bare socket that says hello as `node`, and then sends a message for the handler."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.setsockopt(zmq.ROUTING_ID, node.encode() + b"12345678")
    if pair is not None:
        socket.curve_publickey, socket.curve_secretkey = pair[0].encode(), pair[1].encode()
        socket.curve_serverkey = server_key.encode()
    socket.connect(endpoint)
    me = Introduction("m", node, 7, at, "tcp://127.0.0.1:1", {}, 1 << 20, 1, answers)
    socket.send(pack(Kind.HELLO, b"", b"", me.pack(), generation=0))
    return context, socket


def close(context: zmq.Context[Any], socket: Any) -> None:
    socket.close()
    context.term()


def record(net: Net) -> bytes:
    route = b"application/json\0\0str"
    return pack(
        Kind.REQUEST, route, b"", b'"in"', generation=net.mesh._running().me.generation, reply_route=1, timeout_ms=5000
    )


def test_nobody_without_a_listed_key_reaches_a_handler(net: Net):
    evil = Keys.generate({})
    listed = net.keys["b"]
    known = net.keys["a"].public
    strangers = [
        stranger(net.place, known, None, "b"),  # no key at all
        stranger(net.place, known, (evil.public, evil.secret), "b"),  # a key that is on no list
        stranger(net.place, evil.public, (listed.public, listed.secret), "b"),  # takes the node for another
        stranger(net.place, known, (listed.public, listed.secret), "c"),  # a listed key, under another's name
    ]
    for _, socket in strangers:
        with suppress(zmq.Again):  # whoever was hung up on has nowhere to send to
            socket.send(record(net), zmq.NOBLOCK)
    eventually(lambda: net.mesh.statistics()["malformed"] >= 2, "the last one's hello and message")
    assert net.ran == []
    assert net.mesh.nodes() == []
    assert net.mesh.statistics()["pending"] == 0
    for each in strangers:
        close(*each)
    net.b.mesh("m", node_id="b", peers={"a": net.place}, keys=listed)
    net.b.start()
    net.b.wait_ready(PATIENCE)  # who may, still can


class Three:
    """`a` knows `b`, at a place, and `c`, who has a key of his own and is nobody to be trusted."""

    def __init__(self) -> None:
        self.keys = pairs("a", "b", "c")
        self.place, self.place_of_b = (f"tcp://127.0.0.1:{_free_port()}" for _ in range(2))
        self.a, self.b = Host(workers=1), Host(workers=1)
        self.mesh = self.a.mesh("m", node_id="a", bind=self.place, peers={"b": self.place_of_b}, keys=self.keys["a"])
        self.b.mesh("m", node_id="b", bind=self.place_of_b, keys=self.keys["b"]).handler(echo)

    def __enter__(self) -> Three:
        self.a.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.b.close()
        self.a.close()

    def link_to_b(self) -> Any:
        return next(link for link in list(self.mesh._running().topology.links.by_token.values()) if link.node == "b")

    def c_says(self, **claims: Any) -> tuple[zmq.Context[Any], Any]:
        keys = self.keys["c"]
        return stranger(self.place, self.keys["a"].public, (keys.public, keys.secret), "c", **claims)


def test_a_listed_node_cannot_say_that_it_is_where_another_one_is():
    with Three() as three:
        said = three.c_says(at=three.place_of_b)
        eventually(lambda: three.mesh.statistics()["malformed"] == 1, "the refusal")
        close(*said)
        assert three.link_to_b().them is None
        three.b.start()
        three.a.wait_ready(PATIENCE)
        assert three.mesh.nodes() == ["b"]


def test_a_listed_node_cannot_take_the_link_of_another_one_by_its_token():
    with Three() as three:
        three.b.start()
        three.a.wait_ready(PATIENCE)
        token = three.link_to_b().token
        said = three.c_says(answers=token)
        eventually(lambda: "c" in three.mesh._running().topology.links.by_node, "a link of its own")
        link = three.link_to_b()
        assert (link.token, link.them.node, link.peer.node) == (token, "b", "b")
        assert three.mesh.node("b").request("x", reply=str).result(PATIENCE) == "a: x"
        close(*said)


def test_a_server_cannot_say_that_it_is_another_one(net: Net, caplog: pytest.LogCaptureFixture):
    serving, calling = Host(workers=1), Host(workers=1)
    server = serving.server("api", node_id="z", keys=net.keys["a"])
    with serving:
        client = calling.client("api", servers={"a": server.endpoint}, node_id="b", keys=net.keys["b"])
        with calling:
            eventually(lambda: "says that it is 'z', not 'a'" in caplog.text)
            assert client.statistics()["pending"] == 0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[Net, str], None]:
    """`broken(net, place)`: the authenticator of who listens there dies, of the next one who comes."""

    def fail(self: Any, asked: list[bytes]) -> None:  # noqa: ARG001
        raise RuntimeError("out of order")

    def die(net: Net, place: str) -> None:
        monkeypatch.setattr(authenticator.Authenticator, "_answer", fail)
        keys = net.keys["b"]
        first = stranger(place, net.keys["a"].public, (keys.public, keys.secret), "b")
        eventually(lambda: "the authenticator has failed" in caplog.text)
        close(*first)

    return die


def nobody_listens(place: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        eventually(lambda: _binds(taken, place), "the end of the listener")


def test_when_the_authenticator_fails_nobody_comes_in_any_more(net: Net, broken: Callable[[Net, str], None]):
    broken(net, net.place)
    nobody_listens(net.place)
    nobody_listens(net.mesh._running().me.completion_endpoint)
    assert net.ran == []


def test_when_the_authenticator_fails_the_listeners_do_not_wait_for_permits(net: Net, broken: Callable[[Net, str], None]):
    permits = net.a._permits
    taken: list[int] = []

    def take_all() -> bool:
        taken.append(permits.take(permits.most, print))
        return sum(taken) == permits.most

    eventually(take_all, "all permits")  # who looks for records has some in hand now and then
    broken(net, net.place)
    nobody_listens(net.place)
    permits.give_back(permits.most)


def test_when_a_servers_authenticator_fails_nobody_comes_in_and_who_was_in_is_told(
    net: Net, broken: Callable[[Net, str], None]
):
    serving, calling = Host(workers=1), Host(workers=1)
    server = serving.server("api", node_id="a", keys=net.keys["a"])
    held = Held()
    server.handler(held.answer)
    with serving:
        client = calling.client("api", servers={"a": server.endpoint}, node_id="b", keys=net.keys["b"])
        with calling:
            calling.wait_ready(PATIENCE)
            pending = client.request(b"x", reply=bytes).submit()
            held.wait_begun()
            broken(net, server.endpoint)
            nobody_listens(server.endpoint)
            with pytest.raises(Unavailable) as told:
                pending.result(PATIENCE)
            assert told.value.accepted
            held.gate.set()
            eventually(lambda: server.statistics()["clients"] == 0, "the server has noticed")
            assert client.servers() == []


def test_without_an_authenticator_nobody_is_let_in(net: Net, broken: Callable[[Net, str], None]):
    dying = net.mesh._running()._authenticator
    assert dying is not None
    dying.on_death = lambda: None  # the listener stays
    broken(net, net.place)
    keys = net.keys["b"]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.curve_serverkey = net.keys["a"].public.encode()
        with socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) as events:
            socket.connect(net.place)
            assert events.poll(PATIENCE * 1000)
            assert parse_monitor_message(events.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED


def test_a_server_that_is_closed_survives_the_end_of_its_authenticator(net: Net):
    host = Host(workers=1)
    server = host.server("api", node_id="a", keys=net.keys["a"])
    with host:
        dying = server._running()._authenticator
        assert dying is not None
        stop = dying.on_death
    stop()  # its lane is closed
    nobody_listens(server._running().endpoint)


def _binds(socket: zmq.Socket[bytes], place: str) -> bool:
    try:
        socket.bind(place)
    except zmq.ZMQError:
        return False
    return True


# -- options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "tcp://localhost:7001", "tcp://[::1]:0", "ipc://@somewhere"])
def test_loopback_needs_no_keys(bind: str):
    Host().mesh("m", bind=bind)
    Host().server("s", bind=bind)


@pytest.mark.parametrize("bind", ["tcp://10.0.0.1:7001", "tcp://*:7001", "tcp://example.org:7001"])
def test_beyond_loopback_it_has_to_be_said(bind: str):
    advertised = {"advertise": "example.org", "bind": bind}
    for add in (Host().mesh, Host().server):
        with pytest.raises(ValueError, match=r"give keys=, or insecure=True"):
            add("m", **advertised)
        add("n", insecure=True, **advertised)
    Host().mesh("m", keys=pairs("a")["a"], **advertised)


def test_an_open_listener_is_logged(caplog: pytest.LogCaptureFixture):
    host = Host(workers=1)
    host.mesh("m", bind="tcp://0.0.0.0:0", advertise="127.0.0.1", insecure=True)
    with caplog.at_level(logging.WARNING), host:
        assert "without keys: whoever reaches it may speak" in caplog.text


def test_keys_that_do_not_fit_are_refused():
    keys = pairs("a", "b")["a"]
    with pytest.raises(ValueError, match="a mapping of node ids"):
        Host().mesh("m", peers=[new_place()], keys=keys)
    with pytest.raises(ValueError, match="no key is known"):
        Host().mesh("m", peers={"stranger": new_place()}, keys=keys)
    with pytest.raises(ValueError, match="40 characters"):
        Keys("short", keys.secret, {})
    with pytest.raises(ValueError, match="two nodes have one key"):
        Keys(keys.public, keys.secret, {"a": keys.public, "b": keys.public})
    assert keys.secret not in repr(keys)


# -- the command line ---------------------------------------------------------------------------------------------------


def test_keygen_writes_a_secret_once_and_prints_what_others_need(tmp_path: Path):
    file = tmp_path / "a.key"
    made = run(COMMAND, "keygen", file, "--name", "node-a")
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (tmp_path / "peers.toml").write_text(made.stdout)
    keys = Keys.load(file, tmp_path / "peers.toml")
    assert keys.peers == {"node-a": keys.public} == tomllib.loads(made.stdout)
    assert keys.secret not in made.stdout + made.stderr
    again = run(COMMAND, "keygen", file)
    assert again.returncode == 1
    assert "File exists" in again.stderr
    assert Keys.load(file, {}).secret == keys.secret


def test_any_name_can_be_read_again(tmp_path: Path):
    name = 'a "node" \\ über 🔑\x7f\n'
    keys = Keys.generate({})
    keys.save(tmp_path / "a.key", name)
    (tmp_path / "peers.toml").write_text(keys.line(name), "utf-8")
    assert Keys.load(tmp_path / "a.key", tmp_path / "peers.toml") == Keys(keys.public, keys.secret, {name: keys.public})
    assert tomllib.loads((tmp_path / "a.key").read_text("utf-8"))["name"] == name


@pytest.mark.parametrize("content", ["", "public = 'x'", "nonsense"])
def test_what_is_no_key_file_is_told(tmp_path: Path, content: str):
    file = tmp_path / "a.key"
    file.write_text(content)
    with pytest.raises(ValueError, match=json.dumps(str(file))[1:-1]):
        Keys.load(file, {})
