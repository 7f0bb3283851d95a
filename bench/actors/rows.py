"""The rows: each peer in turn, in a process for each run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.actors.run import PATIENCE, PEERS, SENDERS, Figures
from bench.measure import Cell, Plan, Samples, Void

__all__ = ["ROWS"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
BASELINE: Final = "pykka"
WEIGHABLE: Final = 1_000
"""From so many actors on the memory of one can be told."""


@dataclass(frozen=True)
class Row:
    """`messages` in all; 0: the actors are only made, and are the items that are counted."""

    job: str
    actors: int
    messages: int


def measure(name: str, row: Row, plan: Plan) -> list[Cell]:
    """A cell for each peer; one that does not do its job is void, and the others go on."""
    rounds = max(1, round(row.messages * plan.scale / (row.actors * SENDERS)))
    runs: dict[str, list[Figures]] = {peer: [] for peer in PEERS}
    voids: dict[str, str] = {}
    for _ in range(plan.runs):
        for peer in PEERS:
            if peer not in voids:
                try:
                    runs[peer].append(_run(row, peer, rounds, plan.workers))
                except Void as reason:
                    voids[peer] = str(reason)
    items = rounds * row.actors * SENDERS if row.messages else row.actors
    baseline = None if BASELINE in voids else runs[BASELINE]
    return [_cell(name, peer, row, items, runs[peer], baseline, voids.get(peer)) for peer in PEERS]


def _cell(
    name: str, peer: str, row: Row, items: int, runs: Sequence[Figures], baseline: Sequence[Figures] | None, void: str | None
) -> Cell:
    labels = {"row": name, "peer": peer}
    if void is not None:
        return Cell(f"{name}/{peer}", items, void=void, labels=labels)
    samples = Samples(tuple(run.seconds for run in runs))
    figures = {
        "per_second": items / samples.median,
        "cpu_us": statistics.median(run.cpu_seconds for run in runs) / items * 1e6,
        "threads": float(max(run.threads for run in runs)),
    }
    if baseline is not None:
        figures["ratio_pykka"] = statistics.median(run.seconds for run in baseline) / samples.median
    if row.actors >= WEIGHABLE:
        figures["bytes_per_actor"] = statistics.median(run.bytes_each for run in runs)
    return Cell(f"{name}/{peer}", items, {peer: samples}, figures, labels=labels)


def _run(row: Row, peer: str, rounds: int, workers: int) -> Figures:
    numbers = map(str, (row.actors, rounds, workers))
    command = [sys.executable, "-m", "bench.actors", row.job, peer, *numbers]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise Void(f"not over within {3 * PATIENCE:.0f} s") from None
    if done.returncode != 0:
        raise Void((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return Figures(**json.loads(done.stdout))


ROWS: Final[dict[str, Callable[[Plan], list[Cell]]]] = {
    name: partial(measure, name, row)
    for name, row in {
        "tell_1": Row("tell", 1, 200_000),
        "tell_100": Row("tell", 100, 200_000),
        "tell_10000": Row("tell", 10_000, 400_000),
        "ask_1": Row("ask", 1, 50_000),
        "ask_100": Row("ask", 100, 50_000),
        "ask_serial_1": Row("ask_serial", 1, 20_000),
        "ask_serial_100": Row("ask_serial", 100, 20_000),
        "idle_1000": Row("idle", 1_000, 0),
        "idle_10000": Row("idle", 10_000, 0),
    }.items()
}
"""By name. `per_second` counts messages, or in the idle rows actors made."""
