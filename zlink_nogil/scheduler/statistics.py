"""What a pool is doing: a frozen snapshot whose totals add up, and a readable dump (design 2.3; seed 001 section 9)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from zlink_nogil import _sync
from zlink_nogil.scheduler.worker import Worker

if TYPE_CHECKING:
    from zlink_nogil.scheduler.pool import WorkerPool

__all__ = ["Statistics", "describe", "describe_workers", "take_statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """One moment of a pool. `idle + searching + running + vacant == places`; `queued == injected + local + pinned`."""

    places: int
    """Workers, and guests (`block_on`)."""
    guests: int
    idle: int
    searching: int
    running: int
    vacant: int
    """Places no thread has been found for yet, or that have been left for good."""
    injected: int
    local: tuple[int, ...]
    """Per place."""
    pinned: tuple[int, ...]
    items: tuple[int, ...]
    """Slices run, per place, so far."""
    steals: int
    parks: int
    tasks: int
    """Not ended."""
    timers: int
    threads: int
    spare: int
    """Threads that wait for something to do."""
    blocked: int
    """Threads that have left their place while they block."""
    calls_running: int
    """`spawn_blocking`."""
    calls_waiting: int

    @property
    def queued(self) -> int:
        return self.injected + sum(self.local) + sum(self.pinned)


def take_statistics(pool: WorkerPool) -> Statistics:
    ready = pool.ready
    workers, injected, idle, searching, vacant = ready.snapshot()
    threads, spare = pool.thread_counts()
    waiting, running_calls = pool.blocking.counts()
    return Statistics(
        places=len(workers),
        guests=sum(worker.guest for worker in workers),
        idle=idle,
        searching=searching,
        running=len(workers) - idle - searching - vacant,
        vacant=vacant,
        injected=injected,
        local=tuple(len(worker.local) for worker in workers),
        pinned=tuple(len(worker.pinned) for worker in workers),
        items=tuple(worker.items for worker in workers),
        steals=sum(worker.steals for worker in workers),
        parks=sum(worker.parks for worker in workers),
        tasks=pool.tasks.count(),
        timers=ready.timers.armed(),
        threads=threads,
        spare=spare,
        blocked=len(pool.places.blocked()),
        calls_running=running_calls,
        calls_waiting=waiting,
    )


def describe(pool: WorkerPool) -> str:
    """What every worker is doing, a line each, and who blocks."""
    s = take_statistics(pool)
    head = (
        f"pool {pool.name!r}: {s.places} places ({s.guests} guests): {s.running} running, {s.searching} searching, "
        f"{s.idle} idle, {s.vacant} vacant; {s.queued} queued; {s.tasks} tasks, {s.timers} timers; "
        f"{s.threads} threads, {s.spare} spare, {s.blocked} blocked; "
        f"{s.calls_running} blocking calls, {s.calls_waiting} wait"
    )
    blocked = [f"  blocked: {runnable!r}" for runnable in pool.places.blocked()]
    return "\n".join([head, describe_workers(pool.ready.workers), *blocked])


def describe_workers(workers: Iterable[Worker]) -> str:
    frames = sys._current_frames()
    return "\n".join(f"  {_describe(worker, frames)}" for worker in workers)


def _describe(worker: Worker, frames: dict[int, FrameType]) -> str:
    """Not one moment: the worker goes on meanwhile."""
    thread, runnable = worker.carrier, worker.running
    who = f"worker {worker.index} ({thread.name if thread is not None else 'no thread'})"
    queues = f"{len(worker.local)} queued, {len(worker.pinned)} pinned"
    if worker.asleep:
        return f"{who}: sleeps; {queues}"
    if runnable is None:
        return f"{who}: looks for work; {queues}"
    where = ""
    frame = frames.get(thread.ident or 0) if thread is not None else None
    if frame is not None:
        where = f" at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
    return f"{who}: runs {runnable!r} for {_sync.monotonic() - worker.since:.3f} s{where}; {queues}"
