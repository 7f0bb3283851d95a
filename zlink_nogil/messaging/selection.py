"""Smooth weighted round robin, computed when the candidates change and not per message (design 4.4, seed 004 E2).

Ownership
    a `Selector` belongs to its `lane`: candidates and choices are turns of it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Protocol

from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["LONGEST_CYCLE", "Selector"]

LONGEST_CYCLE: Final = 4096
"""Choices in one cycle up to which the order is prepared; beyond it the procedure runs per call."""


class Candidate(Protocol):
    @property
    def identifier(self) -> bytes: ...


class Selector[C: Candidate]:
    """Chooses among weighted candidates. The same candidates and state give the same order on every run."""

    def __init__(self, name: str) -> None:
        self.lane = StateLane(f"selector {name}", rank=Rank.SELECTOR)
        self._candidates: list[tuple[C, int]] = []
        self._accumulators: dict[bytes, int] = {}
        self._order: list[C] = []
        self._after: dict[bytes, int] = {}  # the accumulators at the end of the order
        self._next = 0

    def replace(self, candidates: Mapping[bytes, tuple[C, int]]) -> None:
        """Set the candidates and their weights; those of weight 0 are out. Accumulators of those that stay are kept."""
        self.lane.run(self._replace, candidates)

    def choose(self) -> C | None:
        """The next candidate, None when there is none. One turn, constant time while the cycle is prepared."""
        return self.lane.run(self._choose)

    def _replace(self, candidates: Mapping[bytes, tuple[C, int]]) -> None:
        debug_assert_on_lane(self.lane)
        self._settle_cursor()
        kept = self._accumulators
        self._candidates = sorted(
            ((c, weight) for c, weight in candidates.values() if weight > 0), key=lambda entry: entry[0].identifier
        )
        self._accumulators = {c.identifier: kept.get(c.identifier, 0) for c, _ in self._candidates}
        self._prepare()

    def _choose(self) -> C | None:
        debug_assert_on_lane(self.lane)
        order = self._order
        if not order:
            return self._step(self._accumulators) if self._candidates else None
        chosen = order[self._next]
        self._next += 1
        if self._next == len(order):
            self._next = 0
            if self._after != self._accumulators:
                self._accumulators = self._after
                self._prepare()
        return chosen

    def _prepare(self) -> None:
        """The order of one cycle. It repeats when every accumulator is where it was after it.

        Accumulators kept from other candidates may need some cycles to get there; until then each has an order of its own.
        """
        self._next = 0
        self._order = []
        weights = [weight for _, weight in self._candidates]
        if not weights:
            return
        cycle = sum(weights) // math.gcd(*weights)
        if cycle > LONGEST_CYCLE:
            return
        accumulators = dict(self._accumulators)
        self._order = [self._step(accumulators) for _ in range(cycle)]
        self._after = accumulators

    def _settle_cursor(self) -> None:
        """Bring the accumulators to where the prepared order has got to."""
        for _ in range(self._next):
            self._step(self._accumulators)

    def _step(self, accumulators: dict[bytes, int]) -> C:
        """Add each weight, take the largest (ties: the smaller identifier), subtract the sum of all weights from it."""
        best: C | None = None
        most = total = 0
        for candidate, weight in self._candidates:  # sorted: a prefix comes before the longer identifier
            total += weight
            accumulators[candidate.identifier] += weight
            if best is None or accumulators[candidate.identifier] > most:
                best, most = candidate, accumulators[candidate.identifier]
        assert best is not None, "called with candidates"
        accumulators[best.identifier] -= total
        return best
