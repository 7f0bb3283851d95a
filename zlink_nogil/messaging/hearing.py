"""`Hearing`: which connections spoke lately, told to whoever looks who lives.

Guarantees
    What is said over a connection counts as heard at once, or as heard at most `WINDOW` seconds earlier: a turn of a lane
    for each claim would cost as much as the claim.

Ownership
    whoever leads the role that it belongs to
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zlink_nogil.binding import Record

__all__ = ["Hearing"]

WINDOW: Final = 0.01


class Hearing:
    def __init__(self, tell: Callable[[set[bytes]], None]) -> None:
        self._tell = tell
        self._told: set[bytes] = set()
        self._until = 0.0

    def note(self, records: list[Record], now: float) -> None:
        """They have just been claimed."""
        if now >= self._until:
            self._told.clear()
            self._until = now + WINDOW
        told = self._told
        new = {routing_id for routing_id, _ in records if routing_id not in told}
        if new:
            told |= new
            self._tell(new)
