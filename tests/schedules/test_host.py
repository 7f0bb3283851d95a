"""`Host` under every schedule: start, two who close, calls that race them, the other node that goes away.

A whole node takes hundreds of operations, too many for an exhaustive search: random only. The network is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from zlink_nogil import Completion, Context, Host, _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown, ZLinkError
from zlink_nogil.messaging import node as node_module

from .harness import Scenario, run_exhaustive, run_kept, run_lines, run_random
from .harness.sockets import Network

SEEDS = 60
HOST = ["zlink_nogil.hosting.host"]
_network: list[Network] = []


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every host of a run is on the run's network."""
    monkeypatch.setattr(node_module, "Context", lambda _keys: _network[0])
    yield
    _network.clear()


def new_network() -> Network:
    _network[:] = [Network(room=4)]
    return _network[0]


def echo(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - a handler takes both
    return message


class Watched:
    """A host with one node that answers, and what became of the calls it makes."""

    def __init__(self, s: Scenario, name: str, *peers: str) -> None:
        self.s = s
        self.host = Host(workers=1, max_pending_operations=4)
        self.mesh = self.host.mesh("m", bind=endpoint(name), node_id=name, peers=map(endpoint, peers), insecure=True)
        self.mesh.handler(echo)
        self.calls = 0
        self.ends: list[str] = []
        s.check(f"{name}: an end for each call", lambda: len(self.ends) == self.calls)
        s.check(f"{name}: nothing is pending", self.is_empty)

    def is_empty(self) -> bool:
        node = self.mesh._node
        return node is None or (not node.operations._pending and self.host._slots.taken() == 0)

    def ask(self, target: str) -> None:
        self.calls += 1
        self.ends.append(self._ask(target))

    def _ask(self, target: str) -> str:
        try:
            answer: Any = self.mesh.node(target).request(b"x", reply=bytes, timeout=100.0).result()
        except ZLinkError as error:
            return type(error).__name__
        self.s.expect(answer == b"x", "the answer is to this question")
        return "answered"

    def close(self) -> None:
        self.host.close(50.0)
        self.s.expect(not workers_and_standby(self.s, self.host), "nothing of it runs once close has returned")


def endpoint(name: str) -> str:
    return f"tcp://{name}:1"


def workers_and_standby(s: Scenario, host: Host) -> list[str]:
    """Names of threads that live on: its workers, and the stand-by while no other host needs that."""
    pool = host._own_pool
    assert pool is not None
    mine = [thread.name for thread in pool.threads if thread.is_alive()]
    standby = [strand.name for strand in s.world.strands if "standby" in strand.name and not strand.ended]
    return mine + (standby if len(_network[0].bound) == 0 else [])


def all_closed(network: Network) -> bool:
    return all(router.closed for router in network.routers)


def two_who_close_an_empty_host(s: Scenario) -> None:
    """One of them closes, both return afterwards, and who serves goes on to its end."""
    new_network()
    host = Host(workers=1)
    host.start()
    s.thread("closer", host.close)
    s.thread("closer too", host.close)
    s.thread("server", host.serve_forever)


def test_two_who_close_an_empty_host() -> None:
    run_random(two_who_close_an_empty_host)
    run_exhaustive(two_who_close_an_empty_host, preemptions=1, switches=0)
    run_lines(two_who_close_an_empty_host, HOST, 50)


def two_who_start(s: Scenario) -> None:
    """One of them does; the other is told, and that leaves the host running."""
    network = new_network()
    node = Watched(s, "a")
    told: list[str] = []

    def start() -> None:
        try:
            node.host.start()
        except InvalidOperation:
            told.append("it runs")

    def runs_until_it_is_closed() -> bool:
        node.mesh.nodes()
        node.close()
        return all_closed(network)

    s.thread("starter", start)
    s.thread("starter too", start)
    s.check("one is told", lambda: told == ["it runs"])
    s.check("runs until it is closed", runs_until_it_is_closed)


def test_two_who_start() -> None:
    run_lines(two_who_start, HOST, 40)


def two_who_close(s: Scenario) -> None:
    """Both closes return when everything is closed; a call that races them is answered or told."""
    network = new_network()
    node = Watched(s, "a")
    node.host.start()

    def close() -> None:
        node.close()
        s.expect(all_closed(network), "every socket is closed when close returns")
        with pytest.raises(ShuttingDown):
            node.mesh.nodes()

    s.thread("closer", close)
    s.thread("closer too", close)
    s.thread("caller", node.ask, "a")
    s.check("answered, or told why not", lambda: set(node.ends) <= {"answered", ShuttingDown.__name__})


def test_two_who_close() -> None:
    run_random(two_who_close, SEEDS)


def start_against_close(s: Scenario) -> None:
    """A host that is closed while it starts is closed: nothing runs on, and nobody waits for ever."""
    network = new_network()
    node = Watched(s, "a")

    def start() -> None:
        try:
            node.host.start()
        except InvalidOperation:
            return

    s.thread("starter", start)
    s.thread("closer", node.host.close, 1.0)
    s.check("every socket is closed", lambda: all_closed(network))
    s.check("no thread is left", lambda: not workers_and_standby(s, node.host))


def test_start_against_close() -> None:
    run_random(start_against_close, SEEDS)


def a_start_that_fails(s: Scenario) -> None:
    """It leaves nothing running, and nothing open."""
    network = new_network()
    network.unusable = endpoint("nowhere")
    node = Watched(s, "a", "nowhere")

    def start() -> None:
        with pytest.raises((ValueError, InvalidOperation)):
            node.host.start()

    s.thread("starter", start)
    s.thread("closer", node.host.close, 1.0)
    s.check("every socket is closed", lambda: all_closed(network))
    s.check("no thread is left", lambda: not workers_and_standby(s, node.host))


def test_a_start_that_fails() -> None:
    run_random(a_start_that_fails, 50)


def ask_and_leave(s: Scenario) -> None:
    """Two nodes find each other; each of the calls that race the other's close has one end."""
    network = new_network()
    server, client = Watched(s, "b"), Watched(s, "a", "b")
    server.host.start()

    def ask() -> None:
        client.host.start()
        client.host.wait_ready(20.0)
        s.thread_now("closer", server.close)
        client.ask("b")
        client.ask("b")
        client.close()

    s.thread("client", ask)
    s.check("every socket is closed", lambda: all_closed(network))


def test_ask_and_leave() -> None:
    run_random(ask_and_leave, SEEDS)


def a_call_nobody_answers(s: Scenario) -> None:
    """A request that is on its way when its node closes is told, not left to its deadline."""
    network = new_network()
    server, client = Watched(s, "b"), Watched(s, "a", "b")
    reached = _sync.Event()
    forever: Completion[bytes] = Completion(server.host._own_pool)

    async def never(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - a handler takes both
        reached.set()
        return await forever

    server.mesh.register("", never, "never")
    server.host.start()

    def ask() -> None:
        client.host.start()
        client.host.wait_ready(20.0)
        s.thread_now("closer", close)
        began = s.now
        with pytest.raises(ShuttingDown):
            client.mesh.node("b").request(b"x", reply=bytes, timeout=400.0, name="never").result()
        s.expect(s.now - began < 300.0, "in time")

    def close() -> None:
        reached.wait()
        client.close()
        server.host.close(1.0)

    s.thread("client", ask)
    s.check("every socket is closed", lambda: all_closed(network))


def test_a_call_nobody_answers() -> None:
    run_random(a_call_nobody_answers, SEEDS)


def a_handler_that_asks_its_own_node(s: Scenario) -> None:
    """What was accepted before the close is finished, and so is what that creates on its own node."""
    new_network()
    node = Watched(s, "a")
    began = _sync.Event()

    async def outer(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - a handler takes both
        began.set()
        s.sleep(1.0)
        return await node.mesh.node("a").request(message, reply=bytes, key="inner")

    node.mesh.register("", outer, "outer")
    node.host.start()
    answers: list[bytes] = []

    def ask() -> None:
        answers.append(node.mesh.node("a").request(b"x", reply=bytes, name="outer", key="outer").result())

    def close() -> None:
        began.wait()
        node.close()

    s.thread("caller", ask)
    s.thread("closer", close)
    s.check("answered", lambda: answers == [b"x"])


def test_a_handler_that_asks_its_own_node() -> None:
    run_random(a_handler_that_asks_its_own_node, SEEDS)


KEPT: Final[dict[str, tuple[Any, ...]]] = {
    "a start outlives the close that raced it": (start_against_close, 62),
}
"""Bugs that were there, and the scenario and seed that show each."""


@pytest.mark.parametrize("bug", KEPT)
def test_kept(bug: str) -> None:
    run_kept(*KEPT[bug])
