"""Many trivial pieces of work: given away, run, and their results collected."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Self

from bench.measure import Cell, Plan, check, compare
from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool

__all__ = ["spawn_and_run", "spawn_and_run_outside"]

ITEMS = 20_000


def work(number: int) -> int:
    return number + 1


async def async_work(number: int) -> int:
    return number + 1


def expected(items: int) -> int:
    return items * (items + 1) // 2


class HandWrittenPool:
    """What one writes when a `ThreadPoolExecutor` is too slow: threads on one `SimpleQueue`.

    It does less than the others: no result or exception of its own for each item, no cancelling, no order.
    """

    def __init__(self, threads: int) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[int], int], int] | None] = queue.SimpleQueue()
        self._results: list[int] = []
        self._expected = 0
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def map(self, function: Callable[[int], int], items: int) -> list[int]:
        self._results = results = list[int]()
        self._expected = items
        self._done.clear()
        put = self._queue.put
        for number in range(items):
            put((function, number))
        self._done.wait()
        return results

    def _run(self) -> None:
        get = self._queue.get
        while (item := get()) is not None:
            function, number = item
            results = self._results
            results.append(function(number))
            if len(results) == self._expected:  # the last append is seen by whoever made it
                self._done.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def spawn_and_run(plan: Plan) -> Cell:
    """Spawned by a coroutine and awaited by it; the thread pools are fed by a plain thread, as they are made to be."""
    items = plan.count(ITEMS)

    async def spawner() -> list[int]:
        spawn = task.spawn
        tasks = [spawn(async_work(number)) for number in range(items)]
        return [await one for one in tasks]

    async def asyncio_spawner() -> list[int]:
        create_task = asyncio.create_task
        return await asyncio.gather(*[create_task(async_work(number)) for number in range(items)])

    with (
        WorkerPool(plan.workers) as pool,
        ThreadPoolExecutor(plan.workers) as executor,
        HandWrittenPool(plan.workers) as hand_written,
        asyncio.Runner() as runner,
    ):
        rows = {
            "zlink": lambda: _timed("zlink", items, lambda: task.spawn(spawner(), pool=pool).result()),
            "thread_pool": lambda: _timed("thread_pool", items, lambda: _through(executor, items)),
            "asyncio": lambda: _timed("asyncio", items, lambda: runner.run(asyncio_spawner())),
            "simple_queue": lambda: _timed("simple_queue", items, lambda: hand_written.map(work, items)),
        }
        return compare("spawn_and_run", items, rows, plan.runs)


def spawn_and_run_outside(plan: Plan) -> Cell:
    """Given away and collected by a plain thread; asyncio by the way its documentation names for that."""
    items = plan.count(ITEMS)

    def outside(pool: WorkerPool) -> list[int]:
        spawn = task.spawn
        tasks = [spawn(async_work(number), pool=pool) for number in range(items)]
        return [one.result() for one in tasks]

    def through_loop(loop: asyncio.AbstractEventLoop) -> list[int]:
        submit = asyncio.run_coroutine_threadsafe
        futures = [submit(async_work(number), loop) for number in range(items)]
        return [future.result() for future in futures]

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with (
            WorkerPool(plan.workers) as pool,
            ThreadPoolExecutor(plan.workers) as executor,
            HandWrittenPool(plan.workers) as hand_written,
        ):
            rows = {
                "zlink": lambda: _timed("zlink", items, lambda: outside(pool)),
                "thread_pool": lambda: _timed("thread_pool", items, lambda: _through(executor, items)),
                "asyncio": lambda: _timed("asyncio", items, lambda: through_loop(loop)),
                "simple_queue": lambda: _timed("simple_queue", items, lambda: hand_written.map(work, items)),
            }
            return compare("spawn_and_run_outside", items, rows, plan.runs)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _through(executor: ThreadPoolExecutor, items: int) -> list[int]:
    submit = executor.submit
    futures = [submit(work, number) for number in range(items)]
    return [future.result() for future in futures]


def _timed(name: str, items: int, job: Callable[[], list[int]]) -> float:
    start = perf_counter()
    results = job()
    seconds = perf_counter() - start
    check(f"{name}: results", (len(results), sum(results)), (items, expected(items)))
    return seconds
