"""Tasks: coroutines on a few threads, without the GIL (design 2.4). `task.spawn(work())`, `await task.sleep(1)`."""

from zlink_nogil.scheduler.asyncio_bridge import from_asyncio
from zlink_nogil.scheduler.offload import run_blocking, spawn_blocking
from zlink_nogil.scheduler.spawning import block_on, sleep, spawn, spawn_local, yield_now
from zlink_nogil.scheduler.tasks import Task, report_unseen_failures_to
from zlink_nogil.scheduler.waiting import join, race, timeout

__all__ = [
    "Task",
    "block_on",
    "from_asyncio",
    "join",
    "race",
    "report_unseen_failures_to",
    "run_blocking",
    "sleep",
    "spawn",
    "spawn_blocking",
    "spawn_local",
    "timeout",
    "yield_now",
]
