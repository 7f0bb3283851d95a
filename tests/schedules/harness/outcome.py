"""What one run came to, and what every thread was doing when it failed."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType, TracebackType

from .carriers import frames
from .journal import Journal, is_inside, place
from .strand import Strand

__all__ = ["CheckFailed", "Failure", "Outcome", "ThreadState", "diagnose", "states"]


class CheckFailed(AssertionError):
    """A check of the scenario does not hold after all threads have ended."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread at the moment of the failure."""

    name: str
    waits_for: str
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind`: deadlock, lost wake-up, never ends, exception, check, invariant, logged error, outside the seam,
    not unwound, or not deterministic."""

    kind: str
    message: str
    threads: tuple[ThreadState, ...]
    error: BaseException | None
    step: int

    def traceback(self) -> list[str]:
        if self.error is None:
            return []
        stack: list[str] = []
        step: TracebackType | None = self.error.__traceback__
        while step is not None:
            if not is_inside(step.tb_frame):
                stack.append(_line(step.tb_frame, step.tb_lineno))
            step = step.tb_next
        return [*stack, *(line.rstrip() for line in traceback.format_exception_only(self.error))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `choices` replays it; `journal` is there when it was asked for."""

    failure: Failure | None
    choices: tuple[int, ...]
    steps: int
    now: float
    journal: Journal | None
    stuck: int
    """Threads that could not be unwound: they stay, blocked, until the process ends."""


def states(strands: Iterable[Strand]) -> tuple[ThreadState, ...]:
    innermost = frames()
    return tuple(
        ThreadState(strand.name, strand.waits_for, _stack(innermost.get(strand.carrier.ident)))
        for strand in strands
        if not strand.ended
    )


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    lines: list[str] = []
    while frame is not None:
        if not is_inside(frame):
            lines.append(_line(frame, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(lines))


def _line(frame: FrameType, number: int | None) -> str:
    return f"{place(frame)}: {linecache.getline(frame.f_code.co_filename, number or 0).strip()}"


def diagnose(main: Strand, alive: Iterable[Strand]) -> tuple[str, str]:
    """Kind and message for a world in which nobody can run and no deadline is left."""
    waiting = [strand for strand in alive if strand is not main or strand.op != "join all"]
    parts = [f"{strand.name} waits for {strand.waits_for}{_held_by(strand)}" for strand in waiting]
    kind = "deadlock" if any(_in_cycle(strand) for strand in waiting) else "lost wake-up"
    return kind, "everybody waits and no deadline is left: " + "; ".join(parts)


def _held_by(strand: Strand) -> str:
    holder = strand.target.holder if strand.target is not None else None
    return f" (last taken by {holder.name})" if holder is not None else ""


def _in_cycle(strand: Strand) -> bool:
    """Does following "waits for what is held by" lead back here? A lock held by the waiter itself may be a permit."""
    seen = [strand]
    while (target := seen[-1].target) is not None and (holder := target.holder) is not None and not holder.ended:
        if holder in seen:
            return holder is strand and len(seen) > 1
        seen.append(holder)
    return False
