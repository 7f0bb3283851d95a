"""Who waits in a node's sockets (decision 7): a worker with nothing to run, a caller in `result()`, else the stand-by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background
from support import PATIENCE, Net, Node, echo, eventually

from zlink_nogil import ShuttingDown
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.role import FREE, LED, Role


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as net:
        yield net


def ingress(node: Node) -> Role:
    role = node.host._ingress._role
    assert role is not None
    return role


def completions(node: Node) -> Role:
    role = node.mesh._running().operations.role
    assert role is not None
    return role


def rotations(monkeypatch: pytest.MonkeyPatch, role: Role) -> list[str]:
    """The names of the threads that rotate it from now on."""
    names: list[str] = []
    rotate: Callable[[], Any] = role.driver.rotate

    def noted(ready: Any) -> Any:
        names.append(threading.current_thread().name)
        return rotate(ready)

    monkeypatch.setattr(role.driver, "rotate", noted)
    return names


def test_a_request_is_read_by_the_worker_that_runs_it_and_its_answer_by_the_caller(net, monkeypatch):
    ran: list[str] = []

    def note(message: bytes, ctx: object) -> bytes:  # noqa: ARG001 - what a handler takes
        ran.append(threading.current_thread().name)
        eventually(lambda: completions(client).state == LED, "the caller waits in the sockets")
        return message

    client, server = net.pair(note)

    def ask() -> str:
        assert client.work.request(b"x", reply=bytes).result(PATIENCE) == b"x"
        return threading.current_thread().name

    for _ in range(3):  # whoever was asleep when the role came leads from the next time on
        Background(ask).result()
    eventually(lambda: ingress(server).state == LED, "an idle worker leads")
    read, answered = rotations(monkeypatch, ingress(server)), rotations(monkeypatch, completions(client))
    ran.clear()
    asked = Background(ask).result()
    assert (ran, answered) == (read[:1], [asked])
    assert "worker" in ran[0]


def test_a_role_is_left_to_the_stand_by_while_nobody_waits(net):
    client, server = net.pair(echo)
    eventually(lambda: completions(client).state == FREE, "nobody asks")
    answers = [client.work.request(b"%d" % n, reply=bytes).submit() for n in range(20)]
    eventually(lambda: all(answer.done() for answer in answers), "they come without anybody in `result()`")
    assert completions(client).state == FREE
    assert server.host._permits.free() == server.host._permits.most


def test_one_caller_leads_for_all(net):
    held = net.hold()
    client, _ = net.pair(held.answer)
    asking = [
        Background(lambda n=n: client.work.request(b"%d" % n, key=str(n), reply=bytes).result(PATIENCE)) for n in range(2)
    ]
    held.wait_begun(2)
    eventually(lambda: completions(client).state == LED, "one of them leads")
    held.gate.set()
    assert [each.result() for each in asking] == [b"0", b"1"]
    eventually(lambda: completions(client).state == FREE, "and has left")


def test_closing_a_host_gets_the_caller_out_of_its_sockets(net):
    held = net.hold()
    client, _ = net.pair(held.answer)
    asking = Background(lambda: client.work.request(b"x", reply=bytes, timeout=60.0).result())
    held.wait_begun()
    eventually(lambda: completions(client).state == LED, "it leads")
    client.close(PATIENCE)
    with pytest.raises(ShuttingDown):
        asking.result()


def test_the_main_thread_leads_only_where_interrupts_are_deferred(monkeypatch):
    monkeypatch.setattr(interrupts, "_previous", [])
    assert not interrupts.may_lead(), "the tests run in the main thread, with no host in it"
    assert Background(interrupts.may_lead).result()
    assert interrupts.install()
    assert interrupts.may_lead()
    interrupts.restore()
    assert not interrupts.may_lead()


def test_with_every_worker_busy_the_stand_by_leads(net, monkeypatch):
    held = net.hold()
    client, server = net.pair(held.answer, workers=2)
    first = [client.work.request(b"%d" % n, key=str(n), reply=bytes).submit() for n in range(2)]
    held.wait_begun(2)
    read = rotations(monkeypatch, ingress(server))
    second = client.work.request(b"2", key="2", reply=bytes).submit()
    eventually(lambda: server.host._permits.free() == server.host._permits.most - 1, "it has been read")
    assert set(read) == {"zlink-standby"}
    held.gate.set()
    assert [each.result(PATIENCE) for each in (*first, second)] == [b"0", b"1", b"2"]


def test_idle_leaders_sleep_in_one_call_each(net, monkeypatch):
    client, server = net.pair(echo)
    assert client.work.request(b"x", reply=bytes).result(PATIENCE) == b"x"
    eventually(lambda: ingress(server).state == LED, "an idle worker leads")
    sleeps: list[float] = []
    poll = interrupts.poll

    def counted(epoll: Any, timeout: float) -> Any:
        sleeps.append(timeout)
        return poll(epoll, timeout)

    monkeypatch.setattr(interrupts, "poll", counted)
    threading.Event().wait(0.3)
    assert len(sleeps) <= 2, "what was begun may still be finished"
