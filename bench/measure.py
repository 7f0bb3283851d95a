"""Rows that run in turn, their medians, and what a cell makes of them."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["OURS", "Cell", "Plan", "Row", "Samples", "Void", "check", "compare", "interleaved"]

OURS: Final = "zlink"
"""The row that is ours, in every cell."""

NOISY: Final = 0.10
"""A spread above this is said."""

type Row = Callable[[], float]
"""One run; returns the seconds its active part took. Raises `Void` when the job was not done."""


class Void(Exception):
    """A run that did not do its job: its time means nothing."""


@dataclass(frozen=True)
class Plan:
    """What the command line asked for."""

    runs: int
    workers: int
    scale: float
    sleepers: int

    def count(self, full: int) -> int:
        return max(2, round(full * self.scale))


@dataclass(frozen=True)
class Samples:
    """One row's runs."""

    taken: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.taken)

    @property
    def spread(self) -> float:
        return (max(self.taken) - min(self.taken)) / self.median


@dataclass(frozen=True)
class Cell:
    """`figures` are what is published; `rows` is what they were made from (seconds a run, of `items` each).

    `labels` say to a program what the cell is, where a name is not enough.
    """

    name: str
    items: int
    rows: Mapping[str, Samples] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    void: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """The worst of the rows."""
        return max((samples.spread for samples in self.rows.values()), default=0.0)

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY


def check(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise Void(f"{name}: {found!r} instead of {expected!r}")


def interleaved(rows: Mapping[str, Row], runs: int) -> dict[str, Samples]:
    """Each row once to warm up, then `runs` rounds of all of them. No run pays for the garbage of the one before."""
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for round_number in range(runs + 1):
        for name, row in rows.items():
            gc.collect()
            seconds = row()
            if round_number:
                taken[name].append(seconds)
    return {name: Samples(tuple(seconds)) for name, seconds in taken.items()}


def compare(name: str, items: int, rows: Mapping[str, Row], runs: int) -> Cell:
    """A cell with a `ratio_ROW` for each row that is not ours: its time by our time."""
    samples = interleaved(rows, runs)
    ours = samples[OURS].median
    figures = {f"ratio_{row}": taken.median / ours for row, taken in samples.items() if row != OURS}
    return Cell(name, items, samples, figures)
