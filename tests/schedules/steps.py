"""What the scenarios of tasks share: steps that are counted, a pool whose table is a place to switch."""

from __future__ import annotations

from typing import Any

from zlink_nogil.errors import Cancelled
from zlink_nogil.scheduler import WorkerPool
from zlink_nogil.scheduler.tasks import Task

from .harness import Scenario

__all__ = ["Steps", "end_of", "make_pool", "nothing_left"]


class Steps:
    """What a coroutine did: never on two threads at once."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.inside: set[int] = set()
        self.log: list[str] = []

    def step(self, name: str) -> None:
        with self.s.alone(self.inside, "one thread steps a coroutine at a time"):
            self.log.append(name)


class Shard(dict[int, Any]):
    """A part of the table whose operations are places to switch."""

    s: Scenario

    def pop(self, key: int, *default: Any) -> Any:
        self.s.step("pop")
        return super().pop(key, *default)

    def __setitem__(self, key: int, value: Any) -> None:
        self.s.step("mark")
        super().__setitem__(key, value)

    def values(self) -> Any:
        self.s.step("values")
        return super().values()


class One(tuple[Any, ...]):
    """All coroutines are in one shard, whatever their addresses."""

    def __getitem__(self, index: Any) -> Any:
        return next(iter(self))


def make_pool(s: Scenario, workers: int) -> WorkerPool:
    pool = WorkerPool(workers)
    shard = Shard()
    shard.s = s
    pool.tasks._shards = One((shard,))
    return pool


def end_of(task: Task[Any]) -> str:
    try:
        return str(task.result())
    except Cancelled:
        return "cancelled"


def nothing_left(pool: WorkerPool) -> bool:
    return pool.tasks.count() == 0 and pool.ready.timers.armed() == 0 and not pool.tasks.any()
