"""How calls fail: what handlers raise, what cannot be found, encoded or decoded, what there is no room for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from support import PATIENCE, Charge, Net, Node, Receipt, echo, eventually, outcome

from zlink_nogil import (
    CapacityExceeded,
    Context,
    ErrorKind,
    InternalFailure,
    NotFound,
    ProtocolError,
    Rejected,
    TypeMismatch,
    Unavailable,
    ZLinkError,
)
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.messaging import JsonCodec


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


# -- failures -----------------------------------------------------------------------------------------------------------


class Unlucky(Exception):
    pass


def test_what_a_handler_raises_comes_back_by_type_and_text_without_a_traceback(net: Net):
    def fails(message: str, ctx: Context) -> str:  # noqa: ARG001
        raise Unlucky("seven years")

    async def fails_later(message: int, ctx: Context) -> str:  # noqa: ARG001
        await server.mesh.node("server").request(b"x", reply=bytes)
        raise Unlucky("eight years")

    client, server = net.pair(fails, fails_later, own=(echo,))
    for message, text in (("x", "Unlucky: seven years"), (1, "Unlucky: eight years")):
        error = client.work.request(message).submit().exception(PATIENCE)
        assert isinstance(error, InternalFailure)
        assert error.message == text
        assert error.__cause__ is None


@pytest.mark.parametrize("kind", ErrorKind)
def test_a_zlink_error_of_a_handler_comes_back_with_its_kind(net: Net, kind):
    def fails(message: str, ctx: Context) -> str:  # noqa: ARG001
        raise ZLinkError.of(kind, "so there")

    client, _ = net.pair(fails)
    error = client.work.request("x").submit().exception(PATIENCE)
    assert (type(error), error.message) == (type(ZLinkError.of(kind, "")), "so there")
    if isinstance(error, Unavailable):
        assert error.accepted  # the request was: it must not be sent again without a thought


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Kindless(ZLinkError):
    pass


@pytest.mark.parametrize("error", [Speechless(), Kindless("x"), Rejected(Speechless()), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_handler_raises_the_owner_goes_on(net: Net, error):
    def fails(message: str, ctx: Context) -> str:  # noqa: ARG001
        raise error

    client, server = net.pair(fails, echo)
    told = client.work.request("x").submit().exception(PATIENCE)
    assert isinstance(told, InternalFailure)
    assert type(error).__name__ in told.message
    assert client.work.request(b"canary", reply=bytes).result() == b"canary"
    server.free_permits()


def test_a_handler_may_fail_with_a_huge_text(net: Net):
    def fails(message: str, ctx: Context) -> str:  # noqa: ARG001
        raise Unlucky("x" * 500_000)

    server = net.node("server", fails, echo)
    client = net.node("client", peers=(server,), max_record_bytes=64 * 1024)
    net.ready(client, server)
    assert isinstance(outcome(client.work.request("x").submit()), InternalFailure)
    assert client.work.request(b"canary", reply=bytes).result() == b"canary"


def test_a_reply_that_is_not_what_was_promised_is_the_handlers_failure(net: Net):
    def lies(message: str, ctx: Context) -> Receipt:  # noqa: ARG001
        return {"balance": 5}  # type: ignore[return-value]

    client, _ = net.pair(lies)
    error = client.work.request("x").submit().exception(PATIENCE)
    assert isinstance(error, InternalFailure)
    assert "dict is no Receipt" in error.message


def test_a_codec_the_other_side_does_not_have_is_a_protocol_error_either_way(net: Net):
    def charge(message: Charge, ctx: Context) -> Receipt:  # noqa: ARG001
        return Receipt(message.cents)

    def mine(node: Node, kind: type) -> None:
        codec = JsonCodec()
        codec.content_type = "x/mine"
        node.host.codecs.register(codec, lambda declared: declared is kind)

    client, server = net.pair(charge, echo)
    mine(server, Receipt)
    with pytest.raises(ProtocolError, match="no codec for content type 'x/mine'"):
        client.work.request(Charge("a", 1), reply=Receipt).result()
    other = net.node("other", charge, peers=(server,))
    net.ready(other, server)
    mine(other, Charge)
    assert other.work.request(Charge("a", 1), reply=Receipt).result() == Receipt(1)  # both have it
    mine(client, Charge)
    assert client.work.request(b"canary", reply=bytes).result() == b"canary"


def test_a_send_whose_handler_fails_is_complete_all_the_same(net: Net):
    def fails(message: str, ctx: Context) -> None:  # noqa: ARG001
        raise Unlucky

    client, _ = net.pair(fails, echo)
    assert client.work.send("x").result() is None
    assert client.work.request(b"canary", reply=bytes).result() == b"canary"


def test_nobody_to_choose_is_not_found_at_once(net: Net):
    alone = net.node("alone", echo)
    for call in (alone.work.request(b"x"), alone.work.send(b"x"), alone.mesh.node("nobody").send(b"x")):
        with pytest.raises(NotFound):
            call.submit()
    assert alone.count("pending") == 0


def test_an_unknown_channel_and_an_unknown_message_of_a_named_node_are_not_found(net: Net):
    client, _ = net.pair(echo)
    with pytest.raises(NotFound, match="no node is ready for channel 'play'"):
        client.mesh.channel("play").request(b"x").submit()
    with pytest.raises(NotFound, match="no handler for 'Charge'"):
        client.work.request(Charge("a", 1)).result()
    with pytest.raises(NotFound):
        client.mesh.node("server").request(b"x").result()


def test_a_message_that_does_not_fit_its_handler_is_a_protocol_error_that_says_where(net: Net):
    def charge(message: Charge, ctx: Context) -> int:  # noqa: ARG001
        return message.cents

    client, _ = net.pair(charge)
    with pytest.raises(ProtocolError, match=r"'Charge' cannot be decoded: expected int, not str @ \$\.cents"):
        client.work.request({"account": "a", "cents": "5"}, name="Charge").result()


def test_a_message_that_cannot_be_encoded_is_a_type_mismatch_and_nothing_is_sent(net: Net):
    client, server = net.pair(echo)
    for value, declared in ((math.nan, float), ({1, 2}, None), ({}, Charge), (2**64, None)):
        with pytest.raises(TypeMismatch, match="cannot be encoded"):
            client.work.request(value, declared=declared).submit()
    assert (client.count("pending"), server.count("refused")) == (0, 0)


# -- capacity -----------------------------------------------------------------------------------------------------------


def test_a_full_owner_refuses_requests_and_counts_refused_sends(net: Net):
    held = net.hold()
    policy = ExecutionLanePolicy(application_message_capacity=2)
    server = net.node("server", held.answer, policy=policy)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    running = client.work.request(b"1", key="k", reply=bytes).submit()
    held.wait_begun()
    queued = client.work.request(b"2", key="k", reply=bytes).submit()
    with pytest.raises(CapacityExceeded):
        client.work.request(b"3", key="k").result()
    assert client.work.send(b"4", key="k").result() is None
    eventually(lambda: server.count("refused") == 2, "both are counted")
    other = client.work.request(b"5", key="other", reply=bytes).submit()  # another owner's business it is not
    held.gate.set()
    assert [call.result(PATIENCE) for call in (running, queued, other)] == [b"1", b"2", b"5"]
    assert sorted(held.seen) == [b"1", b"2", b"5"]
    server.free_permits()


def test_operations_in_flight_are_bounded(net: Net):
    held = net.hold()
    server = net.node("server", held.answer)
    client = net.node("client", peers=(server,), max_pending_operations=2)
    net.ready(client, server)
    calls = [client.work.request(b"x", reply=bytes).submit() for _ in range(2)]
    with pytest.raises(CapacityExceeded, match="max_pending_operations"):
        client.work.request(b"x").submit()
    held.gate.set()
    assert [call.result(PATIENCE) for call in calls] == [b"x"] * 2
    assert client.work.request(b"x", reply=bytes).result() == b"x"
