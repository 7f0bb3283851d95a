"""What several test files share: nodes on real sockets, handlers that can be held, a bounded look for a state."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zlink_nogil import Channel, Completion, Context, Host, Mesh, ZLinkError

PATIENCE = 10.0
"""Seconds until a test gives up on something that should have happened at once."""


_places = itertools.count()


def new_place() -> str:
    """An endpoint nobody has, known before anybody is there; its buffers are small. No file, so no path too long."""
    return f"ipc://@zlink-test-{os.getpid()}-{next(_places)}"


def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Look until `condition()` is true: for states that nobody announces, such as counters."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE} s"
        pause.wait(0.002)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run `works` on a thread each, all released at once; returns what each returned or raised, in order."""
    barrier = threading.Barrier(len(works))
    outcomes: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        barrier.wait(PATIENCE)
        try:
            outcomes[index] = works[index]()
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    return outcomes


def outcome(completion: Completion[Any]) -> Any:
    """The value, or the error instead of raising it."""
    try:
        return completion.result(PATIENCE)
    except (ZLinkError, BaseException) as error:
        return error


class Held:
    """Raw-bytes handlers that say when they have begun, and go on when they are released."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()

    def answer(self, message: bytes, ctx: Context) -> bytes:  # noqa: ARG002 - what a handler takes
        self.begun.release()
        assert self.gate.wait(PATIENCE), "nobody released the handler"
        self.seen.append(message)
        return message

    def take(self, message: bytes, ctx: Context) -> None:
        self.answer(message, ctx)

    def wait_begun(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=PATIENCE), "the handler has not begun"


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process of its own, whose warnings are errors."""
    return subprocess.Popen(
        [sys.executable, "-X", "gil=0", "-W", "error", "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@dataclass
class Node:
    host: Host
    mesh: Mesh

    @property
    def id(self) -> str:
        return self.mesh.node_id

    @property
    def endpoint(self) -> str:
        return self.mesh.endpoint

    @property
    def work(self) -> Channel:
        return self.mesh.channel("work")

    def count(self, name: str) -> int:
        return self.mesh.statistics()[name]

    def free_permits(self, count: int = 4096) -> None:
        """Wait until so many permits are free: a node that looks at its socket has some in its hand for a moment."""
        permits = self.host._permits
        eventually(lambda: permits.free() == count, f"{count} free permits (now {permits.free()})")

    def close(self, timeout: float = 5.0) -> None:
        self.host.close(timeout)


class Net:
    """Makes nodes with a pool of their own, and closes what a test left open."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.held: list[Held] = []

    def hold(self) -> Held:
        held = Held()
        self.held.append(held)
        return held

    def node(
        self,
        node_id: str,
        *handlers: Callable[..., Any],
        peers: tuple[Node | str, ...] = (),
        mesh: str = "test",
        bind: str = "tcp://127.0.0.1:0",
        weight: int | None = None,
        own: tuple[Callable[..., Any], ...] = (),
        workers: int = 2,
        start: bool = True,
        **options: Any,
    ) -> Node:
        """A started node; `handlers` are on its channel "work", `own` on the node itself."""
        host = Host(workers=workers, **options)
        endpoints = [peer if isinstance(peer, str) else peer.endpoint for peer in peers]
        node = Node(host, host.mesh(mesh, bind=bind, peers=endpoints, node_id=node_id))
        if weight is not None:
            node.mesh.channel("work", weight)
        for handler in handlers:
            node.work.handler(handler)
        for handler in own:
            node.mesh.handler(handler)
        self.nodes.append(node)
        if start:
            host.start()
        return node

    def pair(self, *handlers: Callable[..., Any], **options: Any) -> tuple[Node, Node]:
        """(client, server), both ready for each other; `handlers` and options are the server's."""
        server = self.node("server", *handlers, **options)
        client = self.node("client", peers=(server,))
        self.ready(client, server)
        return client, server

    @staticmethod
    def ready(*nodes: Node) -> None:
        """Wait until each sees all the others."""
        for node in nodes:
            others = {other.id for other in nodes} - {node.id}
            eventually(lambda node=node, others=others: others <= set(node.mesh.nodes()), f"{node.id} sees {others}")

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for held in self.held:
            held.gate.set()
        for node in reversed(self.nodes):
            node.close(0.3)


def echo(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - what a handler takes
    return message


@dataclass
class Charge:
    account: str
    cents: int


@dataclass
class Receipt:
    balance: int
