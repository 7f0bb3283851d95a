"""The demo's client: starts the servers, sends every file, adds up, and does the same work in a plain loop."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from rich.console import Console
from rich.progress import Progress

from zlink_nogil._interpreter import FREE_THREADED
from zlink_nogil.errors import DeadlineExceeded, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.execution import Call
from zlink_nogil.hosting.demo import server
from zlink_nogil.hosting.demo.counting import Counts, Totals, as_text, count, package_of
from zlink_nogil.hosting.demo.report import Outcome
from zlink_nogil.hosting.host import Host
from zlink_nogil.messaging import Mesh
from zlink_nogil.messaging.channel import Target
from zlink_nogil.scheduler import Completion

__all__ = ["run"]

APIS: Final = ("mesh", "client-server", "spot")
WINDOW: Final = 256
"""Requests in flight at most."""
START_TIMEOUT: Final = 30.0
FILE_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 2.0


type Ask = Callable[[bytes, Path, str], Call[Counts]]
"""(source, its path, its package)"""


def run(root: Path, paths: list[Path], nodes: int, workers: int | None, api: str, console: Console) -> Outcome:
    """Index `paths`, below `root`, on `nodes` processes and in a plain loop; `api` is one of `APIS`.

    The servers have ended when it returns or raises: `KeyboardInterrupt`, `OSError` for a file that cannot be read,
    `Unavailable` when the servers do not come up.
    """
    files = [(path, package_of(path, root)) for path in paths]
    for path, _ in files:
        path.read_bytes()  # both timed runs find the files in the page cache
    host = Host(gc_freeze=True, gc_threshold=server.GC_THRESHOLD)
    mesh = host.mesh(server.MESH, node_id=server.CLIENT_NODE, locations=server.CLIENT_NODE)
    with host, _servers(mesh, nodes, workers), ExitStack() as stack:
        ask = _asking(api, host, mesh, stack)
        progress = stack.enter_context(Progress(console=console, transient=True))
        began = time.perf_counter()
        errors = _index(ask, files, progress)
        reports = _reports(mesh)
        seconds = time.perf_counter() - began
    expected, sequential_errors, sequential_seconds = _plain_loop(files, console)
    totals = _add_up(reports)
    differing = sorted(name for name in totals.keys() | expected.keys() if totals.get(name) != expected.get(name))
    gil = any(report.gil_enabled for report in reports) or server._gil_enabled()
    messages = sum(report.messages for report in reports)
    return Outcome(
        path=as_text(root),
        api=api,
        nodes=nodes,
        workers=workers,
        files=len(files),
        messages=messages,
        errors=errors.total(),
        errors_by_kind=dict(errors),
        sequential_errors=sequential_errors,
        equal=not differing and errors.total() == sequential_errors,
        gil_enabled=gil,
        gc_threshold=server.GC_THRESHOLD,
        seconds=seconds,
        sequential_seconds=sequential_seconds,
        speedup=sequential_seconds / seconds,
        files_per_second=len(files) / seconds,
        messages_per_second=messages / seconds,
        peak_parallel=max((report.peak_parallel for report in reports), default=0),
        packages=totals,
        differing=differing,
    )


def _asking(api: str, host: Host, mesh: Mesh, stack: ExitStack) -> Ask:
    """How the servers are asked; what it needs besides ends with `stack`."""
    if api == "spot":
        return lambda source, _, package: host.spots.request(
            server.PACKAGES + package, source, reply=Counts, timeout=FILE_TIMEOUT
        )
    target: Target = mesh.channel(server.CHANNEL)
    if api == "client-server":
        places: list[str] = [mesh.node(node).request("", name="serving", reply=str).result() for node in mesh.nodes()]
        calling = Host()
        target = calling.client(server.CHANNEL, servers=places)
        stack.enter_context(calling)
        calling.wait_ready(START_TIMEOUT)

    def ask(source: bytes, path: Path, package: str) -> Call[Counts]:
        metadata = {"package": package.encode()}
        return target.request(source, key=as_text(path), reply=Counts, metadata=metadata, timeout=FILE_TIMEOUT)

    return ask


@contextmanager
def _servers(mesh: Mesh, nodes: int, workers: int | None) -> Iterator[None]:
    """The server processes, ready, in a session of their own: Ctrl-C is the client's, which then ends them."""
    environment = {
        **os.environ,
        server.CLIENT: mesh.endpoint,
        server.PARENT: str(os.getpid()),
        server.WORKERS: str(workers or ""),
    }
    options = ["-X", "gil=0"] if FREE_THREADED else []
    command = [sys.executable, *options, "-m", "zlink_nogil", "serve", f"{server.__name__}:host"]
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryFile() as said:
        try:
            for index in range(nodes):
                environment[server.NODE] = f"server-{index + 1}"
                processes.append(subprocess.Popen(command, env=environment, stderr=said, start_new_session=True))
            _wait_ready(mesh, processes, said)
            yield
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(STOP_TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_ready(mesh: Mesh, processes: list[subprocess.Popen[bytes]], said: IO[bytes]) -> None:
    """`Unavailable` when they are not ready in time, or one has ended; it tells the last line they have written."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            mesh.channel(server.CHANNEL).wait_ready(len(processes), 0.5)
            return
        except DeadlineExceeded as error:
            ended = [process.poll() for process in processes if process.poll() is not None]
            if not ended and time.monotonic() < deadline:
                continue
            reason = f"a server process ended with code {ended[0]} before it was ready" if ended else str(error)
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise Unavailable(f"{reason}; its last words: {last}" if last else reason) from None


def _index(ask: Ask, files: list[tuple[Path, str]], progress: Progress) -> Counter[str]:
    """Send every file, at most `WINDOW` unanswered; returns the errors by kind."""
    task = progress.add_task("indexing", total=len(files))
    errors: Counter[str] = Counter()
    window: deque[Completion[Counts]] = deque()

    def settle() -> None:
        try:
            window.popleft().result()
        except ZLinkError as error:
            errors[error.kind.name] += 1
        progress.advance(task)

    for path, package in files:
        while len(window) >= WINDOW:
            settle()
        try:
            window.append(ask(path.read_bytes(), path, package).submit())
        except ShuttingDown:
            raise
        except ZLinkError as error:  # nobody left to send it to
            errors[error.kind.name] += 1
            progress.advance(task)
    while window:
        settle()
    return errors


def _reports(mesh: Mesh) -> list[server.Report]:
    reports: list[server.Report] = []
    for node in mesh.nodes():
        try:
            reports.append(mesh.node(node).request("all", name="str", reply=server.Report).result())
        except ZLinkError:
            continue  # the node is gone, and its totals with it: the comparison shows it
    return reports


def _add_up(reports: list[server.Report]) -> dict[str, Totals]:
    totals: dict[str, Totals] = {}
    for report in reports:
        for package, part in report.totals.items():
            totals.setdefault(package, Totals()).add(part.counts, part.files)
    return totals


def _plain_loop(files: list[tuple[Path, str]], console: Console) -> tuple[dict[str, Totals], int, float]:
    """The same files, read and counted one after another in this thread, under the same collector settings."""
    warnings.simplefilter("ignore", SyntaxWarning)
    gc.collect()
    totals: dict[str, Totals] = {}
    errors = 0
    with console.status("the same in a plain loop, one thread"):
        began = time.perf_counter()
        for path, package in files:
            try:
                counts = count(path.read_bytes())
            except Exception:  # the same kinds a handler's error stands for
                errors += 1
                continue
            totals.setdefault(package, Totals()).add(counts)
        return totals, errors, time.perf_counter() - began
