"""How nodes end: farewells, closing from everywhere, forks - each outcome once, and nothing is left behind."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support import PATIENCE, Net, Node, child, echo, eventually, outcome, together

from zlink_nogil import (
    Context,
    Host,
    InvalidOperation,
    NotFound,
    ShuttingDown,
    Unavailable,
)
from zlink_nogil.messaging.ingress import Ingress
from zlink_nogil.messaging.replies import CompletionIngress


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


def canary(client: Node) -> None:
    assert client.work.request(b"canary", reply=bytes, timeout=PATIENCE).result() == b"canary"


# -- leaving ------------------------------------------------------------------------------------------------------------


def closing(node: Node, timeout: float = PATIENCE) -> threading.Thread:
    thread = threading.Thread(target=node.close, args=(timeout,), daemon=True)
    thread.start()
    return thread


def test_a_draining_node_finishes_what_it_accepted_and_gets_nothing_new(net: Net):
    held = net.hold()
    leaving = net.node("leaving", echo, own=(held.answer,))
    staying = net.node("staying", echo)
    client = net.node("client", peers=(leaving, staying))
    client.host.wait_ready()
    there = client.mesh.node("leaving")
    accepted = [there.request(b"%d" % number, reply=bytes, timeout=30.0).submit() for number in range(3)]
    held.wait_begun()
    thread = closing(leaving)
    eventually(lambda: client.mesh.nodes() == ["staying"], "it is no candidate any more")
    for _ in range(10):
        canary(client)
    with pytest.raises(NotFound):
        there.request(b"x").submit()
    assert not any(completion.done() for completion in accepted)
    held.gate.set()
    assert [outcome(completion) for completion in accepted] == [b"0", b"1", b"2"]
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_nothing_is_lost_when_a_node_leaves_while_others_send(net: Net):
    handled: list[int] = []

    def note(message: int, ctx: Context) -> None:  # noqa: ARG001
        handled.append(message)

    client, server = net.pair(note)
    sent: list[int] = []
    begun = threading.Event()

    def send() -> None:
        for number in range(100_000):
            make = client.work.send if number % 20 else client.work.request  # so that not too many are on their way
            try:
                make(number).result()
            except (NotFound, ShuttingDown):
                return
            sent.append(number)
            if number == 100:
                begun.set()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    server.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(sent) - len(handled) <= 1  # chosen before the farewell, sent after it: the one that may cross
    assert handled == sent[: len(handled)]


def test_two_nodes_that_leave_at_once_do_not_wait_for_each_other(net: Net):
    for _ in range(3):
        nodes = [net.node("a", echo)]
        nodes.append(net.node("b", echo, peers=(nodes[0],)))
        net.ready(*nodes)
        assert together(*[node.close for node in nodes]) == [None, None]


# -- closing ------------------------------------------------------------------------------------------------------------


def test_closing_ends_every_pending_request_once_as_shutting_down(net: Net):
    held = net.hold()
    client, _ = net.pair(held.answer)
    ended: Counter[int] = Counter()
    calls = [client.work.request(b"x", timeout=30.0).submit() for _ in range(20)]
    for number, call in enumerate(calls):
        call.add_done_callback(lambda _, number=number: ended.update([number]))
    client.close()
    assert {type(outcome(call)) for call in calls} == {ShuttingDown}
    assert ended == dict.fromkeys(range(20), 1)  # the pool is closed: all have run
    for use in (client.work.request(b"x").submit, client.work.send(b"x").submit, client.mesh.nodes, client.mesh.statistics):
        with pytest.raises(ShuttingDown):
            use()


def test_a_second_close_is_harmless_and_waits_for_the_first(net: Net):
    held = net.hold()
    client, server = net.pair(held.answer)
    answer = client.work.request(b"x", reply=bytes, timeout=30.0).submit()
    held.wait_begun()
    threads = [closing(server), closing(server)]
    eventually(lambda: client.mesh.nodes() == [], "closing")
    assert all(thread.is_alive() for thread in threads)
    held.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert outcome(answer) == b"x"
    server.close()
    Host().close()  # never started


def test_a_worker_cannot_close_its_host_which_goes_on(net: Net):
    def close(message: str, ctx: Context) -> str:  # noqa: ARG001
        server.close()
        return "closed"

    client, server = net.pair(close, echo)
    error = outcome(client.work.request("x").submit())
    assert isinstance(error, InvalidOperation)
    canary(client)


def test_a_handler_that_outlives_its_node_is_survived(net: Net, caplog):
    held = net.hold()
    client, server = net.pair(held.answer)
    call = client.work.request(b"x", timeout=30.0).submit()
    held.wait_begun()
    server.close(0.1)
    assert isinstance(outcome(call), Unavailable)
    held.gate.set()
    eventually(lambda: held.seen == [b"x"], "the handler ends")
    eventually(lambda: server.host._own_pool.counts()[1] == 0, "its worker ends")
    assert "a runnable raised" not in caplog.text


def test_closing_interrupts_a_handler_that_waits_too_long(net: Net):
    told: list[Any] = []
    held = net.hold()

    async def waits(message: str, ctx: Context) -> str:  # noqa: ARG001
        try:
            await middle.mesh.node("far").request(b"x", timeout=60.0)
        except ShuttingDown as error:
            told.append(error)
            raise
        return "done"

    far = net.node("far", own=(held.answer,))
    middle = net.node("middle", waits, peers=(far,))
    client = net.node("client", peers=(middle,))
    net.ready(middle, far)
    net.ready(client, middle)
    call = client.work.request("x", timeout=30.0).submit()
    held.wait_begun()
    middle.close(0.2)
    assert isinstance(outcome(call), ShuttingDown)
    assert len(told) == 1


def test_before_the_start_nothing_can_be_called(net: Net):
    node = net.node("x", start=False)
    for use in (node.work.request(b"x").submit, node.mesh.nodes, node.mesh.statistics, lambda: node.endpoint):
        with pytest.raises(InvalidOperation, match="has not been started"):
            use()
    node.host.start()
    for use in (node.host.start, lambda: node.host.mesh("late")):
        with pytest.raises(InvalidOperation):
            use()


# -- at rest ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def rotations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time a role was led once around."""
    made: list[str] = []
    for role in (Ingress, CompletionIngress):

        def rotate(self: Any, ready: Any, rotate: Any = role.rotate, name: str = role.__name__) -> Any:
            made.append(name)
            return rotate(self, ready)

        monkeypatch.setattr(role, "rotate", rotate)
    return made


def at_rest(rotations: list[str]) -> bool:
    """Is next to nothing done in a while? What was begun may still be finished."""
    threading.Event().wait(0.1)
    rotations.clear()
    threading.Event().wait(0.4)
    return len(rotations) <= 3


def test_idle_nodes_do_nothing(net: Net, rotations):
    client, _ = net.pair(echo)
    canary(client)
    assert at_rest(rotations)


def test_nodes_that_wait_do_nothing_meanwhile(net: Net, rotations):
    """For an answer, for a peer that is not there, for a permit while records are waiting."""
    held = net.hold()
    server = net.node("server", held.answer, max_queued_application_jobs=1)
    client = net.node("client", peers=(server, "tcp://127.0.0.1:9"))
    net.ready(client, server)
    calls = [client.work.request(b"x", key="k", reply=bytes, timeout=60.0).submit() for _ in range(20)]
    held.wait_begun()
    assert at_rest(rotations)
    held.gate.set()
    assert [outcome(call) for call in calls] == [b"x"] * 20


def test_a_node_with_many_owners_has_no_more_threads_than_one_with_few(net: Net):
    client, server = net.pair(echo)
    canary(client)
    assert server.count("owners") == 1
    threads = threading.active_count()
    for number in range(3000):
        client.work.send(b"x", key=str(number)).submit()
    canary(client)
    assert threading.active_count() == threads
    assert server.count("owners") > 1


# -- what is left -------------------------------------------------------------------------------------------------------


def test_twenty_starts_and_closes_leave_no_thread_and_no_descriptor():
    def once() -> tuple[int, int]:
        with Net() as net:
            client, _ = net.pair(echo)
            canary(client)
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    once()  # what the process keeps for good
    before = once()
    for _ in range(20):
        after = once()
    assert after == before


def test_a_start_that_fails_leaves_no_thread_and_no_descriptor():
    def once() -> tuple[int, int]:
        host = Host(workers=1)
        host.mesh("test", peers=["ipc://" + "x" * 500])
        with pytest.raises(ValueError, match="cannot connect"):
            host.start()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    threads = threading.active_count()
    before = once()  # what the process keeps for good
    assert before[0] == threads
    assert once() == before


FORK = """
import os, sys, threading
from zlink_nogil import Host, InvalidOperation

def hang(message: bytes, ctx) -> bytes:
    if message == b"hang":
        gate.wait()
    return message

gate = threading.Event()
host = Host(workers=2)
mesh = host.mesh("test", node_id="me")
mesh.handler(hang)
host.start()
me = mesh.node("me")
pending = me.request(b"hang", key="a").submit()
call = me.request(b"x", key="b")
child = os.fork()
if child == 0:
    refused = 0
    for use in (call.submit, me.send(b"x").submit, mesh.channel("work").send(b"x").submit, mesh.nodes,
                lambda: pending.result(1.0), host.close, host.close, lambda: host.mesh("other")):
        try:
            use()
        except InvalidOperation as error:
            refused += 1
        except BaseException as error:
            print("child:", use, repr(error), flush=True)
    fresh = Host(workers=1)
    own = fresh.mesh("test", node_id="new")
    own.handler(hang)
    with fresh:
        assert own.node("new").request(b"fresh", reply=bytes).result() == b"fresh"
    print("child refused", refused, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
gate.set()
print("parent", status, call.result(), pending.result(), flush=True)
host.close()
print("closed", flush=True)
"""


def test_a_forked_child_is_refused_everywhere_may_start_anew_and_ends_by_itself():
    with child(FORK) as parent:
        told, _ = parent.communicate(timeout=60)
    assert told.splitlines() == ["child refused 8", "parent 0 b'x' b'hang'", "closed"], told
    assert parent.returncode == 0
