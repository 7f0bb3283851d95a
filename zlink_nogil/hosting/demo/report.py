"""The outcome of a demo run, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from zlink_nogil.hosting.demo.counting import Totals

__all__ = ["Comparison", "Outcome", "World", "show"]


@dataclass(slots=True)
class Outcome:
    """`messages` are records that handlers were given, on all nodes; `seconds` from the first request to the last total."""

    path: str
    api: str
    nodes: int
    workers: int | None
    files: int
    messages: int
    errors: int
    errors_by_kind: dict[str, int]
    sequential_errors: int
    equal: bool
    gil_enabled: bool
    gc_threshold: int
    seconds: float
    sequential_seconds: float
    speedup: float
    files_per_second: float
    messages_per_second: float
    peak_parallel: int
    packages: dict[str, Totals] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """Of a run with `--scheduler`: the same job in three ways, in this order."""

    path: str
    files: int
    workers: int
    equal: bool
    gil_enabled: bool
    seconds: dict[str, float]


@dataclass(slots=True)
class World:
    """Of a run with `--rooms`. `messages` were handled by somebody, ticks and reports aside; `moves` are between rooms;
    `wrong` says in words what does not add up."""

    rooms: int
    members: int
    workers: int
    seconds: float
    ticks: int
    ticks_missed: int
    tick_late_p50_ms: float
    tick_late_p99_ms: float
    messages: int
    messages_per_second: float
    moves: int
    yields: int
    refused: int
    books_balance: bool
    gil_enabled: bool
    wrong: list[str]

    @property
    def equal(self) -> bool:
        return self.books_balance


def show(outcome: Outcome | Comparison | World, console: Console) -> None:
    if isinstance(outcome, Comparison):
        _show_comparison(outcome, console)
    elif isinstance(outcome, World):
        _show_world(outcome, console)
    else:
        _show_outcome(outcome, console)


def _show_comparison(comparison: Comparison, console: Console) -> None:
    table = Table(title=f"{comparison.path}: {comparison.files} files, {comparison.workers} workers")
    for column in ("way", "seconds", "times as long as with tasks"):
        table.add_column(column, justify="left" if column == "way" else "right")
    first = next(iter(comparison.seconds.values()))
    for way, seconds in comparison.seconds.items():
        table.add_row(way, f"{seconds:.2f}", f"{seconds / first:.2f}")
    console.print(table)
    if comparison.equal:
        console.print("all three have the same totals", style="bold green")
    else:
        console.print("the totals DIFFER", style="bold red")


def _show_world(world: World, console: Console) -> None:
    table = Table(title=f"{world.rooms} rooms, {world.members:,} members, {world.workers} workers, {world.seconds:.1f} s")
    table.add_column("")
    table.add_column("count", justify="right")
    for name, number in (
        ("ticks", world.ticks),
        ("ticks missed: the one before was not over", world.ticks_missed),
        ("messages", world.messages),
        ("moves to another room", world.moves),
        ("turns given back for a request to another room", world.yields),
        ("payments refused: the room was full", world.refused),
    ):
        table.add_row(name, f"{number:,}")
    console.print(table)
    console.print(
        f"{world.messages_per_second:,.0f} messages/s; GIL {'ON' if world.gil_enabled else 'off'}\n"
        f"ticks began late by {world.tick_late_p50_ms:.1f} ms (median), {world.tick_late_p99_ms:.1f} ms (p99)",
        highlight=False,
    )
    if world.books_balance:
        console.print("the books balance: every member in one room, every coin accounted for", style="bold green")
    else:
        console.print("the books do NOT balance: " + "; ".join(world.wrong[:10]), style="bold red")


def _show_outcome(outcome: Outcome, console: Console) -> None:
    table = Table(title=f"{outcome.path}: {outcome.files} files")
    for column in ("package", "files", "lines", "functions", "classes", "imports", "longest function"):
        table.add_column(column, justify="left" if column == "package" else "right")
    for package, totals in sorted(outcome.packages.items()):
        counts = totals.counts
        numbers = (totals.files, counts.lines, counts.functions, counts.classes, counts.imports, counts.longest)
        table.add_row(package, *(f"{number:,}" for number in numbers))
    console.print(table)
    workers = outcome.workers or "a worker per CPU"
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.errors_by_kind.items()))
    errors = f"{outcome.errors} ({kinds})" if kinds else "0"
    console.print(
        f"api {outcome.api}, nodes {outcome.nodes}, workers each: {workers}; GIL {'ON' if outcome.gil_enabled else 'off'}; "
        f"collector threshold {outcome.gc_threshold}, start-up frozen\n"
        f"files that did not parse or were lost: {errors}; the plain loop: {outcome.sequential_errors}\n"
        f"{outcome.files_per_second:,.0f} files/s, {outcome.messages_per_second:,.0f} messages/s, "
        f"most handlers at once in one process: {outcome.peak_parallel}\n"
        f"{outcome.seconds:.2f} s; a plain loop in one thread {outcome.sequential_seconds:.2f} s; "
        f"speed-up {outcome.speedup:.2f}",
        highlight=False,
    )
    if outcome.equal:
        console.print("every total equals the plain loop's", style="bold green")
    else:
        where = ", ".join(outcome.differing[:10]) or "the number of errors"
        console.print(f"totals DIFFER from the plain loop's: {where}", style="bold red")
