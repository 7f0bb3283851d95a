"""`Strand`: what the world knows about one scripted thread, and `Target`, what a thread can wait for.

Ownership
    Everything is written by the one thread that runs (the holder of the baton), or by the controller once the run is
    over; both hand over through a lock.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Protocol

from .carriers import Carrier

__all__ = ["Strand", "Target"]


class Target(Protocol):
    """What an operation is about: a lock, an event, ... `holder` is the thread that must act first, if one is known."""

    @property
    def label(self) -> str: ...

    @property
    def holder(self) -> Strand | None: ...


class Strand:
    """One scripted thread. It may run when it waits for nothing (`ready` is None), when `ready()` is true, or when the
    clock has passed `deadline`."""

    __slots__ = (
        "abandoned",
        "carrier",
        "daemon",
        "deadline",
        "ended",
        "face",
        "finished",
        "interruption",
        "name",
        "number",
        "op",
        "ready",
        "refusals",
        "target",
    )

    carrier: Carrier

    def __init__(self, number: int, name: str, daemon: bool, face: object) -> None:
        self.number = number
        self.name = name
        self.daemon = daemon
        self.face = face
        """What `current_thread()` returns on this thread."""
        self.op = "begin"
        self.target: Target | None = None
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.interruption: BaseException | None = None
        """What its wait raises if it ends without what it waits for."""
        self.ended = False
        self.abandoned = False
        self.refusals = 0
        """Operations tried since the run is over."""
        self.finished = _thread.allocate_lock()
        """Opened when the thread has ended, or is given up, after the run."""
        self.finished.acquire()

    def enabled(self, now: float) -> bool:
        return self.ready is None or self.ready() or (self.deadline is not None and self.deadline <= now)

    @property
    def waits_for(self) -> str:
        return f"{self.op} {self.target.label}" if self.target is not None else self.op
