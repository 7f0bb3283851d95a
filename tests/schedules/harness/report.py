"""A failing schedule as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from .journal import Entry
from .outcome import Failure, Outcome

__all__ = ["Finding", "ScheduleFailure"]

_LONGEST = 200
"""Operations of a schedule that are printed: the last ones."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A failing schedule: as it was found, and shortened."""

    scenario: str
    outcome: Outcome
    shortest: Outcome
    seed: int | None
    reproducible: bool

    @property
    def failure(self) -> Failure:
        assert self.outcome.failure is not None
        return self.outcome.failure

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        shown = self.shortest
        failure = shown.failure
        assert failure is not None
        yield f"{self.scenario}: {failure.kind}: {failure.message}"
        if self.seed is not None:
            yield f"seed: {self.seed} (again: --seed {self.seed})"
        yield f"choices: {_choices(self.outcome.choices)}"
        if not self.reproducible:
            yield "NOT REPRODUCIBLE: the same choices gave another run. Does an order depend on ids or hashes?"
            yield from _threads(failure)
            return
        yield f"shortest prefix that fails: {_choices(shown.choices)}"
        yield from failure.traceback()
        yield from _threads(failure)
        yield f"schedule ({shown.steps} operations, virtual time {shown.now:.6f}):"
        yield from _schedule(shown)


class ScheduleFailure(AssertionError):
    """A schedule of a scenario fails."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _choices(choices: Iterable[int]) -> str:
    """As Python to paste into `replay`; the zeros at the end go without saying."""
    runs = [(choice, len(list(group))) for choice, group in groupby(choices)]
    if runs and runs[-1][0] == 0:
        runs.pop()
    parts = [f"[{choice}]" if length == 1 else f"[{choice}] * {length}" for choice, length in runs]
    return " + ".join(parts) or "[]"


def _threads(failure: Failure) -> Iterator[str]:
    for thread in failure.threads:
        yield f"thread {thread.name}: {thread.waits_for}"
        yield from (f"    {line}" for line in thread.stack)


def _schedule(outcome: Outcome) -> Iterator[str]:
    """The journal; of lines that follow each other undisturbed only the last one."""
    entries = outcome.journal.entries if outcome.journal is not None else []
    shown = [
        f"{number:>5} {entry}"
        for number, (entry, following) in enumerate(pairwise([*entries, None]), 1)
        if entry is not None and not (following is not None and _is_dull(entry, following))
    ]
    skipped = len(shown) - _LONGEST
    if skipped > 0:
        yield f"  ... {skipped} operations before"
    yield from shown[-_LONGEST:]


def _is_dull(entry: Entry, following: Entry) -> bool:
    return entry.does == following.does == "line" and entry.thread == following.thread and not entry.then
