"""`Worker`: one place in the scheduler - its queues, its bed, its counters - and which thread sits there (design 2.2-2.3).

A place is a role: a thread that blocks hands it to another one, with everything that waits in it. Two queues each:
`local`, from which others steal, and `pinned`, for runnables that stay here.

Ownership
    `local`, `pinned`  deques whose single operations are atomic; anybody may append and take
    `asleep`, `left`   under the ready set's lock; may be read without it by who appended before (see `ready.py`)
    `filled`           under the pool's lock
    `carrier`          under the pool's lock while the place changes hands; read by the thread that sits there
    the rest           written by the thread that sits there, read by statistics
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from zlink_nogil import _sync

if TYPE_CHECKING:
    from zlink_nogil.scheduler.pool import WorkerPool
    from zlink_nogil.scheduler.role import Role

__all__ = ["Runnable", "Worker", "here"]


class Runnable(Protocol):
    """Something a worker runs a slice of. It keeps itself from being in the ready set twice."""

    def run_slice(self) -> bool:
        """Run one slice now, on the calling worker; True to be put at the back of the ready set. Must not raise."""
        ...


class Worker:
    __slots__ = (
        "asleep",
        "carrier",
        "cpu",
        "filled",
        "guest",
        "index",
        "items",
        "left",
        "local",
        "look_at",
        "new_round",
        "parker",
        "parks",
        "pinned",
        "pool",
        "role",
        "round_ends",
        "running",
        "seed",
        "since",
        "source",
        "steals",
    )

    def __init__(self, pool: WorkerPool, index: int, *, guest: bool = False, cpu: int | None = None) -> None:
        self.pool = pool
        self.index = index
        self.guest = guest
        self.cpu = cpu
        self.local: deque[Runnable] = deque()
        self.pinned: deque[Runnable] = deque()
        self.source = self.local  # where the present runnable came from, and goes back to
        self.parker = _sync.Parker()
        self.role: Role | None = None  # what it leads while it sleeps
        self.asleep = False
        self.filled = guest  # has a thread, or had one
        self.left = False
        self.carrier: _sync.Thread | None = None
        self.running: Runnable | None = None
        self.since = 0.0  # `running` began
        self.items = self.steals = self.parks = 0
        self.look_at = 0.0  # a round ends at this time, or
        self.round_ends = 0  # with this item
        self.new_round = True
        self.seed = index

    def __repr__(self) -> str:
        return f"<Worker {self.index}>"

    def random(self, below: int) -> int:
        """A pseudo-random number of this place's own: no state is shared between workers."""
        self.seed = (self.seed * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.seed >> 16) % below


class _Here(_sync.local):
    pool: WorkerPool | None = None
    """The pool this thread belongs to, at a place or not."""
    worker: Worker | None = None
    """The place this thread sits at."""
    running: Runnable | None = None
    """What this thread is in the middle of, having left its place."""


here = _Here()
