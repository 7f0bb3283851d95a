"""The cells: three APIs, three patterns, two sizes; each row of a cell in processes of its own, in turn."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bench.measure import OURS, Cell, Plan, Samples, Void
from bench.messaging.job import Job

__all__ = ["CELLS", "LEADING", "command"]

APIS: Final = ("mesh", "client-server", "spot")
PATTERNS: Final = ("request-serial", "request-window", "send-saturation")
SIZES: Final = (1024, 4096)
ROWS: Final = ("pyzmq", "direct", "floor", OURS)
SECONDS: Final = 2.0
"""Of the active window, at scale 1."""
PATIENCE: Final = 180.0


@dataclass(frozen=True)
class _Run:
    """`in_flight` and `drain` as chapter 6.1 defines them."""

    each: float
    in_flight: float
    drain: float
    client_cpu: float
    server_cpu: float
    peak: float


def _measured(job: Job) -> _Run:
    """Both processes are new ones. `Void` when something was lost."""
    with subprocess.Popen(command(job), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        asking = replace(job, server=endpoint)
        done = subprocess.run(command(asking), stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        ours: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"count": 0}
        sends = job.pattern == "send-saturation"
        rest, _ = server.communicate(f"{ours['count'] if sends else 0}\n", timeout=PATIENCE)
    if done.returncode or server.returncode:
        raise Void(f"{job.row}: a process failed")
    theirs = json.loads(rest.splitlines()[-1])
    if not ours["count"] or (sends and theirs["count"] != ours["count"]):
        raise Void(f"{job.row}: {theirs['count']} of {ours['count']} messages came")
    drain = max(0.0, theirs["last"] - ours["ended"]) / ours["seconds"] if sends else 0.0
    return _Run(
        ours["seconds"] / ours["count"],
        ours["latency"] / ours["seconds"],
        drain,
        ours["cpu"] / ours["count"],
        theirs["cpu"] / ours["count"],
        max(ours["peak"], theirs["peak"]),
    )


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "bench.messaging.node", json.dumps(asdict(job))]


def _cell(name: str, api: str, pattern: str, size: int, rows: Sequence[str], plan: Plan) -> Cell:
    jobs = {row: Job(row, api, pattern, size, SECONDS * plan.scale, plan.workers) for row in rows}
    runs: dict[str, list[_Run]] = {row: [] for row in rows}
    for _ in range(plan.runs):
        for row, job in jobs.items():
            runs[row].append(_measured(job))
    samples = {row: Samples(tuple(run.each for run in taken)) for row, taken in runs.items()}
    ours = runs[OURS]
    figures = {f"ratio_{row}": samples[row].median / samples[OURS].median for row in rows if row != OURS}
    figures["per_second"] = 1 / samples[OURS].median
    figures["client_cpu_us"] = statistics.median(run.client_cpu for run in ours) * 1e6
    figures["server_cpu_us"] = statistics.median(run.server_cpu for run in ours) * 1e6
    figures["peak_mb"] = max(run.peak for run in ours) / 1e6
    if pattern == "request-window":
        figures["in_flight_mean"] = statistics.median(run.in_flight for run in ours)
    if pattern == "send-saturation":
        figures["drain_ratio"] = statistics.median(run.drain for run in ours)
    return Cell(name, 1, samples, figures, labels={"api": api, "pattern": pattern, "payload": str(size)})


def _cells(apis: Sequence[str], patterns: Sequence[str], rows: Sequence[str]) -> Mapping[str, Callable[[Plan], Cell]]:
    return {
        name: functools.partial(_cell, name, api, pattern, size, rows)
        for api in apis
        for pattern in patterns
        for size in SIZES
        for name in (f"{api}/{pattern}/{size}",)
    }


CELLS: Final = _cells(APIS, PATTERNS, ROWS)
LEADING: Final = _cells(("mesh",), PATTERNS[:2], (OURS, "standby"))
"""Workers and callers that lead (decision 7), next to the same runtime with everything read by the stand-by."""
