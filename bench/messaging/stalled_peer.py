"""Requests to one node, while another one stops reading and everything to it waits: the 99th percentile, with and without.

The blocks take turns, undisturbed and disturbed, so that what happens to the machine happens to both. The node that stops is
stopped with a signal: it is there, and reads nothing.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from bench.measure import Cell, Plan, Samples, Void
from zlink_nogil import Context, Host, Mesh, NodeTarget, ZLinkError

__all__ = ["CELLS", "serve"]

REQUESTS: Final = 2_000
STALLED: Final = 3_000
BODY: Final = b"x" * 10_000
"""So many of these are more than the pipe and the system's buffers take."""
PATIENCE: Final = 30.0
LIVELY: Final = 3600.0
"""Seconds until a silent node is given up: not in this measurement."""


def serve(name: str) -> None:
    """The node `name`, in a process of its own: prints its endpoint and stays until its input ends."""
    host = Host(workers=1)
    mesh = host.mesh("bench", node_id=name)

    @mesh.handler
    def echo(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - what a handler takes
        return message

    with host:
        print(mesh.endpoint, flush=True)
        sys.stdin.read()


@contextmanager
def _server(name: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, endpoint)"""
    command = [sys.executable, "-c", f"from bench.messaging.stalled_peer import serve; serve({name!r})"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _p99(target: NodeTarget, count: int) -> float:
    """Of the times of `count` requests, one after the other."""
    times: list[float] = []
    for number in range(count):
        message = b"%d" % number
        began = perf_counter()
        answer: bytes = target.request(message, reply=bytes, timeout=PATIENCE).result()
        times.append(perf_counter() - began)
        if answer != message:
            raise Void("another answer than what was sent")
    return statistics.quantiles(times, n=100)[98]


def _measure(plan: Plan) -> Cell:
    """Rows are the 99th percentiles of the blocks (items: 1); the figure is what the stalled node costs."""
    count = max(100, plan.count(REQUESTS))
    rows: dict[str, list[float]] = {"undisturbed": [], "stalled": []}
    with _server("stalled") as (stalled, stalled_at), _server("other") as (_, other_at):
        host = Host(workers=plan.workers)
        mesh = host.mesh(
            "bench", node_id="caller", peers=[stalled_at, other_at], probe_interval=LIVELY, dead_after=2 * LIVELY
        )
        with host:
            mesh.wait_ready(PATIENCE)
            other = mesh.node("other")
            _p99(other, count)  # to warm up
            for _ in range(plan.runs):
                rows["undisturbed"].append(_p99(other, count))
                rows["stalled"].append(_disturbed(mesh, stalled, lambda: _p99(other, count)))
    samples = {name: Samples(tuple(taken)) for name, taken in rows.items()}
    medians = {name: taken.median for name, taken in samples.items()}
    figures = {f"p99_us_{name}": seconds * 1e6 for name, seconds in medians.items()}
    return Cell("p99", 1, samples, {**figures, "ratio_stalled": medians["stalled"] / medians["undisturbed"]})


def _disturbed(mesh: Mesh, stalled: subprocess.Popen[str], measure: Callable[[], float]) -> float:
    """`measure` while the sends to a node wait; they all end well when it reads again."""
    stalled.send_signal(signal.SIGSTOP)
    try:
        sends = [mesh.node("stalled").send(BODY, timeout=PATIENCE).submit() for _ in range(STALLED)]
        try:
            sends[-1].result(0.5)
        except ZLinkError:  # it waits
            seconds = measure()
        else:
            raise Void("the node that does not read is never full")
        if sends[-1].done():
            raise Void("the node that does not read has read")
    finally:
        stalled.send_signal(signal.SIGCONT)
    for send in sends:
        send.result(PATIENCE)
    mesh.node("stalled").request(b"last", reply=bytes, timeout=PATIENCE).result()  # the next block is undisturbed
    return seconds


CELLS: Final[Mapping[str, Callable[[Plan], Cell]]] = {"p99": _measure}
