"""The scheduler alone, without a host: a tree of sources counted with tasks, with asyncio, and with a thread pool.

Each of the three reads every file with a time limit, parses it, and adds up per package.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zlink_nogil import par, task
from zlink_nogil.hosting.demo.counting import Counts, Totals, as_text, count, package_of
from zlink_nogil.hosting.demo.report import Comparison
from zlink_nogil.scheduler import WorkerPool

__all__ = ["compare"]

LIMIT = 60.0
"""Seconds for one file."""

type Result = dict[str, Totals]


def parse(path: Path, root: Path, source: bytes) -> tuple[str, Counts | None]:
    try:
        return package_of(path, root), count(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return package_of(path, root), None


def add_up(parsed: list[tuple[str, Counts | None]]) -> Result:
    totals: Result = {}
    for package, counts in parsed:
        if counts is not None:
            totals.setdefault(package, Totals()).add(counts)
    return totals


# -- with tasks -----------------------------------------------------------------------------------------------------


async def read(path: Path) -> bytes:
    return await task.spawn_blocking(path.read_bytes)


async def read_later(path: Path) -> bytes:
    """A hedge against one slow read: by then the first has usually won the race."""
    await task.sleep(1.0)
    return await read(path)


async def fetch(path: Path) -> bytes:
    return await task.timeout(LIMIT, task.race(read(path), read_later(path)))


async def with_tasks(files: list[Path], root: Path) -> Result:
    fetches = [task.spawn(fetch(path)) for path in files]
    sources = await task.join(*fetches)
    return add_up(par.map(zip(files, sources, strict=True), lambda pair: parse(pair[0], root, pair[1])))


# -- the same on asyncio, and on a thread pool ----------------------------------------------------------------------


async def fetch_with_asyncio(path: Path) -> bytes:
    return await asyncio.wait_for(asyncio.to_thread(path.read_bytes), LIMIT)


async def with_asyncio(files: list[Path], root: Path) -> Result:
    fetches = [asyncio.create_task(fetch_with_asyncio(path)) for path in files]
    sources = await asyncio.gather(*fetches)
    return add_up([parse(path, root, source) for path, source in zip(files, sources, strict=True)])


def with_threads(files: list[Path], root: Path, workers: int) -> Result:
    with ThreadPoolExecutor(workers) as executor:
        sources = [executor.submit(path.read_bytes) for path in files]
        parsed = [
            executor.submit(parse, path, root, source.result(LIMIT)) for path, source in zip(files, sources, strict=True)
        ]
        return add_up([future.result() for future in parsed])


# -- side by side ---------------------------------------------------------------------------------------------------


def compare(root: Path, files: list[Path], workers: int | None) -> Comparison:
    """All three, one after the other. Raises what reading a file raises."""
    with WorkerPool(workers, "demo") as pool:
        ways: dict[str, Callable[[], Result]] = {
            "tasks": lambda: task.spawn(with_tasks(files, root), pool=pool).result(),
            "asyncio": lambda: asyncio.run(with_asyncio(files, root)),
            "threads": lambda: with_threads(files, root, pool.workers),
        }
        results: list[Result] = []
        seconds: dict[str, float] = {}
        for name, way in ways.items():
            began = time.perf_counter()
            results.append(way())
            seconds[name] = time.perf_counter() - began
        equal = all(result == results[0] for result in results)
        return Comparison(as_text(root), len(files), pool.workers, equal, sys._is_gil_enabled(), seconds)
