"""What a server has seen of the sends of the active phase."""

from __future__ import annotations

from time import monotonic

from bench.messaging.stamp import ACTIVE, PHASE_AT

__all__ = ["Arrivals"]


class Arrivals:
    """`note` on one thread at a time. `asks`: what comes is to be answered, where a row cannot see it from the message."""

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks
        self.count = 0
        self.last = 0.0
        """When the last one came (`monotonic`)."""

    def note(self, message: bytes) -> None:
        if message[PHASE_AT] == ACTIVE:
            self.count += 1
            self.last = monotonic()
