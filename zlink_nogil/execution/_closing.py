"""How the queues of one coordinator end together.

Order, asserted by the queues' own lifecycle (work after the final one is refused)
    0. admission is over, by the coordinator; 1. what was accepted runs; 2. when the time is over the rest is told so;
    3. the final work runs, when nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.execution.queue import SerialExecutionQueue
from zlink_nogil.scheduler.waiting import timeout as within

__all__ = ["close_together", "end_together"]


def close_together(queues: Sequence[SerialExecutionQueue], timeout: float) -> None:
    """On the calling thread: as `end_together` with nothing final. It needs no worker, which may all be stuck."""
    if not _quiet_here(queues, timeout):
        for queue in queues:
            queue.expire()
        if not _quiet_here(queues, timeout):
            raise _still_running(queues, timeout)


def _quiet_here(queues: Sequence[SerialExecutionQueue], timeout: float) -> bool:
    deadline = _sync.monotonic() + timeout
    try:
        for queue in queues:
            queue.await_quiescence().result(max(0.0, deadline - _sync.monotonic()))
    except DeadlineExceeded:
        return False
    return True


def _still_running(queues: Sequence[SerialExecutionQueue], timeout: float) -> DeadlineExceeded:
    busy = ", ".join(repr(queue.name) for queue in queues if not queue.is_idle())
    return DeadlineExceeded(f"still running {timeout} s after the time was over: {busy}")


async def end_together(
    queues: Sequence[SerialExecutionQueue], timeout: float, last: SerialExecutionQueue, final: Callable[[], Any]
) -> None:
    """In a task: wait until the closed `queues` are idle, then run `final()` on `last`.

    After `timeout` seconds the queues are expired; `DeadlineExceeded` when something still runs `timeout` seconds later.
    Raises what `final` raises.
    """
    if not await _quiet(queues, timeout):
        for queue in queues:
            queue.expire()
        if not await _quiet(queues, timeout):
            raise _still_running(queues, timeout)
    await within(timeout, last.enqueue_final(final))


async def _quiet(queues: Sequence[SerialExecutionQueue], timeout: float) -> bool:
    deadline = _sync.monotonic() + timeout
    for queue in queues:
        try:
            await within(max(0.0, deadline - _sync.monotonic()), queue.await_quiescence())
        except DeadlineExceeded:
            return False
    return True
