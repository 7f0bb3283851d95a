"""Who goes next: the strategies behind one small interface.

Guarantees
    A strategy is asked only where there is a choice, and its answers depend on nothing but its own arguments and the
    questions before: the same strategy on the same scenario gives the same schedule.

Ownership
    a strategy belongs to one run (`Exhaustive`: to one search) and is used by the thread that holds the baton
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Exhaustive", "NotDeterministic", "Random", "Replay", "Strategy"]


class Strategy(Protocol):
    def choose(self, count: int, free: int) -> int:
        """Which of `count` threads goes on. The first `free` are no preemptions; 0 is the straight way."""
        ...


class NotDeterministic(Exception):
    """The scenario asked different questions when it was run again with the same answers."""


class Replay:
    """The given choices, then straight on. `Replay(())` is the straight run."""

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self._choices = iter(choices)

    def choose(self, count: int, free: int) -> int:  # noqa: ARG002 - the interface
        choice = next(self._choices, 0)
        if choice >= count:
            raise NotDeterministic(f"choice {choice} of {count}: not the schedule of this scenario")
        return choice


class Random:
    """By a seed: up to `preemptions` preemptions among the first `horizon` questions, free choices at random."""

    def __init__(self, seed: int, horizon: int, preemptions: int = 3) -> None:
        self._random = rng = random.Random(seed)
        self._asked = 0
        self._preempt = {rng.randrange(max(1, horizon)) for _ in range(rng.randint(0, preemptions))}

    def choose(self, count: int, free: int) -> int:
        asked = self._asked
        self._asked = asked + 1
        if free < count and asked in self._preempt:
            return self._random.randrange(free, count)
        return self._random.randrange(free) if free > 1 else 0


@dataclass(slots=True)
class _Branch:
    choice: int
    count: int
    free: int


class Exhaustive:
    """Every schedule up to a bound, depth first: run, `advance()`, run, until it is False.

    The bound: `preemptions`, and (None: no bound) `switches`, the number of times that, where somebody else has to go on
    anyway, it is not the first in the order of starting.
    """

    def __init__(self, preemptions: int, switches: int | None = None) -> None:
        self._preemptions = preemptions
        self._switches = switches if switches is not None else sys.maxsize
        self._path: list[_Branch] = []
        self._depth = 0

    def choose(self, count: int, free: int) -> int:
        depth = self._depth
        self._depth = depth + 1
        if depth == len(self._path):
            self._path.append(_Branch(0, count, free))
            return 0
        branch = self._path[depth]
        if (branch.count, branch.free) != (count, free):
            raise NotDeterministic(f"question {depth} was {branch.count}/{branch.free}, is now {count}/{free}")
        return branch.choice

    def advance(self) -> bool:
        """Turn to the next schedule; False when there is none left."""
        path = self._path
        if self._depth < len(path):
            raise NotDeterministic(f"a run ended after {self._depth} questions, there were {len(path)}")
        self._depth = 0
        while path:
            branch = path[-1]
            self._spend(branch, -1)
            branch.choice = self._next_choice(branch)
            if branch.choice < branch.count:
                self._spend(branch, 1)
                return True
            path.pop()
        return False

    def _next_choice(self, branch: _Branch) -> int:
        choice = branch.choice + 1
        if choice < branch.free and not self._switches:
            choice = branch.free
        return choice if choice < branch.free or self._preemptions else branch.count

    def _spend(self, branch: _Branch, count: int) -> None:
        if branch.choice >= branch.free:
            self._preemptions -= count
        elif branch.choice:
            self._switches -= count
