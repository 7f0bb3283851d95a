"""What a second worker gives to work that only computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from bench.measure import Cell, Plan, check, interleaved
from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool

__all__ = ["cpu_scaling"]

TASKS = 48
SECONDS = 0.02
"""Of one task, about."""


def burn(steps: int) -> int:
    """Pure Python that shares no object with anybody."""
    value = 1
    for _ in range(steps):
        value = (value * 5 + 3) & 127
    return value


async def async_burn(steps: int) -> int:
    return burn(steps)


def cpu_scaling(plan: Plan) -> Cell:
    """`scaling`: the time of one worker by that of `--workers`; `scaling_thread_pool`: what plain threads make of it."""
    tasks, steps = plan.count(TASKS), _calibrated()
    expected = [burn(steps)] * tasks

    def timed(name: str, job: Callable[[], list[int]]) -> float:
        start = perf_counter()
        results = job()
        seconds = perf_counter() - start
        check(f"{name}: results", results, expected)
        return seconds

    def ours(pool: WorkerPool) -> list[int]:
        spawned = [task.spawn(async_burn(steps), pool=pool) for _ in range(tasks)]
        return [one.result() for one in spawned]

    def theirs(executor: ThreadPoolExecutor) -> list[int]:
        futures = [executor.submit(burn, steps) for _ in range(tasks)]
        return [future.result() for future in futures]

    with (
        WorkerPool(1) as one,
        WorkerPool(plan.workers) as several,
        ThreadPoolExecutor(1) as one_thread,
        ThreadPoolExecutor(plan.workers) as threads,
    ):
        rows = {
            "zlink_1": lambda: timed("zlink_1", lambda: ours(one)),
            "zlink": lambda: timed("zlink", lambda: ours(several)),
            "thread_pool_1": lambda: timed("thread_pool_1", lambda: theirs(one_thread)),
            "thread_pool": lambda: timed("thread_pool", lambda: theirs(threads)),
        }
        samples = interleaved(rows, plan.runs)
    figures = {
        "scaling": samples["zlink_1"].median / samples["zlink"].median,
        "scaling_thread_pool": samples["thread_pool_1"].median / samples["thread_pool"].median,
        "workers": float(plan.workers),
    }
    return Cell("cpu_scaling", tasks, samples, figures)


def _calibrated() -> int:
    """Steps that take about `SECONDS`, by the fastest of a few short tries."""
    steps = 20_000
    fastest = min(_seconds(steps) for _ in range(5))
    return max(1, round(steps * SECONDS / fastest))


def _seconds(steps: int) -> float:
    start = perf_counter()
    burn(steps)
    return perf_counter() - start
