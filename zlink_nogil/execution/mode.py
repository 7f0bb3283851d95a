"""`SpotMode`: what of a Spot may run at the same time, fixed when it is made (seed 000 section 4; design 3.5)."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Entry", "Instance", "PerActor", "SpotMode", "SpotWide"]


class SpotMode(Enum):
    """A user's Spot chooses between `PerActor` and `SpotWide`; the wiring of the other two kinds is given.

    `one_gate`: everything takes its turns in the Spot's queue, and a turn may be given back with `yield_()`; else the Spot,
    each Actor and each timer name have a queue of their own. `has_actors`: members can join.
    """

    PER_ACTOR = ("PerActor", False, True)
    SPOT_WIDE = ("SpotWide", True, True)
    ENTRY = ("Entry", False, True)
    INSTANCE = ("Instance", True, False)

    def __init__(self, label: str, one_gate: bool, has_actors: bool) -> None:
        self.label = label
        self.one_gate = one_gate
        self.has_actors = has_actors

    def __repr__(self) -> str:
        return self.label


PerActor: Final = SpotMode.PER_ACTOR
SpotWide: Final = SpotMode.SPOT_WIDE
Entry: Final = SpotMode.ENTRY
Instance: Final = SpotMode.INSTANCE
