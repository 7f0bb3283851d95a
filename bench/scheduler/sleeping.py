"""A million sleeping tasks: what they weigh, what it takes to begin and to cancel them. A process for each row."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from bench.measure import Cell, Plan, Samples, Void
from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool

__all__ = ["sleeping_memory"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ASYNCIO_PART: Final = 10
"""asyncio gets a tenth of the tasks: enough to weigh one."""
LONG: Final = 1e6
"""Seconds nobody waits for."""
PATIENCE: Final = 600.0


@dataclass(frozen=True)
class Weighed:
    bytes_each: float
    spawn: float
    cancel: float


def sleeping_memory(plan: Plan) -> Cell:
    """`bytes_each`: memory of the process before and after, by the number of tasks; all cancelled and gone at the end.

    The rows are the seconds to begin and to cancel; one process, so one run of each.
    """
    sleepers = plan.count(plan.sleepers)
    fewer = max(2, sleepers // ASYNCIO_PART)
    ours, theirs = _measured("zlink", sleepers, plan.workers), _measured("asyncio", fewer, 1)
    rows = {"zlink spawn": Samples((ours.spawn,)), "zlink cancel": Samples((ours.cancel,))}
    figures = {
        "bytes_each": ours.bytes_each,
        "bytes_each_asyncio": theirs.bytes_each,
        "ratio_bytes_asyncio": theirs.bytes_each / ours.bytes_each,
        "spawn_us": ours.spawn / sleepers * 1e6,
        "spawn_us_asyncio": theirs.spawn / fewer * 1e6,
        "cancel_us": ours.cancel / sleepers * 1e6,
        "cancel_us_asyncio": theirs.cancel / fewer * 1e6,
        "sleepers": float(sleepers),
    }
    return Cell("sleeping_memory", sleepers, rows, figures)


def _measured(kind: str, count: int, workers: int) -> Weighed:
    command = [sys.executable, "-m", __name__, kind, str(count), str(workers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0:
        raise Void(f"{kind}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return Weighed(**json.loads(done.stdout))


# -- in the process of its own --------------------------------------------------------------------------------------


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _zlink(count: int, workers: int) -> Weighed:
    with WorkerPool(workers) as pool:
        spawn, delay = task.spawn, task.sleep
        armed = pool.ready.timers.armed

        async def sleeper() -> None:
            await delay(LONG)

        async def begin() -> list[task.Task[None]]:
            return [spawn(sleeper()) for _ in range(count)]

        spawn(sleeper(), pool=pool).cancel()  # the threads are there
        _until(lambda: pool.tasks.count() == 0)
        before, start = _resident(), perf_counter()
        tasks = spawn(begin(), pool=pool).result()
        _until(lambda: armed() == count)
        spawned = perf_counter() - start
        weight = (_resident() - before) / count
        start = perf_counter()
        for one in tasks:
            one.cancel()
        _until(lambda: pool.tasks.count() == 0)
        _until(lambda: all(one.done() for one in tasks))  # the last ones leave the table just before they are done
        cancelled = perf_counter() - start
        if (ended := sum(one.cancelled() for one in tasks)) != count or armed() or pool.counts()[0]:
            raise Void(f"{ended} of {count} were cancelled, {armed()} sleep, {pool.counts()[0]} are ready")
        return Weighed(weight, spawned, cancelled)


async def _asyncio(count: int) -> Weighed:
    async def sleeper() -> None:
        await asyncio.sleep(LONG)

    before, start = _resident(), perf_counter()
    tasks = [asyncio.create_task(sleeper()) for _ in range(count)]
    await asyncio.sleep(0)
    spawned = perf_counter() - start
    weight = (_resident() - before) / count
    start = perf_counter()
    for one in tasks:
        one.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = perf_counter() - start
    if sum(isinstance(end, asyncio.CancelledError) for end in ends) != count:
        raise Void("not all were cancelled")
    return Weighed(weight, spawned, cancelled)


def _until(condition: Callable[[], bool]) -> None:
    deadline = perf_counter() + PATIENCE
    while not condition():
        if perf_counter() > deadline:
            raise Void("it takes too long")
        sleep(0.01)


def _main(kind: str, count: int, workers: int) -> None:
    gc.collect()
    gc.freeze()
    weighed = _zlink(count, workers) if kind == "zlink" else asyncio.run(_asyncio(count))
    print(json.dumps(vars(weighed)))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
