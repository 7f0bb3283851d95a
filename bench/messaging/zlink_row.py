"""The row `zlink`: the runtime through its public API, typed handlers, raw bytes; and `standby`: nobody else leads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from bench.messaging.counting import Arrivals
from zlink_nogil import Context, Host, Spot, handler
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.scheduler import Role
from zlink_nogil.spots.message import MessageContext

__all__ = ["Zlink", "lead_nothing", "serve"]

_TIMEOUT = 30.0
_ROOM = 8192
"""Of an owner: more than there are permits, so that nothing is refused."""
_arrivals = Arrivals(asks=True)


class Echo(Spot):
    @handler(name="ask")  # type: ignore[misc] # with a name it is not typed
    def ask(self, message: bytes, ctx: MessageContext) -> bytes:  # noqa: ARG002 - what a handler takes
        return message

    @handler(name="send")  # type: ignore[misc]
    def note(self, message: bytes, ctx: MessageContext) -> None:  # noqa: ARG002
        _arrivals.note(message)


def ask(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001
    return message


def note(message: bytes, ctx: Context) -> None:  # noqa: ARG001
    _arrivals.note(message)


def lead_nothing() -> None:
    """From now on the stand-by reads every socket of this process."""

    def take(role: Role, heir: object) -> bool:  # noqa: ARG001 - in place of `Role.take`
        return False

    Role.take = take  # type: ignore[method-assign, assignment]


class Zlink:
    def __init__(self, api: str, endpoint: str, workers: int) -> None:
        self._host = host = Host(workers=workers)
        self._pending: deque[tuple[float, Any]] = deque()
        if api == "client-server":
            client = host.client("echo", servers=[endpoint])
            self._ask, self._send = client.request, client.send
        elif api == "mesh":
            mesh = host.mesh("bench", node_id="client", peers=[endpoint])
            self._ask, self._send = mesh.channel("echo").request, mesh.channel("echo").send
        else:
            host.mesh("bench", node_id="client", peers=[endpoint], locations="server")
            host.spots.register(Echo)
            self._ask, self._send = self._to_spot(host.spots.request), self._to_spot(host.spots.send)
        host.start()
        host.wait_ready(10.0)

    @staticmethod
    def _to_spot(call: Callable[..., Any]) -> Callable[..., Any]:
        def to_owner(message: bytes, **options: Any) -> Any:
            return call("owner", message, **options)

        return to_owner

    def ask(self, message: bytes) -> None:
        begun = perf_counter()
        self._pending.append((begun, self._ask(message, name="ask", reply=bytes, timeout=_TIMEOUT).submit()))

    def answer(self) -> float:
        begun, completion = self._pending.popleft()
        completion.result()
        return begun

    def send(self, message: bytes) -> None:
        self._send(message, name="send", timeout=_TIMEOUT).result()

    def close(self) -> None:
        self._host.close()


def serve(api: str, arrivals: Arrivals, ready: Callable[[str], None], stop: threading.Event, workers: int) -> None:
    global _arrivals  # what a handler of this process counts in
    _arrivals = arrivals
    host = Host(workers=workers, policy=ExecutionLanePolicy(application_message_capacity=_ROOM))
    if api == "client-server":
        server = host.server("echo", bind="tcp://127.0.0.1:0")
        server.handler(ask, name="ask")
        server.handler(note, name="send")
        with host:
            ready(server.endpoint)
            stop.wait()
        return
    mesh = host.mesh("bench", node_id="server", locations="server" if api == "spot" else None)
    mesh.channel("echo").handler(ask, name="ask")
    mesh.channel("echo").handler(note, name="send")
    host.spots.register(Echo)
    with host:
        if api == "spot":
            host.spots.create("Echo", "owner").result()
        ready(mesh.endpoint)
        stop.wait()
