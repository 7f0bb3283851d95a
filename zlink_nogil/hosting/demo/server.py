"""A server process of the demo: parses what it is sent, and keeps each package's totals with that package's owner."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from dataclasses import dataclass
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.hosting.demo.counting import Counts, Totals, count
from zlink_nogil.hosting.host import Host
from zlink_nogil.messaging import Context, Mesh, Server
from zlink_nogil.spots import Spot, handler
from zlink_nogil.spots.message import MessageContext

__all__ = ["GC_THRESHOLD", "MESH", "Merge", "Report", "host"]

MESH: Final = "demo"
CHANNEL: Final = "parse"
CLIENT_NODE: Final = "client"
CLIENT: Final = "ZLINK_DEMO_CLIENT"
WORKERS: Final = "ZLINK_DEMO_WORKERS"
NODE: Final = "ZLINK_DEMO_NODE"
PARENT: Final = "ZLINK_DEMO_PARENT"
PACKAGES: Final = "package/"
"""How the ids of packages' Spots begin."""
GC_THRESHOLD: Final = 100_000
"""Trees are made of many small objects, and a collection stops every thread."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class Merge:
    package: str
    counts: Counts


@dataclass(slots=True)
class Report:
    """What a node has seen. `peak_parallel` is the most parse handlers that ran at once."""

    totals: dict[str, Totals]
    messages: int
    peak_parallel: int
    gil_enabled: bool


class _Gauge:
    """Counts handlers that run at once, and how many have run. Thread-safe: everything under `_lock`."""

    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self._running = 0
        self.peak = 0
        self.seen = 0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self.seen += 1
            self.peak = max(self.peak, self._running)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._running -= 1


class Package(Spot):
    """A package of sources, made where its first file comes to: parses its files one after another, and adds up."""

    @handler
    def parse(self, source: bytes, ctx: MessageContext) -> Counts:  # noqa: ARG002 - a handler's second argument
        with _parsing:
            counts = count(source)
        _packages.setdefault(self.spot_id.removeprefix(PACKAGES), Totals()).add(counts)
        return counts


def host() -> Host:
    """Made by `zlink-nogil serve`; told by the environment whose server it is."""
    _end_with_parent()
    warnings.simplefilter("ignore", SyntaxWarning)  # of the sources that are indexed
    workers = os.environ.get(WORKERS)
    made = Host(workers=int(workers) if workers else None, gc_freeze=True, gc_threshold=GC_THRESHOLD)
    mesh = made.mesh(MESH, peers=[os.environ[CLIENT]], node_id=os.environ[NODE], locations=CLIENT_NODE)
    made.spots.register(Package, on_demand=PACKAGES)
    register(mesh, made.server(CHANNEL))
    return made


def register(mesh: Mesh, server: Server) -> None:
    async def parse(source: bytes, ctx: Context) -> Counts:
        """Keyed by file: files in parallel. The counts go to the package's owner, on this node, before the answer."""
        with _parsing:
            counts = count(source)
        package = ctx.metadata["package"].decode()
        await mesh.node(mesh.node_id).request(Merge(package, counts), key=package, reply=None)
        return counts

    mesh.channel(CHANNEL).handler(parse)
    server.handler(parse)

    @mesh.handler
    def merge(message: Merge, ctx: Context) -> None:
        """Keyed by package: one at a time."""
        with _merging:
            _packages.setdefault(message.package, Totals()).add(message.counts)

    @mesh.handler
    def report(message: str, ctx: Context) -> Report:
        """Asked for when every parse has been answered."""
        return Report(_packages.copy(), _parsing.seen + _merging.seen + 1, _parsing.peak, _gil_enabled())

    def serving(message: str, ctx: Context) -> str:
        """Where clients of the channel reach this process."""
        return server.endpoint

    mesh.handler(serving, name="serving")


_parsing, _merging = _Gauge(), _Gauge()
_packages: dict[str, Totals] = {}
"""Each value is touched by its package's owner only."""


def _gil_enabled() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _end_with_parent() -> None:
    """A client that is killed must not leave servers behind, and nobody is left to drain for."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        raise SystemExit("the demo's client has ended already")
