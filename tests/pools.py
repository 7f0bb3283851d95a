"""What tests of a pool share: trivial coroutines, and looks at whether it is whole and at rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from support import PATIENCE, eventually

from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool


async def value_of(value: Any = 1) -> Any:
    return value


async def calls(function: Callable[[], Any]) -> Any:
    return function()


async def sleeps(seconds: float = 0.001) -> None:
    await task.sleep(seconds)


def at_rest(pool: WorkerPool) -> None:
    """Every place idle, nothing left; the counts are those of the real threads."""

    def rests() -> bool:
        s = pool.statistics()
        return (s.idle, s.queued, s.tasks, s.blocked, s.searching, s.running) == (s.places, 0, 0, 0, 0, 0)

    eventually(rests, f"the pool at rest: {pool.describe()}")


def meet(pool: WorkerPool) -> None:
    """As many tasks as workers meet at a barrier: all of them are alive, and each takes one."""
    barrier = threading.Barrier(pool.workers)
    for met in [task.spawn(calls(lambda: barrier.wait(PATIENCE)), pool=pool) for _ in range(pool.workers)]:
        met.result(PATIENCE)
