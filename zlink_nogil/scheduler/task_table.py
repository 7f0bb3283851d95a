"""`TaskTable`: the tasks of a pool that have not ended, whom `close` must cancel.

Guarantees
    A task that waits for something nobody else holds is kept alive. Every task has been cancelled by `cancel_all`, or
    finds `refusing` after it was added.

Ownership
    `_shards`     dicts by the coroutine's id; single atomic operations. Several, so that workers seldom meet in one.
    `refusing`    written once by `cancel_all`, before it looks; read after a task has been added
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil.scheduler.claims import claimed, taken

if TYPE_CHECKING:
    from zlink_nogil.scheduler.tasks import Task

__all__ = ["Shard", "TaskTable", "release"]

type Shard = dict[int, Task[Any] | None]

CLOSING: Final = 0
"""A key no coroutine has: in every shard of a pool that is closing."""


def release(shard: Shard, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """The task is over, its coroutine anybody's. True when the pool is closing, and its workers may have waited for this.

    A function of the shard, not a method: the end of a task touches nothing that all workers share.
    """
    key = id(coroutine)
    shard.pop(key, None)  # while it is claimed: whoever gets a coroutine that was given back writes the same key
    claimed[key >> 6 & 15].pop(key, None)
    return CLOSING in shard


class TaskTable:
    def __init__(self) -> None:
        self._shards: tuple[Shard, ...] = tuple({} for _ in range(16))
        self.refusing = False

    def add(self, coroutine: Coroutine[Any, Any, Any], task: Task[Any]) -> Shard:
        """Claim `coroutine` for `task`, which looks at `refusing` then. `InvalidOperation` if somebody else has it."""
        key = id(coroutine)
        index = key >> 6 & 15
        if claimed[index].setdefault(key, task) is not task:
            raise taken(coroutine)
        shard = self._shards[index]
        shard[key] = task
        return shard

    def any(self) -> bool:
        """Is a task left? Goes through each dict's own lock: what ended or began before is seen."""
        for shard in self._shards:
            shard.pop(-1, None)
            if len(shard) > (CLOSING in shard):
                return True
        return False

    def count(self) -> int:
        return sum(len(shard) - (CLOSING in shard) for shard in self._shards)

    def note_closing(self) -> None:
        """Before the workers ask `any`: from now on each end is told."""
        for shard in self._shards:
            shard[CLOSING] = None

    def cancel_all(self) -> int:
        """Cancel every task and accept no other; how many there were."""
        self.refusing = True
        tasks = [task for shard in self._shards for task in list(shard.values()) if task is not None]
        for task in tasks:
            task.cancel()
        return len(tasks)
