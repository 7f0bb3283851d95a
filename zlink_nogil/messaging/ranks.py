"""The order in which a thread may hold the lanes of messaging (decision 8); leaf locks come after all of them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Rank"]


class Rank(IntEnum):
    TOPOLOGY = 1
    SELECTOR = 2
    SOCKET = 3  # the operation lane and the replies lane: each is its socket's lock
