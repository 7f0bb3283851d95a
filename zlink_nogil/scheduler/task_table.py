"""`TaskTable`: the tasks of a pool that have not ended - who claims a coroutine, and whom `close` must cancel.

Guarantees
    A coroutine is claimed by one task at a time. A task that waits for something nobody else holds is kept alive.
    Every task has been cancelled by `cancel_all`, or finds `refusing` after its claim.

Ownership
    `_shards`     dicts by the coroutine's id; single atomic operations. Several, so that workers seldom meet in one.
    `refusing`    written once by `cancel_all`, before it looks; read after a claim has been written
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil.errors import InvalidOperation

if TYPE_CHECKING:
    from zlink_nogil.scheduler.tasks import Task

__all__ = ["Shard", "TaskTable", "release"]

type Shard = dict[int, Task[Any] | None]

CLOSING: Final = 0
"""A key no coroutine has: in every shard of a pool that is closing."""


def release(shard: Shard, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """The task is over. True when the pool is closing, and its workers may have waited for this.

    A function of the shard, not a method: the end of a task touches nothing that all workers share.
    """
    shard.pop(id(coroutine), None)
    return CLOSING in shard


class TaskTable:
    def __init__(self) -> None:
        self._shards: tuple[Shard, ...] = tuple({} for _ in range(16))
        self.refusing = False

    def claim(self, coroutine: Coroutine[Any, Any, Any], task: Task[Any]) -> Shard:
        """`InvalidOperation` if another task has it. The caller looks at `refusing` then."""
        key = id(coroutine)
        shard = self._shards[key >> 6 & 15]
        if shard.setdefault(key, task) is not task:
            raise InvalidOperation(f"another task runs this coroutine already: {coroutine!r}")
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
