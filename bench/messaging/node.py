"""`python -m bench.messaging.node WHO WORKERS server|client ...`: one process of a measurement.

A server prints its endpoint and stays until its input ends. A client prints the seconds its requests took; it fails when an
answer is not what was sent.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from zlink_nogil import Channel, Completion, Context, Host
from zlink_nogil.scheduler import Role

WINDOW: Final = 100
WARM_UP: Final = 0.2


def _serial(channel: Channel, message: bytes, count: int) -> None:
    for _ in range(count):
        _check(_request(channel, message).result(), message)


def _window(channel: Channel, message: bytes, count: int) -> None:
    pending: deque[Completion[Any]] = deque()
    for _ in range(count):
        if len(pending) == WINDOW:
            _check(pending.popleft().result(), message)
        pending.append(_request(channel, message))
    for completion in pending:
        _check(completion.result(), message)


PATTERNS: Final[dict[str, Callable[[Channel, bytes, int], None]]] = {"serial": _serial, "window": _window}


def _request(channel: Channel, message: bytes) -> Completion[Any]:
    return channel.request(message, reply=bytes, timeout=30.0).submit()


def _check(answer: bytes, message: bytes) -> None:
    if answer != message:
        raise AssertionError("another answer than what was sent")


def _serve(host: Host) -> None:
    mesh = host.mesh("bench", node_id="server")

    @mesh.channel("echo").handler
    def echo(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - what a handler takes
        return message

    with host:
        print(mesh.endpoint, flush=True)
        sys.stdin.read()


def _ask(host: Host, endpoint: str, pattern: str, payload: int, count: int) -> float:
    mesh = host.mesh("bench", node_id="client", peers=[endpoint])
    channel, message = mesh.channel("echo"), b"x" * payload
    with host:
        mesh.wait_for_channel("echo", 1, 10.0)
        PATTERNS[pattern](channel, message, max(WINDOW, round(count * WARM_UP)))
        gc.collect()
        gc.freeze()
        began = perf_counter()
        PATTERNS[pattern](channel, message, count)
        return perf_counter() - began


def _nobody(role: Role, heir: object) -> bool:  # noqa: ARG001 - in place of `Role.take`
    return False


def main(who: str, workers: str, side: str, *job: str) -> None:
    if who == "standby":
        Role.take = _nobody  # type: ignore[method-assign, assignment]
    host = Host(workers=int(workers))
    if side == "server":
        _serve(host)
    else:
        endpoint, pattern, payload, count = job
        print(_ask(host, endpoint, pattern, int(payload), int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
