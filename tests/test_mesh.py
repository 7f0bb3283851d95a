"""A mesh over real sockets: sends and requests, order and parallelism, what handlers see, how failures come back."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PATIENCE, Charge, Net, Receipt, echo, eventually

from zlink_nogil import (
    CapacityExceeded,
    Completion,
    Context,
    DeadlineExceeded,
    InvalidOperation,
    NotFound,
    ProtocolError,
)
from zlink_nogil.execution import ExecutionLanePolicy


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


# -- requests and sends -------------------------------------------------------------------------------------------------


def test_a_typed_request_comes_back_typed_from_plain_and_async_handlers(net: Net):
    def charge(message: Charge, ctx: Context) -> Receipt:  # noqa: ARG001
        return Receipt(message.cents + 1)

    async def total(message: list[int], ctx: Context) -> int:  # noqa: ARG001
        return sum(message)

    client, _ = net.pair(charge, total)
    assert client.work.request(Charge("a", 5), reply=Receipt).result() == Receipt(6)
    assert client.work.request(Charge("a", 5)).result() == {"balance": 6}  # without a type: as decoded
    assert client.work.request([1, 2], declared=list[int], reply=int).result() == 3


@pytest.mark.parametrize("payload", [b"", b"\x00", b"x" * 100_000])
def test_raw_bytes_come_back_as_they_are(net: Net, payload):
    client, _ = net.pair(echo)
    assert client.work.request(payload, reply=bytes).result() == payload


def test_a_send_is_complete_at_the_local_socket_and_is_handled_once(net: Net):
    held = net.hold()
    client, _ = net.pair(held.take)
    completion = client.work.send(b"x").submit()
    assert completion.result(PATIENCE) is None  # the handler has not even been let go
    held.gate.set()
    eventually(lambda: held.seen == [b"x"], "the send is handled")


def test_a_request_to_a_handler_that_returns_nothing_has_the_reply_none(net: Net):
    seen: list[bytes] = []

    def note(message: bytes, ctx: Context) -> None:  # noqa: ARG001
        seen.append(message)

    client, _ = net.pair(note)
    assert client.work.request(b"x").result() is None
    assert client.work.request(b"y", reply=None).result() is None
    assert seen == [b"x", b"y"]
    with pytest.raises(ProtocolError, match="returns nothing"):
        client.work.request(b"x", reply=int).result()


def test_a_reply_of_another_type_than_asked_for_is_a_protocol_error(net: Net):
    client, _ = net.pair(echo)
    with pytest.raises(ProtocolError, match="raw bytes are not Receipt"):
        client.work.request(b"x", reply=Receipt).result()


def test_what_a_handler_is_told(net: Net):
    told: list[Context] = []

    def look(message: bytes, ctx: Context) -> bytes:
        told.append(ctx)
        assert not ctx.cancelled
        return message

    client, _ = net.pair(look)
    metadata = {"trace": b"\x01", "": b""}
    client.work.request(b"x", key="k", metadata=metadata, timeout=3.0).result()
    client.work.request(b"x").result()
    client.work.send(b"x").result()
    eventually(lambda: len(told) == 3, "all are handled")
    first, second, third = told
    assert (first.channel, first.message_name, first.key, first.source) == ("work", "bytes", "k", "client")
    assert first.metadata == metadata
    assert (second.key, second.metadata) == (None, {})
    assert 0 < second.deadline - first.deadline < 4.0
    assert third.deadline == math.inf


def test_a_name_of_its_own_leads_to_the_handler_of_that_name(net: Net):
    server = net.node("server", start=False)
    server.work.handler(name="shout")(lambda_with_types)
    server.host.start()
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    assert client.work.request(b"x", name="shout", reply=bytes).result() == b"X"


def lambda_with_types(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
    return message.upper()


# -- order and parallelism ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k", ""])
def test_messages_of_one_owner_are_handled_in_the_callers_order(net: Net, key):
    seen: list[int] = []

    def note(message: int, ctx: Context) -> None:  # noqa: ARG001
        seen.append(message)

    client, _ = net.pair(note)
    for number in range(300):
        client.work.send(number, key=key).submit()
    client.work.request(300, key=key).result()
    assert seen == list(range(301))


def test_sends_and_requests_of_several_threads_keep_each_threads_order(net: Net):
    seen: dict[str, list[int]] = {"a": [], "b": []}

    def note(message: list[Any], ctx: Context) -> None:  # noqa: ARG001
        seen[message[0]].append(message[1])

    client, _ = net.pair(note)

    def caller(name: str) -> None:
        for number in range(150):
            client.work.send([name, number], key="one", declared=list[Any], name="list").submit()

    threads = [threading.Thread(target=caller, args=(name,)) for name in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    client.work.request(["a", 150], key="one", declared=list[Any], name="list").result()
    eventually(lambda: len(seen["b"]) == 150, "all have come")
    assert seen == {"a": list(range(151)), "b": list(range(150))}


def test_handlers_of_different_keys_run_at_the_same_time(net: Net):
    meeting = threading.Barrier(3)

    def meet(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
        meeting.wait(PATIENCE)
        return message

    client, _ = net.pair(meet, workers=3)
    calls = [client.work.request(b"x", key=key, reply=bytes).submit() for key in "abc"]
    assert [call.result(PATIENCE) for call in calls] == [b"x"] * 3


@pytest.mark.parametrize("key", [None, "k"])
def test_handlers_of_one_owner_run_one_at_a_time_also_while_one_waits(net: Net, key):
    inside = threading.Lock()

    def plain(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
        assert inside.acquire(blocking=False), "two at once"
        inside.release()
        return message

    async def waits(message: int, ctx: Context) -> int:  # noqa: ARG001
        assert inside.acquire(blocking=False), "two at once"
        await server.mesh.node("server").request(b"x", reply=bytes)
        inside.release()
        return message

    client, server = net.pair(plain, waits, own=(echo,), workers=4)
    calls = [client.work.request(message, key=key).submit() for _ in range(10) for message in (b"x", 1)]
    assert [call.exception(PATIENCE) for call in calls] == [None] * 20


# -- options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -0.001, math.inf, math.nan, 2**31 / 1000, 1e300, 10**400, True, "1"])
def test_a_timeout_that_is_none_is_refused_when_it_is_set(net: Net, timeout):
    work = net.node("alone", start=False).work
    for make in (work.send, work.request):
        with pytest.raises(ValueError, match="timeout"):
            make(b"x", timeout=timeout)


@pytest.mark.parametrize("timeout", [5e-324, 1, 2147483.647])
def test_the_least_and_the_most_timeout_are_taken(net: Net, timeout):
    work = net.node("alone", start=False).work
    work.send(b"x", timeout=timeout)
    work.request(b"x", timeout=timeout)


@pytest.mark.parametrize(
    "options",
    [{"key": 5}, {"key": b"k"}, {"key": "k" * 70_000}, {"key": "\ud800"}, {"metadata": {"a": "b"}}, {"metadata": {1: b""}}],
)
def test_a_bad_option_is_refused_when_it_is_set(net: Net, options):
    work = net.node("alone", start=False).work
    with pytest.raises((ValueError, TypeError)):
        work.send(b"x", **options)


def test_a_call_is_used_once_and_nothing_happens_before(net: Net):
    seen: list[bytes] = []

    def note(message: bytes, ctx: Context) -> None:  # noqa: ARG001
        seen.append(message)

    client, _ = net.pair(note)
    call = client.work.request(b"x")
    client.work.request(b"y").result()
    assert seen == [b"y"]
    call.submit()
    for again in (call.submit, call.result, call.__await__):
        with pytest.raises(InvalidOperation, match="once"):
            again()
    client.work.request(b"z").result()
    assert seen == [b"y", b"x", b"z"]


def test_a_request_that_is_not_answered_ends_at_its_deadline_and_its_answer_is_late(net: Net):
    held = net.hold()
    client, _ = net.pair(held.answer)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        client.work.request(b"x", timeout=0.05).result()
    assert 0.05 <= time.monotonic() - begun < 1.0  # never early
    assert isinstance(caught.value, TimeoutError)
    assert client.count("pending") == 0
    held.gate.set()
    eventually(lambda: client.count("late") == 1, "the late answer is counted")
    assert client.work.request(b"y", reply=bytes).result() == b"y"


def test_cancelling_a_request_frees_its_place_and_its_answer_is_late(net: Net):
    held = net.hold()
    client, _ = net.pair(held.answer)
    completion = client.work.request(b"x").submit()
    assert completion.cancel()
    assert completion.cancelled()
    assert client.count("pending") == 0
    held.gate.set()
    eventually(lambda: client.count("late") == 1, "the late answer is counted")


# -- choosing -----------------------------------------------------------------------------------------------------------


def answering(name: str) -> Callable[..., str]:
    def who(message: bytes, ctx: Context) -> str:  # noqa: ARG001
        return name

    return who


def test_three_nodes_share_by_weight_and_one_of_weight_0_gets_nothing(net: Net):
    servers = [net.node(name, answering(name), weight=weight) for name, weight in (("A", 100), ("B", 300), ("C", 0))]
    client = net.node("client", peers=tuple(servers))
    client.host.wait_ready()
    assert client.mesh.nodes() == ["A", "B", "C"]
    order = [client.work.request(b"x", reply=str).result() for _ in range(40)]
    assert Counter(order) == {"A": 10, "B": 30}
    assert order == order[:4] * 10
    with pytest.raises(DeadlineExceeded):
        client.work.wait_ready(3, timeout=0.01)


def test_only_nodes_with_handlers_on_a_channel_are_chosen_for_it(net: Net):
    servers = [net.node("A", answering("A")), net.node("B", own=(answering("B"),))]
    client = net.node("client", peers=tuple(servers))
    client.host.wait_ready()
    assert {client.work.request(b"x", reply=str).result() for _ in range(4)} == {"A"}
    assert client.mesh.node("B").request(b"x", reply=str).result() == "B"
    assert client.mesh.node("B").send(b"x").result() is None


def test_every_node_may_call_every_other_whoever_named_whom(net: Net):
    first = net.node("first", own=(answering("first"),))
    second = net.node("second", peers=(first,), own=(answering("second"),))
    third = net.node("third", peers=(first, second), own=(answering("third"),))
    nodes = (first, second, third)
    net.ready(*nodes)
    for node in nodes:
        assert [node.mesh.node(other.id).request(b"x", reply=str).result() for other in nodes] == [n.id for n in nodes]


# -- this very node -----------------------------------------------------------------------------------------------------


def test_a_node_may_call_itself_and_takes_a_permit_like_everybody(net: Net):
    seen: list[int] = []

    def look(message: bytes, ctx: Context) -> str:  # noqa: ARG001
        return ctx.source

    def note(message: int, ctx: Context) -> None:  # noqa: ARG001
        seen.append(message)

    node = net.node("me", own=(look, note), max_queued_application_jobs=1)
    me = node.mesh.node("me")
    assert me.request(b"x", reply=str).result() == "me"
    for number in range(50):
        me.send(number).submit()
    assert me.request(50).result() is None
    assert seen == list(range(51))
    assert me.request(b"x", key="k", reply=str, timeout=1.0).result() == "me"
    assert node.count("pending") == 0
    node.free_permits(1)


def test_a_plain_thread_waits_for_a_permit_and_a_turn_borrows(net: Net):
    held = net.hold()

    def spread(message: int, ctx: Context) -> None:  # noqa: ARG001
        for _ in range(message):
            me.send(b"child", key="busy").submit()

    node = net.node("me", own=(held.take, spread), max_queued_application_jobs=1)
    me = node.mesh.node("me")
    me.send(b"running", key="busy").result()
    held.wait_begun()
    me.send(3).result()
    node.free_permits(-2)  # the turn has borrowed three where there was one
    with pytest.raises(DeadlineExceeded, match="queued jobs"):
        me.send(b"outside", timeout=0.05).submit()
    held.gate.set()
    assert me.send(b"outside", timeout=5.0).result() is None
    eventually(lambda: len(held.seen) == 5, "all are handled")
    node.free_permits(1)


def test_a_callback_borrows_too_since_it_has_a_worker_that_may_be_needed_to_return_one(net: Net):
    held = net.hold()
    node = net.node("me", own=(held.take,), workers=1, max_queued_application_jobs=1)
    me = node.mesh.node("me")
    me.send(b"running", key="a").result()
    held.wait_begun()
    told: list[BaseException | None] = []
    first: Completion[None] = Completion(node.host._own_pool)
    first.add_done_callback(lambda _: told.append(me.send(b"from the callback", key="c").submit().exception(PATIENCE)))
    first.succeed(None)
    me.send(b"behind the callback", key="b").result()  # and it has the only permit
    held.gate.set()
    eventually(lambda: len(held.seen) == 3, "all are handled")
    assert told == [None]
    node.free_permits(1)


@pytest.mark.parametrize("how", ["await", "result", "await submitted", "result submitted"])
def test_asking_your_own_owner_and_waiting_is_refused(net: Net, how):
    handled: list[bytes] = []

    def note(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
        handled.append(message)
        return message

    async def ask_myself(message: str, ctx: Context) -> str:  # noqa: ARG001
        call = me.request(b"x", key="k", reply=bytes)
        try:
            if how == "await":
                await call
            elif how == "result":
                call.result()
            elif how == "await submitted":
                await call.submit()
            else:
                call.submit().result()
        except InvalidOperation:
            return "refused"
        return "waited"

    node = net.node("me", own=(note, ask_myself))
    me = node.mesh.node("me")
    assert me.request("x", key="k", reply=str).result() == "refused"
    assert me.request("x", key="other", reply=str).result() == "waited"
    assert me.request(b"last", key="k").result()  # behind what was submitted
    submitted = how.endswith("submitted")
    assert handled == [b"x"] * (1 + submitted) + [b"last"]  # a call that waits was refused before anything was sent
    assert node.count("pending") == 0
    node.free_permits()


def test_messages_to_this_node_fail_like_those_to_others(net: Net):
    held = net.hold()
    policy = ExecutionLanePolicy(application_message_capacity=1)
    node = net.node("me", own=(held.answer,), policy=policy, max_record_bytes=64 * 1024)
    me = node.mesh.node("me")
    with pytest.raises(NotFound):
        me.request("text").submit()
    with pytest.raises(CapacityExceeded, match="max_record_bytes"):
        me.send(b"x" * 65_536).submit()
    running = me.request(b"x", key="k", reply=bytes).submit()
    held.wait_begun()
    with pytest.raises(CapacityExceeded):
        me.request(b"y", key="k").submit()
    with pytest.raises(DeadlineExceeded):
        me.request(b"z", key="other", timeout=0.02).result()
    held.gate.set()
    assert running.result(PATIENCE) == b"x"
    node.free_permits()
    assert node.count("pending") == 0
