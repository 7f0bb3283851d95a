"""A node that does not keep up: what waits for it waits in order, nothing is lost, and nobody else notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support import PATIENCE, Held, Net, Node, child, echo, eventually, new_place, outcome

from zlink_nogil import CapacityExceeded, Completion, Context, DeadlineExceeded, Unavailable
from zlink_nogil.binding import raw
from zlink_nogil.execution import ExecutionLanePolicy

BODY = b"x" * 60_000


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    """Two messages fill a pipe, and the Unix sockets used here hold little more."""
    monkeypatch.setattr(raw, "HIGH_WATER_MARK", 2)
    with Net() as net:
        yield net


def stuck(net: Net, **options: object) -> tuple[Node, Held]:
    """A node with one handler that does not go on, and no permits for more."""
    held = net.hold()
    limits = {"max_queued_application_jobs": 1, **options}
    return net.node("stuck", held.answer, bind=new_place(), **limits), held


def fill(client: Node, target: str, timeout: float = PATIENCE) -> list[Completion[None]]:
    """Send until one is not taken for a while; returns all the sends, the last of which waits."""
    sends: list[Completion[None]] = []
    for number in range(500):
        sends.append(client.work.send(b"%04d" % number + BODY, key="k", timeout=timeout).submit())
        assert client.mesh.peer(target)
        try:
            sends[-1].result(0.2)
        except DeadlineExceeded:
            return sends
    raise AssertionError("the node is never full")


def numbers(held: Held) -> list[int]:
    return [int(message[:4]) for message in held.seen]


@pytest.mark.parametrize("permits", [1, 2])
def test_sends_to_a_node_that_does_not_read_wait_and_all_arrive_in_order_once_it_does(net: Net, permits):
    server, held = stuck(net, max_queued_application_jobs=permits)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    sends = fill(client, "stuck")
    held.wait_begun()
    for number in range(len(sends), len(sends) + 10):
        sends.append(client.work.send(b"%04d" % number, key="k", timeout=PATIENCE).submit())
    assert [send.done() for send in sends[-11:]] == [False] * 11
    assert client.count("pending") == 11
    held.gate.set()
    assert [outcome(send) for send in sends] == [None] * len(sends)
    eventually(lambda: len(held.seen) == len(sends), "all are handled")
    assert numbers(held) == list(range(len(sends)))
    assert (server.count("refused"), client.count("pending")) == (0, 0)
    server.free_permits(permits)


def test_a_stuck_node_holds_up_neither_others_nor_answers_nor_deadlines(net: Net):
    server, held = stuck(net)
    other = net.node("other", own=(echo,))
    client = net.node("client", peers=(server, other))
    client.host.wait_ready()
    fill(client, "stuck")
    there = client.mesh.node("other")
    for number in range(100):
        assert there.request(b"%d" % number, reply=bytes, timeout=PATIENCE).result() == b"%d" % number
    with pytest.raises(DeadlineExceeded):
        client.work.request(b"x", key="k", timeout=0.05).result()
    assert held.seen == []


def test_a_node_without_permits_still_gets_answers_and_deadlines_of_its_own(net: Net):
    held = net.hold()
    far = net.node("far", own=(echo, slow_for_ever))
    node = net.node("node", held.answer, peers=(far,), max_queued_application_jobs=1)
    client = net.node("client", peers=(node,))
    net.ready(node, far)
    net.ready(client, node)
    waiting = [client.work.request(b"x", key="k", reply=bytes, timeout=PATIENCE).submit() for _ in range(3)]
    held.wait_begun()
    node.free_permits(0)
    assert node.mesh.node("far").request(b"x", reply=bytes).result() == b"x"
    with pytest.raises(DeadlineExceeded):
        node.mesh.node("far").request("x", timeout=0.05).result()
    assert not any(completion.done() for completion in waiting)
    held.gate.set()
    assert [outcome(completion) for completion in waiting] == [b"x"] * 3


async def slow_for_ever(message: str, ctx: Context) -> str:  # noqa: ARG001
    await Completion()
    return message


def test_a_send_whose_deadline_passes_while_it_waits_never_arrives(net: Net):
    server, held = stuck(net)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    sends = fill(client, "stuck")
    hasty = [client.work.send(b"9999", key="k", timeout=0.02).submit() for _ in range(5)]
    errors = [outcome(send) for send in hasty]
    assert [type(error) for error in errors] == [DeadlineExceeded] * 5
    sends.append(client.work.send(b"%04d" % len(sends), key="k", timeout=PATIENCE).submit())
    held.gate.set()
    assert [outcome(send) for send in sends] == [None] * len(sends)
    eventually(lambda: len(held.seen) == len(sends), "the others are handled")
    assert 9999 not in numbers(held)
    assert numbers(held) == list(range(len(sends)))


STUCK = """
import sys, threading
from zlink_nogil import Host
from zlink_nogil.binding import raw

def hang(message: bytes, ctx) -> bytes:
    threading.Event().wait()

raw.HIGH_WATER_MARK = 2
host = Host(workers=1, max_queued_application_jobs=1)
host.mesh("test", bind=sys.argv[1], node_id="stuck").channel("work").handler(hang)
host.start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_what_waits_for_a_node_that_dies_ends_at_once_as_never_accepted(net: Net):
    place = new_place()
    with child(STUCK, place) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            client = net.node("client", peers=(place,))
            client.host.wait_ready(PATIENCE)
            sent = client.work.request(b"x", key="k", timeout=60.0).submit()
            sends = fill(client, "stuck", timeout=60.0)
            request = client.work.request(b"x", key="k", timeout=60.0).submit()
        finally:
            server.kill()
        errors = [outcome(completion) for completion in (sends[-1], request, sent)]
    assert [type(error) for error in errors] == [Unavailable] * 3
    assert [error.accepted for error in errors] == [False, False, True]
    assert client.count("pending") == client.count("deadlines") == 0


def test_what_waits_takes_a_place_and_the_next_is_refused_when_there_is_none(net: Net):
    server, held = stuck(net)
    client = net.node("client", peers=(server,), max_pending_operations=3)
    net.ready(client, server)
    sends = fill(client, "stuck")
    sends += [client.work.send(b"%04d" % (len(sends) + n), key="k", timeout=PATIENCE).submit() for n in range(2)]
    with pytest.raises(CapacityExceeded):
        client.work.send(b"x").submit()
    held.gate.set()
    assert [outcome(send) for send in sends] == [None] * len(sends)
    eventually(lambda: len(held.seen) == len(sends), "all are handled")


def test_answers_wait_for_an_asker_that_does_not_read_them_and_all_arrive(net: Net):
    """Many big answers at once: the completion connection fills up, and no worker is held by it."""

    def big(message: int, ctx: Context) -> bytes:  # noqa: ARG001
        return b"%04d" % message + BODY

    server = net.node("server", big, echo, bind=new_place())
    client = net.node("client", bind=new_place(), peers=(server,))
    net.ready(client, server)
    calls = [client.work.request(number, key=str(number % 4), reply=bytes).submit() for number in range(100)]
    assert [int(call.result(PATIENCE)[:4]) for call in calls] == list(range(100))
    assert server.count("dropped_replies") == 0


def test_a_full_owner_is_refused_while_its_node_goes_on_reading(net: Net):
    held = net.hold()
    policy = ExecutionLanePolicy(application_message_capacity=1)
    server = net.node("server", held.answer, own=(echo,), policy=policy, max_queued_application_jobs=2)
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    running = client.work.request(b"x", key="k", reply=bytes, timeout=PATIENCE).submit()
    held.wait_begun()
    for _ in range(20):
        with pytest.raises(CapacityExceeded):
            client.work.request(b"y", key="k").result()
        assert client.mesh.node("server").request(b"z", reply=bytes).result() == b"z"
    assert server.count("refused") == 20
    held.gate.set()
    assert outcome(running) == b"x"
    server.free_permits(2)


def test_a_send_that_is_refused_is_said_in_one_line(net: Net, caplog):
    held = net.hold()
    server = net.node("server", held.take, policy=ExecutionLanePolicy(application_message_capacity=1))
    client = net.node("client", peers=(server,))
    net.ready(client, server)
    client.work.send(b"x", key="k").result(PATIENCE)
    held.wait_begun()
    for _ in range(2):
        client.work.send(b"x", key="k").result(PATIENCE)
    eventually(lambda: server.count("refused") == 2, "the others are refused")
    said = [record for record in caplog.records if "was refused" in record.message]
    assert [record.exc_info for record in said] == [None, None]
    held.gate.set()


def test_senders_and_askers_of_every_kind_against_tiny_limits_leave_everything_at_zero(net: Net):
    def work(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
        return message[:4]

    server = net.node("server", work, bind=new_place(), max_queued_application_jobs=2)
    client = net.node("client", peers=(server,), max_pending_operations=64)
    net.ready(client, server)
    ended: list[object] = []

    def use(name: str) -> None:
        for number in range(60):
            message = b"%04d" % number + BODY[: 1000 * (number % 7)]
            key = f"{name}{number % 3}"
            if number % 5 == 0:
                ended.append(outcome(client.work.send(message, key=key).submit()))
            elif number % 5 == 1:
                completion = client.work.request(message, key=key, reply=bytes).submit()
                completion.cancel()
                ended.append(outcome(completion))
            elif number % 5 == 2:
                ended.append(outcome(client.work.request(message, key=key, timeout=0.001).submit()))
            else:
                ended.append(client.work.request(message, key=key, reply=bytes, timeout=PATIENCE).result())

    threads = [threading.Thread(target=use, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert len(ended) == 120
    assert client.work.request(b"last", reply=bytes).result() == b"last"
    assert client.count("pending") == client.count("deadlines") == 0
    eventually(lambda: client.host._slots.taken() == 0, "the slots are back")
    server.free_permits(2)
    eventually(lambda: client.mesh._node.operations.lane.run(client.mesh._node.operations.out.backlog) == 0, "no backlog")
