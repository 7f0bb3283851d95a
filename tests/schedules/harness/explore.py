"""Searching the schedules of a scenario: at random, exhaustively, line by line; and replaying one of them.

Guarantees
    `run_*` return how much was run, or raise `ScheduleFailure` with the whole story: the failure, every thread's stack
    and what it waits for, the schedule as a list, the shortest prefix that still fails, and how to see it again.
    The same seed gives the same schedule, in any process that hashes alike.

Assumes
    One search at a time per process. Garbage is collected between runs only: a finalizer in the middle would be a
    thread's operation at a place nobody chose.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from .lines import Lines
from .outcome import Outcome
from .report import Finding, ScheduleFailure
from .scenario import ScenarioFunction, play
from .strategies import Exhaustive, Random, Replay, Strategy

__all__ = [
    "Settings",
    "Summary",
    "TooManySchedules",
    "find_exhaustive",
    "find_random",
    "replay",
    "run_exhaustive",
    "run_kept",
    "run_lines",
    "run_random",
    "settings",
]

_COLLECT_EVERY = 500
_WARM_UP = 10
"""Random schedules before an exhaustive search by line: the first call of a function is not traced as the later ones."""


@dataclass(slots=True)
class Settings:
    """What the command line (`--schedules`, `--seed`) and `ZLINK_FIRST_SEED` say; None: what each test says.

    With a first seed only seeds are run: the exhaustive searches would be the same again.
    """

    schedules: int | None = None
    first_seed: int | None = None
    seed: int | None = None


settings = Settings()


@dataclass(frozen=True, slots=True)
class Summary:
    schedules: int
    seconds: float


class TooManySchedules(Exception):
    """An exhaustive search is larger than the test allows: a smaller scenario or bound, or a larger limit."""


@dataclass(slots=True)
class _Search:
    """Runs of one scenario, counted. The limits are those of `play`."""

    scenario: ScenarioFunction
    lines: Lines | None = None
    limit: int | None = None
    patience: float = 10.0
    runs: int = 0

    def run(self, strategy: Strategy, *, journal: bool = False) -> Outcome:
        self.runs += 1
        if self.runs % _COLLECT_EVERY == 0:
            gc.collect()
        return play(self.scenario, strategy, lines=self.lines, journal=journal, limit=self.limit, patience=self.patience)

    def finding(self, outcome: Outcome, seed: int | None) -> Finding:
        """Run a failing schedule again for the report, whole and shortened."""
        again = self.run(Replay(outcome.choices), journal=True)
        same = again.choices == outcome.choices and again.failure is not None and outcome.failure is not None
        if not same:
            return Finding(self._name(), outcome, outcome, seed, reproducible=False)
        return Finding(self._name(), again, self._shortened(again), seed, reproducible=True)

    def _shortened(self, outcome: Outcome) -> Outcome:
        """The shortest prefix of the schedule that, followed straight on, fails in the same way."""
        choices, failure = outcome.choices, outcome.failure
        assert failure is not None
        ends = [0, *(index + 1 for index, choice in enumerate(choices) if choice)]
        for end in ends[:-1]:
            shorter = self.run(Replay(choices[:end]))
            if shorter.failure is not None and shorter.failure.kind == failure.kind:
                return self.run(Replay(choices[:end]), journal=True)
        return outcome

    def _name(self) -> str:
        return getattr(self.scenario, "__qualname__", repr(self.scenario))


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _random(search: _Search, seeds: Iterable[int], preemptions: int) -> Finding | None:
    with _no_collection():
        straight = search.run(Replay())
        if straight.failure is not None:
            return search.finding(straight, None)
        horizon = len(straight.choices) + 2
        for seed in seeds:
            outcome = search.run(Random(seed, horizon, preemptions))
            if outcome.failure is not None:
                return search.finding(outcome, seed)
    return None


def _exhaustive(search: _Search, strategy: Exhaustive, most: int) -> Finding | None:
    with _no_collection():
        for count in itertools.count(1):
            outcome = search.run(strategy)
            if outcome.failure is not None:
                return search.finding(outcome, None)
            if not strategy.advance():
                return None
            if count >= most:
                raise TooManySchedules(f"{search._name()}: more than {most} schedules")
    return None


def _seeds(count: int | Sequence[int], dear: bool = False) -> Sequence[int]:
    """Those of one search; a `dear` one gets a tenth of what the command line says."""
    if settings.seed is not None:
        return (settings.seed,)
    if not isinstance(count, int):
        return count
    first = settings.first_seed or 0
    if settings.schedules is not None:
        count = max(1, settings.schedules // 10) if dear else settings.schedules
    return range(first, first + count)


def find_random(
    scenario: ScenarioFunction,
    seeds: int = 300,
    *,
    preemptions: int = 3,
    lines: Iterable[ModuleType | str] = (),
    limit: int | None = None,
    patience: float = 10.0,
) -> Finding | None:
    """The straight run, then one schedule per seed; the first failure, or None."""
    modules = tuple(lines)
    search = _Search(scenario, Lines(modules) if modules else None, limit, patience)
    return _random(search, range(seeds), preemptions)


def find_exhaustive(
    scenario: ScenarioFunction,
    preemptions: int = 2,
    *,
    switches: int | None = None,
    most: int = 50_000,
    limit: int | None = None,
    patience: float = 10.0,
) -> Finding | None:
    """Every schedule up to the bound; the first failure, or None."""
    return _exhaustive(_Search(scenario, None, limit, patience), Exhaustive(preemptions, switches), most)


def run_random(scenario: ScenarioFunction, seeds: int | Sequence[int] = 100, *, preemptions: int = 3) -> Summary:
    """Assert that no schedule of that many seeds, or of those, fails."""
    began = time.monotonic()
    search = _Search(scenario)
    return _summary(search, _random(search, _seeds(seeds), preemptions), began)


def run_lines(
    scenario: ScenarioFunction,
    modules: Iterable[ModuleType | str],
    seeds: int | Sequence[int] = 50,
    *,
    preemptions: int = 3,
) -> Summary:
    """As `run_random`, switching at any line of `modules` as well; ten times as dear."""
    began = time.monotonic()
    search = _Search(scenario, Lines(modules))
    return _summary(search, _random(search, _seeds(seeds, dear=True), preemptions), began)


def run_kept(scenario: ScenarioFunction, seed: int, lines: Iterable[ModuleType | str] = ()) -> None:
    """Assert that the schedule which once showed a bug does not fail, whatever the command line says."""
    modules = tuple(lines)
    finding = _random(_Search(scenario, Lines(modules) if modules else None), (seed,), preemptions=3)
    if finding is not None:
        raise ScheduleFailure(finding)


def run_exhaustive(
    scenario: ScenarioFunction,
    preemptions: int = 2,
    *,
    switches: int | None = None,
    most: int = 50_000,
    lines: Iterable[ModuleType | str] = (),
) -> Summary:
    """Assert that no schedule within the bound (see `Exhaustive`) fails; says how many there are."""
    began = time.monotonic()
    modules = tuple(lines)
    search = _Search(scenario, Lines(modules) if modules else None)
    if settings.first_seed is not None:
        return Summary(0, 0.0)
    finding = _random(search, range(_WARM_UP), preemptions) if modules else None
    return _summary(search, finding or _exhaustive(search, Exhaustive(preemptions, switches), most), began)


def replay(scenario: ScenarioFunction, choices: Sequence[int], lines: Iterable[ModuleType | str] = ()) -> Outcome:
    """One schedule, with its journal: `choices` as a report prints them."""
    modules = tuple(lines)
    with _no_collection():
        return _Search(scenario, Lines(modules) if modules else None).run(Replay(choices), journal=True)


def _summary(search: _Search, finding: Finding | None, began: float) -> Summary:
    if finding is not None:
        raise ScheduleFailure(finding)
    return Summary(search.runs, time.monotonic() - began)
