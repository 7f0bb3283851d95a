"""Bad input on real sockets: after each piece of it a proper request succeeds, and counters say what happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from strangers import GENERATION, Stranger, control
from support import PATIENCE, Held, Net, Node, echo, eventually, outcome

from zlink_nogil import (
    CapacityExceeded,
    Completion,
    Context,
    DeadlineExceeded,
    InternalFailure,
    NotFound,
    ProtocolError,
    Unavailable,
)
from zlink_nogil.messaging import JsonCodec, wire
from zlink_nogil.messaging.wire import HEADER_BYTES, Kind

LIMIT = 64 * 1024


def reply(kind: Kind, route: bytes, payload: bytes, *, generation: int, reply_route: int) -> bytes:
    return wire.pack(kind, route, b"", payload, generation=generation, reply_route=reply_route)


ECHO = wire.pack_route("application/octet-stream", "work", "bytes")
RAW_REPLY = wire.pack_route("application/octet-stream")


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


@pytest.fixture
def nodes(net: Net) -> tuple[Node, Node]:
    """(client, server)"""
    return net.pair(echo)


@pytest.fixture
def stranger(nodes: tuple[Node, Node]) -> Iterator[Stranger]:
    """Somebody at the server's door."""
    stranger = Stranger(nodes[1])
    yield stranger
    stranger.close()


def canary(client: Node, server: Node) -> None:
    assert client.work.request(b"canary", reply=bytes, timeout=PATIENCE).result() == b"canary"
    server.free_permits()


# -- the data socket ----------------------------------------------------------------------------------------------------

WHOLE = wire.pack(Kind.REQUEST, ECHO, b"", b"", generation=1, reply_route=3)
GARBAGE: dict[str, list[bytes]] = {
    "empty frame": [b""],
    "two empty frames": [b"", b""],
    "three frames": [b"a", b"b", b"c"],
    "a whole record in two frames": [WHOLE[:20], WHOLE[20:]],
    "a record and an empty frame": [WHOLE, b""],
    "one byte": [b"\x01"],
    "half a header": [WHOLE[: HEADER_BYTES // 2]],
    "a header that says more than there is": [WHOLE[:HEADER_BYTES]],
    "unknown version": [b"\x02" + WHOLE[1:]],
    "unknown kind": [b"\x01\x63" + WHOLE[2:]],
    "a request before hello": [WHOLE],
    "a reply on the data socket": [wire.pack(Kind.REPLY, b"", b"", b"", generation=1, reply_route=1)],
    "a welcome on the data socket": [control(Kind.WELCOME, b"{}")],
    "leaving on the data socket": [control(Kind.LEAVING, b"{}")],
    "a megabyte of nothing": [bytes(1_000_000)],
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_on_the_data_socket_is_counted_and_survived(nodes, stranger, case):
    client, server = nodes
    stranger.data_out.send_multipart(GARBAGE[case])
    eventually(lambda: server.count("malformed") == 1, "it is counted")
    canary(client, server)


def test_much_garbage_takes_nobody_along(nodes, stranger):
    client, server = nodes
    for _ in range(20):
        for frames in GARBAGE.values():
            stranger.data_out.send_multipart(frames)
        canary(client, server)
    eventually(lambda: server.count("malformed") == 20 * len(GARBAGE), "all are counted")


BAD_INTRODUCTIONS: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "nested too deeply": b"[" * 100_000,
    "nothing in it": b"{}",
    "something unknown in it": {"more": 1},
    "mesh is a number": {"mesh": 5},
    "node is nothing": {"node": ""},
    "node is null": {"node": None},
    "node is half a surrogate pair": {"node": "\ud800"},
    "node is a book": {"node": "x" * 201},
    "generation is text": {"generation": "1"},
    "generation is negative": {"generation": -1},
    "generation is too big": {"generation": 2**64},
    "generation is a float": {"generation": 1.5},
    "generation is true": {"generation": True},
    "token is nan": {"token": float("nan")},
    "channels is a list": {"channels": ["work"]},
    "a channel is nothing": {"channels": {"": 1}},
    "a weight is negative": {"channels": {"work": -1}},
    "no port": {"data_endpoint": "tcp://127.0.0.1"},
    "no such port": {"completion_endpoint": "tcp://127.0.0.1:99999"},
    "no protocol": {"data_endpoint": "127.0.0.1:5"},
    "inproc": {"data_endpoint": "inproc://x"},
    "a wildcard for data": {"data_endpoint": "tcp://*:5"},
    "a wildcard for completions": {"completion_endpoint": "tcp://*:5"},
    "a path that is too long": {"data_endpoint": "ipc://" + "x" * 500},
}


@pytest.mark.parametrize("case", BAD_INTRODUCTIONS)
def test_a_hello_that_cannot_be_used_is_counted_and_leaves_no_trace(nodes, stranger, case):
    client, server = nodes
    bad = BAD_INTRODUCTIONS[case]
    topology = server.mesh._node.topology
    before = (set(topology.links.by_token), set(topology.senders.asking))
    stranger.data_out.send(stranger.says(Kind.HELLO, **bad) if isinstance(bad, dict) else control(Kind.HELLO, bad))
    eventually(lambda: server.count("malformed") == 1, "it is counted")
    canary(client, server)
    assert (set(topology.links.by_token), set(topology.senders.asking)) == before
    assert server.mesh.nodes() == ["client"]


def test_hello_many_times_over_is_one_link(nodes, stranger):
    client, server = nodes
    topology = server.mesh._node.topology
    for _ in range(50):
        stranger.hello()
    assert len(topology.links.by_token) == 2
    assert len(topology.senders.asking) == 2
    canary(client, server)


@pytest.mark.parametrize("change", [{"mesh": "other"}, {"node": "server"}])
def test_another_mesh_and_the_own_name_are_refused(nodes, stranger, change):
    client, server = nodes
    stranger.data_out.send(stranger.says(Kind.HELLO, **change))
    stranger.data_out.send(stranger.request(ECHO))  # from somebody who is not known
    eventually(lambda: server.count("malformed") == 1, "the request is counted")
    canary(client, server)
    assert server.mesh.nodes() == ["client"]


# -- requests that are not right ----------------------------------------------------------------------------------------

BAD_EXTRAS = b"\x01\xff\xff"
BAD_REQUESTS: dict[str, tuple[bytes, bytes, bytes, type[Exception]]] = {
    "unknown codec": (wire.pack_route("x/unknown", "work", "bytes"), b"", b"", ProtocolError),
    "no codec": (wire.pack_route("", "work", "bytes"), b"", b"", ProtocolError),
    "no route": (b"", b"", b"", ProtocolError),
    "a route that is no text": (b"\xff\0\xff\0\xff", b"", b"", ProtocolError),
    "unknown channel": (wire.pack_route("application/json", "play", "bytes"), b"", b"", NotFound),
    "unknown message": (wire.pack_route("application/json", "work", "Charge"), b"", b"", NotFound),
    "bad metadata": (ECHO, BAD_EXTRAS, b"", ProtocolError),
    "another codec than the handler's": (wire.pack_route("application/json", "work", "bytes"), b"", b"{}", ProtocolError),
    "bad JSON": (wire.pack_route("application/json", "work", "bytes"), b"", b"{", ProtocolError),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_request_that_leads_nowhere_is_answered_with_the_reason(nodes, stranger, case):
    client, server = nodes
    route, extras, payload, error = BAD_REQUESTS[case]
    stranger.hello()
    stranger.data_out.send(stranger.request(route, extras, payload))
    kind, answer = stranger.answer()
    assert (kind, type(answer)) == (Kind.ERROR, error)
    canary(client, server)


def test_a_truncated_request_of_a_known_node_is_answered(nodes, stranger):
    client, server = nodes
    stranger.hello()
    stranger.data_out.send(stranger.request(ECHO)[: HEADER_BYTES + 3])
    kind, answer = stranger.answer()
    assert (kind, type(answer)) == (Kind.ERROR, ProtocolError)
    assert server.count("malformed") == 1
    canary(client, server)


def test_a_request_for_another_life_is_refused_as_never_accepted(nodes, stranger):
    client, server = nodes
    stranger.hello()
    stranger.data_out.send(stranger.request(ECHO, generation=stranger.node.generation ^ 1))
    _, answer = stranger.answer()
    assert isinstance(answer, Unavailable)
    assert not answer.accepted
    assert server.count("refused") == 1
    canary(client, server)


def test_a_codec_whose_choice_fails_takes_nobody_along(net: Net):
    server = net.node("server", echo, start=False)

    def listing(message: str, ctx: Context) -> list[int]:  # noqa: ARG001
        return [1]

    server.work.handler(listing)
    codec = JsonCodec()
    codec.content_type = "x/mine"
    server.host.codecs.register(codec, lambda declared: issubclass(declared, Net))  # TypeError for list[int]
    server.host.start()
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    assert isinstance(outcome(client.work.request("x").submit()), InternalFailure)
    canary(client, server)


# -- the completion socket ----------------------------------------------------------------------------------------------


def test_garbage_on_the_completion_socket_is_counted_and_survived(nodes, stranger):
    client, server = nodes
    cases = {case: frames for case, frames in GARBAGE.items() if "reply" not in case}
    cases["hello on the completion socket"] = [stranger.says(Kind.HELLO)]
    cases["a welcome with a broken introduction"] = [control(Kind.WELCOME, b"[" * 100_000)]
    cases["a request"] = [stranger.request(ECHO)]
    for number, frames in enumerate(cases.values(), 1):
        stranger.completion_out.send_multipart(frames)
        eventually(lambda number=number: server.count("malformed") + server.count("late") == number, "it is counted")
        canary(client, server)


def test_answers_nobody_waits_for_are_counted_as_late(nodes, stranger):
    client, server = nodes
    mine = stranger.node.generation
    for kind in (Kind.REPLY, Kind.ERROR):
        for generation, route in ((mine, 0), (mine, 999), (mine ^ 1, 1)):
            stranger.completion_out.send(reply(kind, b"", b"", generation=generation, reply_route=route))
    eventually(lambda: server.count("late") == 6, "they are counted")
    canary(client, server)


def test_a_welcome_or_a_farewell_nobody_expects_changes_nothing(nodes, stranger):
    client, server = nodes
    stranger.completion_out.send(stranger.says(Kind.WELCOME, answers=12345))
    stranger.completion_out.send(stranger.says(Kind.LEAVING, node="client"))  # of another life
    stranger.data_out.send(stranger.says(Kind.LEFT, node="nobody"))
    stranger.data_out.send(b"")
    eventually(lambda: server.count("malformed") == 1, "all is read")
    canary(client, server)
    assert server.mesh.nodes() == ["client"]


BAD_REPLIES: dict[str, tuple[Kind, bytes, bytes, type[Exception]]] = {
    "an error of no kind": (Kind.ERROR, b"", b"\x7fboo", ProtocolError),
    "an error without a payload": (Kind.ERROR, b"", b"", ProtocolError),
    "unknown codec": (Kind.REPLY, wire.pack_route("x/unknown"), b"", ProtocolError),
    "no route": (Kind.REPLY, b"", b"", ProtocolError),
    "bad JSON": (Kind.REPLY, wire.pack_route("application/json"), b"{", ProtocolError),
    "not what was asked for": (Kind.REPLY, wire.pack_route("application/json"), b"5", ProtocolError),
    "nothing": (Kind.REPLY, wire.pack_route(""), b"", ProtocolError),
}


def test_answers_that_cannot_be_read_end_their_requests_and_a_second_answer_is_late(net: Net):
    client = net.node("client")
    stranger = Stranger(client)
    try:
        stranger.hello()
        stranger.join()
        eventually(lambda: client.mesh.nodes() == ["stranger"], "the stranger can be chosen")
        for late, (kind, route, payload, error) in enumerate(BAD_REPLIES.values(), 1):
            completion = client.work.request(b"x", reply=bytes).submit()
            header = wire.unpack(stranger.data_in.recv_multipart()[1])
            assert header.generation == GENERATION
            to = {"generation": stranger.node.generation, "reply_route": header.reply_route}
            stranger.completion_out.send_multipart([b"", b""])  # and garbage on the way
            stranger.completion_out.send(reply(kind, route, payload, **to))
            assert type(outcome(completion)) is error
            stranger.completion_out.send(reply(Kind.REPLY, RAW_REPLY, b"x", **to))
            eventually(lambda late=late: client.count("late") == late, "the second answer is counted")
        assert client.count("pending") == 0
    finally:
        stranger.close()


@pytest.fixture
def asked(net: Net) -> Iterator[tuple[Node, Stranger, Stranger]]:
    """(client, who is asked, who is not): both can be chosen."""
    client = net.node("client")
    strangers = [Stranger(client, name) for name in ("asked", "other")]
    for stranger in strangers:
        stranger.hello()
        stranger.join()
    eventually(lambda: client.mesh.nodes() == ["asked", "other"], "they can be chosen")
    yield client, *strangers
    for stranger in strangers:
        stranger.close()


def ask(client: Node, asked: Stranger) -> tuple[Completion[bytes], dict[str, int]]:
    """A pending request, and what an answer to it says."""
    completion = client.mesh.node("asked").request(b"x", reply=bytes).submit()
    while (header := wire.unpack(asked.data_in.recv_multipart()[1])).kind is not Kind.REQUEST:
        pass
    return completion, {"generation": asked.node.generation, "reply_route": header.reply_route}


FORGED = (
    (Kind.REPLY, RAW_REPLY, b"forged"),
    (Kind.ERROR, b"", wire.pack_error(Unavailable("forged"))),
    (Kind.ERROR, b"", wire.pack_error(wire.NotHere(wire.Address(wire.OwnerKind.SPOT, "x")))),
)


def test_only_who_was_asked_can_answer(asked):
    client, right, other = asked
    completion, to = ask(client, right)
    for stranger in (other, Stranger(client, "nobody")):
        for forged in FORGED:
            stranger.completion_out.send(reply(*forged, **to))
    eventually(lambda: client.count("malformed") == 2 * len(FORGED), "they are counted")
    stranger.close()
    assert not completion.done()
    right.completion_out.send(reply(Kind.REPLY, RAW_REPLY, b"right", **to))
    assert completion.result(PATIENCE) == b"right"
    other.completion_out.send(reply(*FORGED[0], **to))
    eventually(lambda: client.count("late") == 1, "what nobody waits for is late, from whomever")


def test_nobody_but_this_node_answers_what_stays_here(asked):
    client, right, _ = asked
    held = Held()
    client.mesh._handlers.register("", held.answer, None)
    completion = client.mesh.node("client").request(b"x", reply=bytes).submit()
    held.wait_begun()
    route = completion.reply_route
    for stranger in (right, Stranger(client, "nobody")):
        stranger.completion_out.send(reply(*FORGED[0], generation=stranger.node.generation, reply_route=route))
    eventually(lambda: client.count("malformed") == 2, "they are counted")
    stranger.close()
    held.gate.set()
    assert completion.result(PATIENCE) == b"x"


def test_another_connection_of_who_was_asked_says_first_whose_it_is(asked):
    client, right, other = asked
    completion, to = ask(client, right)
    with right._socket(zmq.DEALER) as new:
        new.connect(right.node.completion_endpoint)
        new.send(reply(*FORGED[0], **to))
        new.send(other.says(Kind.ACK))
        new.send(reply(*FORGED[0], **to))
        eventually(lambda: client.count("malformed") == 2, "nobody knows whose it is, or it is another's")
    with right._socket(zmq.DEALER) as new:
        new.connect(right.node.completion_endpoint)
        new.send(right.says(Kind.ACK))
        new.send(reply(Kind.REPLY, RAW_REPLY, b"right", **to))
        assert completion.result(PATIENCE) == b"right"
    assert client.count("malformed") == 2


# -- sizes --------------------------------------------------------------------------------------------------------------


def test_a_record_of_exactly_the_limit_passes_and_a_byte_more_is_refused_at_the_caller(net: Net):
    server = net.node("server", echo, max_record_bytes=LIMIT)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    most = LIMIT - HEADER_BYTES - len(ECHO)
    assert client.work.request(b"x" * most, reply=bytes).result() == b"x" * most
    assert client.work.send(b"x" * most).result() is None
    for make in (client.work.request, client.work.send):
        with pytest.raises(CapacityExceeded, match=f"record of {LIMIT + 1} bytes"):
            make(b"x" * (most + 1)).submit()
    canary(client, server)


def test_a_reply_of_exactly_the_askers_limit_passes_and_a_byte_more_is_capacity_exceeded(net: Net):
    def make(message: int, ctx: Context) -> bytes:  # noqa: ARG001
        return b"x" * message

    for limits in ((LIMIT, 1 << 20), (1 << 20, LIMIT)):  # whoever has the smaller one
        server = net.node("server", make, echo, max_record_bytes=limits[0])
        client = net.node("client", peers=(server,), max_record_bytes=limits[1])
        net.ready(client, server)
        most = LIMIT - HEADER_BYTES - len(RAW_REPLY)
        assert client.work.request(most, reply=bytes).result() == b"x" * most
        with pytest.raises(CapacityExceeded, match="the reply is a record"):
            client.work.request(most + 1, reply=bytes).result()
        canary(client, server)
        client.close()
        server.close()


def test_a_record_over_the_limit_ends_only_the_connection_it_came_on(net: Net):
    server = net.node("server", echo, max_record_bytes=LIMIT)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    stranger = Stranger(server)
    try:
        stranger.data_out.send(bytes(LIMIT + 1))
        eventually(lambda: stranger.data_out.send(b"") or server.count("malformed"), "the connection is made again")
        canary(client, server)
    finally:
        stranger.close()


@pytest.mark.parametrize("most", [0, -1, LIMIT - 1])
def test_a_limit_that_is_too_small_is_refused(net: Net, most):
    with pytest.raises(ValueError, match="max_record_bytes"):
        net.node("x", max_record_bytes=most)


# -- meshes that do not fit ---------------------------------------------------------------------------------------------


def test_nodes_of_different_meshes_and_of_one_name_do_not_pair(net: Net):
    server = net.node("server", echo)
    for other in (net.node("client", peers=(server,), mesh="other"), net.node("server", peers=(server,))):
        with pytest.raises(DeadlineExceeded, match="ready: none"):
            other.host.wait_ready(0.2)
        assert other.mesh.nodes() == server.mesh.nodes() == []
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    canary(client, server)
