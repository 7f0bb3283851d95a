"""`python -m bench SUBJECT`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from bench import report
from bench.actors import ROWS as ACTORS
from bench.measure import Cell, Plan, Void
from bench.messaging import CELLS as MESSAGING
from bench.messaging import LEADING
from bench.messaging.stalled_peer import CELLS as STALLED_PEER
from bench.scheduler import CELLS as SCHEDULER


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure, interleaved with baselines, and say on what."""


RUNS = click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1), help="Rounds of the rows, which take turns."
)
ROWS = click.option("--rows", multiple=True, metavar="CELL ...", help="Only these cells; all by default.")
MORE = click.argument("more", nargs=-1, metavar="[CELL]...")
WORKERS = click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Threads of every pool.")
SCALE = click.option(
    "--scale", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Times all sizes."
)
JSON = click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there.")
ALLOW_GIL = click.option("--allow-gil", is_flag=True, help="Measure with the GIL on, too.")


@main.command()
@RUNS
@ROWS
@MORE
@WORKERS
@SCALE
@click.option("--sleepers", default=1_000_000, show_default=True, type=click.IntRange(100), help="Of sleeping_memory.")
@JSON
@ALLOW_GIL
def scheduler(
    runs: int,
    rows: tuple[str, ...],
    more: tuple[str, ...],
    workers: int,
    scale: float,
    sleepers: int,
    file: Path | None,
    allow_gil: bool,
) -> None:
    """Spawning, waking, scaling, sleeping."""
    cells = {name: partial(_one, cell) for name, cell in SCHEDULER.items()}
    run("scheduler", cells, [*rows, *more], Plan(runs, workers, scale, sleepers), file, allow_gil)


def _one(cell: Callable[[Plan], Cell], plan: Plan) -> list[Cell]:
    return [cell(plan)]


@main.command()
@RUNS
@ROWS
@MORE
@WORKERS
@SCALE
@JSON
@ALLOW_GIL
def actors(
    runs: int,
    rows: tuple[str, ...],
    more: tuple[str, ...],
    workers: int,
    scale: float,
    file: Path | None,
    allow_gil: bool,
) -> None:
    """Messages to actors, answers, memory, threads; next to Pykka."""
    run("actors", ACTORS, [*rows, *more], Plan(runs, workers, scale, 0), file, allow_gil)


@main.command()
@RUNS
@ROWS
@MORE
@WORKERS
@SCALE
@JSON
@ALLOW_GIL
def messaging(
    runs: int,
    rows: tuple[str, ...],
    more: tuple[str, ...],
    workers: int,
    scale: float,
    file: Path | None,
    allow_gil: bool,
) -> None:
    """Requests and sends of the three APIs, next to the same sockets used by hand."""
    cells = {name: partial(_one, cell) for name, cell in MESSAGING.items()}
    run("messaging", cells, [*rows, *more], Plan(runs, workers, scale, 0), file, allow_gil)


@main.command()
@RUNS
@ROWS
@MORE
@WORKERS
@SCALE
@JSON
@ALLOW_GIL
def leading(
    runs: int,
    rows: tuple[str, ...],
    more: tuple[str, ...],
    workers: int,
    scale: float,
    file: Path | None,
    allow_gil: bool,
) -> None:
    """Requests with workers and callers in the sockets; next to the stand-by doing it all."""
    cells = {name: partial(_one, cell) for name, cell in LEADING.items()}
    run("leading", cells, [*rows, *more], Plan(runs, workers, scale, 0), file, allow_gil)


@main.command("stalled-peer")
@RUNS
@WORKERS
@SCALE
@JSON
@ALLOW_GIL
def stalled_peer(runs: int, workers: int, scale: float, file: Path | None, allow_gil: bool) -> None:
    """Requests to one node while another one reads nothing: the 99th percentile next to the undisturbed one."""
    cells = {name: partial(_one, cell) for name, cell in STALLED_PEER.items()}
    run("stalled-peer", cells, [], Plan(runs, workers, scale, 0), file, allow_gil)


type Cells = Mapping[str, Callable[[Plan], list[Cell]]]
"""What can be measured, by name; some take several cells at a time."""


def run(title: str, cells: Cells, chosen: list[str], plan: Plan, file: Path | None, allow_gil: bool) -> None:
    """Measure, show, write; exit code 1 when a cell is void."""
    if sys._is_gil_enabled() and not allow_gil:
        raise click.ClickException("the GIL is on, so threads take turns; PYTHON_GIL=0 on python3.13t, or --allow-gil")
    if unknown := [name for name in chosen if name not in cells]:
        raise click.UsageError(f"no such cell: {', '.join(unknown)}; there are {', '.join(cells)}")
    where = report.environment(plan)
    console = Console(stderr=True)
    measured: list[Cell] = []
    for name in chosen or cells:
        console.print(f"{name} ...", highlight=False)
        try:
            measured += cells[name](plan)
        except Void as reason:
            measured.append(Cell(name, 0, void=str(reason)))
    report.show(title, where, measured, Console(width=None if sys.stdout.isatty() else 120))
    if file is not None:
        report.write(file, where, measured)
    if any(cell.void is not None for cell in measured):
        sys.exit(1)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what was imported is not looked at again
    main()
