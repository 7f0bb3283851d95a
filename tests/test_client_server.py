"""ClientServer channels over real sockets: one connection, answers on it, servers chosen by weight, waited for, and lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from background import Gate
from support import PATIENCE, Charge, Receipt, eventually, new_place, outcome

from zlink_nogil import (
    AlreadyExists,
    CapacityExceeded,
    Client,
    DeadlineExceeded,
    Host,
    InternalFailure,
    InvalidOperation,
    NotFound,
    Server,
    ShuttingDown,
    Unavailable,
)
from zlink_nogil.messaging import waiting_line


class World:
    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def started(self, host: Host) -> Host:
        host.start()
        self._stack.callback(host.close)
        return host

    def server(self, *handlers: Any, at: str | None = None, name: str = "api", **options: Any) -> tuple[Host, Server]:
        host = Host(workers=2)
        server = host.server(name, bind=at or new_place(), **options)
        for handler in handlers:
            server.handler(handler)
        return self.started(host), server

    def client(self, *places: str, name: str = "api", ready: bool = True, **options: Any) -> Client:
        host = Host(workers=2, **options)
        client = host.client(name, servers=places)
        self.started(host)
        if ready:
            host.wait_ready(PATIENCE)
        return client


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def charge(message: Charge, ctx: Any) -> Receipt:  # noqa: ARG001
    return Receipt(message.cents + 1)


async def echo(message: bytes, ctx: Any) -> bytes:  # noqa: ARG001
    return message


def fails(message: int, ctx: Any) -> int:  # noqa: ARG001
    raise ValueError("no")


def named(name: str) -> Any:
    def who(message: str, ctx: Any) -> str:  # noqa: ARG001
        return name

    return who


def ask(client: Client, count: int) -> list[str]:
    return [client.request("who", reply=str).result(PATIENCE) for _ in range(count)]


# -- requests and sends -------------------------------------------------------------------------------------------------


def test_requests_come_back_typed_and_errors_with_their_kind(world: World):
    _, server = world.server(charge, echo, fails)
    client = world.client(server.endpoint)
    assert client.request(Charge("a", 5), reply=Receipt).result(PATIENCE) == Receipt(6)
    assert client.request(b"x" * 100_000, reply=bytes).result(PATIENCE) == b"x" * 100_000
    with pytest.raises(InternalFailure, match="ValueError: no"):
        client.request(3).result(PATIENCE)
    with pytest.raises(NotFound, match="no handler for 'str'"):
        client.request("x").result(PATIENCE)
    assert client.statistics()["pending"] == 0
    assert client.servers() == [server.node_id]


def test_sends_with_one_key_are_handled_in_their_order(world: World):
    seen: list[int] = []

    def take(message: int, ctx: Any) -> None:  # noqa: ARG001
        seen.append(message)

    _, server = world.server(take)
    client = world.client(server.endpoint)
    for completion in [client.send(number, key="a").submit() for number in range(500)]:
        completion.result(PATIENCE)
    eventually(lambda: len(seen) == 500)
    assert seen == list(range(500))


def test_client_and_server_in_one_host_and_two_channels(world: World):
    host = Host(workers=2)
    place, other = new_place(), new_place()
    host.server("api", bind=place).handler(named("api"))
    host.server("admin", bind=other).handler(named("admin"))
    api, admin = host.client("api", servers=[place]), host.client("admin", servers=[other])
    world.started(host)
    host.wait_ready(PATIENCE)
    assert (ask(api, 1), ask(admin, 1)) == (["api"], ["admin"])


def test_a_handler_may_call_and_await(world: World):
    _, inner = world.server(named("inner"), name="inner")
    host = Host(workers=1)
    client = host.client("inner", servers=[inner.endpoint])
    server = host.server("outer", bind=new_place())

    @server.handler
    async def who(message: str, ctx: Any) -> str:  # noqa: ARG001
        return "outer of " + await client.request(message, reply=str)

    world.started(host)
    host.wait_ready(PATIENCE)
    assert ask(world.client(server.endpoint, name="outer"), 2) == ["outer of inner"] * 2


# -- choosing -----------------------------------------------------------------------------------------------------------


def test_weights_of_100_and_300_give_b_a_b_b_and_may_change(world: World):
    _, a = world.server(named("A"), node_id="A")
    _, b = world.server(named("B"), node_id="B", weight=300)
    client = world.client(a.endpoint, b.endpoint)
    assert ask(client, 8) == list("BABB") * 2
    b.set_weight(0)
    eventually(lambda: ask(client, 2) == ["A", "A"])
    b.set_weight(100)
    eventually(lambda: sorted(ask(client, 2)) == ["A", "B"])
    a.set_weight(0)
    b.set_weight(0)
    eventually(lambda: len(client._running().servers.selector._candidates) == 0)
    with pytest.raises(DeadlineExceeded):
        client.request("who", timeout=0.05).result(PATIENCE)


def test_a_draining_server_is_left_and_loses_nothing(world: World):
    gate = Gate()

    def slow(message: int, ctx: Any) -> int:  # noqa: ARG001
        gate()
        return message

    host, a = world.server(slow, named("A"), node_id="A")
    client = world.client(a.endpoint)
    held = client.request(7, reply=int).submit()
    gate.wait_begun()
    draining = threading.Thread(target=host.drain, args=(PATIENCE,))
    draining.start()
    eventually(lambda: client.servers() == [])
    assert not held.done()
    gate.open()
    assert held.result(PATIENCE) == 7
    draining.join(PATIENCE)


# -- waiting for a server -----------------------------------------------------------------------------------------------


def test_calls_wait_for_the_first_server_and_go_out_in_order(world: World):
    seen: list[int] = []

    def take(message: int, ctx: Any) -> int:  # noqa: ARG001
        seen.append(message)
        return message

    place = new_place()
    client = world.client(place, ready=False)
    waiting = [client.request(number, reply=int).submit() for number in range(20)]
    cancelled = client.request(99, reply=int).submit()
    assert cancelled.cancel()
    world.server(take, at=place)
    assert [completion.result(PATIENCE) for completion in waiting] == list(range(20))
    assert seen == list(range(20))
    assert client.statistics()["pending"] == 0


def test_a_call_does_not_wait_for_ever(world: World, monkeypatch: pytest.MonkeyPatch):
    client = world.client(new_place(), ready=False)
    with pytest.raises(DeadlineExceeded, match="no answer before the deadline"):
        client.request("who", timeout=0.05).result(PATIENCE)
    monkeypatch.setattr(waiting_line, "MOST_WAIT", 0.05)
    with pytest.raises(Unavailable, match="no server of channel 'api' was ready"):
        client.send("who", timeout=4.0).result(PATIENCE)
    assert client.statistics()["pending"] == 0
    with pytest.raises(DeadlineExceeded, match=r"1 server\(s\) of channel 'api' are not ready"):
        client.wait_ready(timeout=0.01)


def test_the_host_closes_while_calls_wait(world: World):
    host = Host(workers=1)
    client = host.client("api", servers=[new_place()])
    world.started(host)
    waiting = client.request("who").submit()
    host.close()
    assert isinstance(outcome(waiting), ShuttingDown)
    with pytest.raises(ShuttingDown):
        client.request("who").result(PATIENCE)


# -- loss ---------------------------------------------------------------------------------------------------------------


def test_a_server_that_ends_takes_its_pending_requests_along_and_its_next_life_gets_the_next(world: World):
    gate, ran = Gate(), []

    def slow(message: int, ctx: Any) -> int:  # noqa: ARG001
        ran.append(message)
        gate()
        return message

    place = new_place()
    host, _ = world.server(slow, at=place)
    client = world.client(place)
    held = client.request(7, reply=int).submit()
    gate.wait_begun()
    closing = threading.Thread(target=host.close, args=(0.1,))
    closing.start()
    error = outcome_of(held)
    assert isinstance(error, Unavailable | ShuttingDown), error
    gate.open()
    closing.join(PATIENCE)
    world.server(named("next"), at=place)
    assert ask(client, 1) == ["next"]
    assert ran == [7]


def outcome_of(completion: Any) -> Any:
    eventually(completion.done)
    return outcome(completion)


def test_a_client_that_is_gone_is_forgotten_with_the_first_answer_it_does_not_take(world: World):
    gate = Gate()

    def slow(message: int, ctx: Any) -> int:  # noqa: ARG001
        gate()
        return message

    _, server = world.server(slow)
    host = Host(workers=1)
    client = host.client("api", servers=[server.endpoint])
    world.started(host)
    client.request(1).submit()
    gate.wait_begun()
    host.close()
    gate.open()
    eventually(lambda: server.statistics()["clients"] == 0)
    assert server.statistics()["dropped_replies"] == 1


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_bad_options_are_refused_at_once():
    host = Host()
    for bad in ("nowhere", "tcp://*:0"):
        with pytest.raises(ValueError, match=r"bind must be|cannot reach"):
            host.server("api", bind=bad)
    with pytest.raises(ValueError, match="weight"):
        host.server("api", weight=-1)
    for servers in ([], ["nowhere"], ["tcp://h:1", "tcp://h:1"]):
        with pytest.raises(ValueError, match="server"):
            host.client("api", servers=servers)
    host.server("api")
    host.client("api", servers=["tcp://127.0.0.1:7001"])
    with pytest.raises(AlreadyExists):
        host.server("api")
    with pytest.raises(AlreadyExists):
        host.client("api", servers=["tcp://127.0.0.1:7001"])
    host.close()
    with pytest.raises(InvalidOperation):
        host.server("late")


def test_another_channel_is_refused(world: World, caplog: pytest.LogCaptureFixture):
    _, server = world.server(named("api"))
    client = world.client(server.endpoint, name="other", ready=False)
    eventually(lambda: "refused" in caplog.text)
    assert client.servers() == []


def test_a_record_over_the_limit_is_refused_before_it_is_sent(world: World):
    _, server = world.server(echo)
    client = world.client(server.endpoint, max_record_bytes=64 * 1024)
    with pytest.raises(CapacityExceeded, match="max_record_bytes"):
        client.request(b"x" * 70_000).result(PATIENCE)
    assert client.request(b"x" * 1000, reply=bytes).result(PATIENCE) == b"x" * 1000


def test_a_place_that_is_taken_starts_nothing(world: World):
    _, server = world.server(named("api"))
    host = Host(workers=1)
    host.server("api", bind=server.endpoint)
    with pytest.raises(OSError, match="cannot bind"):
        host.start()


# -- liveness -----------------------------------------------------------------------------------------------------------


def test_a_silent_server_is_asked_and_times_that_make_no_sense_are_refused(world: World):
    _, server = world.server(named("api"))
    host = Host(workers=1)
    client = host.client("api", servers=[server.endpoint], probe_interval=0.05, dead_after=0.2)
    world.started(host)
    host.wait_ready(PATIENCE)
    (link,) = client._running().servers._links
    alias = link.alias
    heard = client._running().servers._liveness._watched[alias]
    before = heard.at
    eventually(lambda: heard.at > before + 0.3, "answers to its questions")
    assert link.alias == alias, "it was never given up"
    with pytest.raises(ValueError, match="two probe_intervals"):
        Host().client("api", servers=[server.endpoint], probe_interval=1.0, dead_after=1.0)
