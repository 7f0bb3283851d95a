"""`Liveness`: who has to be asked whether he is there, and who is dead (design 4.7; decision 21).

Guarantees
    Anything that is heard counts, so traffic alone keeps a peer alive, and its lack alone never makes one dead: who is
    silent is asked first, with at most one question outstanding. A look that comes late - this process was held up -
    judges nobody: what came meanwhile has not been read yet.

Ownership
    everything belongs to the lane of whoever uses it
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Final

from zlink_nogil import _sync

__all__ = ["DEAD_AFTER", "PROBE_INTERVAL", "Liveness", "check_liveness"]

PROBE_INTERVAL: Final = 5.0
DEAD_AFTER: Final = 15.0


def check_liveness(probe_interval: float, dead_after: float) -> tuple[float, float]:
    """`ValueError` unless both are finite and positive, and there is time for a probe and its answer."""
    if not (0 < probe_interval < math.inf and 2 * probe_interval <= dead_after < math.inf):
        raise ValueError(
            f"dead_after is at least two probe_intervals, both finite and positive: {dead_after!r}, {probe_interval!r}"
        )
    return probe_interval, dead_after


class _Heard:
    __slots__ = ("asked", "at", "look_at")

    def __init__(self, now: float, look_at: float) -> None:
        self.at = now
        self.look_at = look_at
        self.asked = False


class Liveness[K: Hashable]:
    """Times are monotonic seconds."""

    def __init__(self, probe_interval: float, dead_after: float) -> None:
        self._interval = probe_interval
        self._dead_after = dead_after
        self._watched: dict[K, _Heard] = {}

    def watch(self, key: K, now: float) -> None:
        """From now on; as if something had just been heard."""
        self._watched[key] = _Heard(now, now + self._interval)

    def forget(self, key: K) -> None:
        self._watched.pop(key, None)

    def heard(self, keys: Iterable[K], now: float) -> None:
        """Something came from these; nothing happens for who is not watched."""
        for key in keys:
            state = _sync.look_up(self._watched, key)
            if state is not None:
                state.at = now
                state.asked = False

    def not_asked(self, key: K) -> None:
        """The question could not be sent, for lack of room: it will be at the next look."""
        self._watched[key].asked = False

    def look(self, now: float) -> tuple[list[K], list[K]]:
        """(who is to be asked now, who is dead)"""
        ask: list[K] = []
        dead: list[K] = []
        for key, state in self._watched.items():
            if now < state.look_at:
                continue
            late = now - state.look_at >= self._interval
            state.look_at = now + self._interval
            silent = now - state.at
            if silent >= self._dead_after and not late:
                dead.append(key)
            elif silent >= self._interval and not state.asked:
                state.asked = True
                ask.append(key)
        return ask, dead

    def next(self) -> float | None:
        """When to look again, None for never."""
        return min((state.look_at for state in self._watched.values()), default=None)
