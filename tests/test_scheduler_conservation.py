"""Nothing is lost or run twice: `ZLINK_ITEMS` items (default 20,000) spawned, yielded, slept and stolen on 8 workers.

ZLINK_ITEMS=1000000 python -m pytest -s --timeout 600 tests/test_scheduler_conservation.py
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from support import eventually, together

from zlink_nogil import task
from zlink_nogil.scheduler import WorkerPool, blocking, ready
from zlink_nogil.scheduler import pool as pool_module

ITEMS = int(os.environ.get("ZLINK_ITEMS", "20000"))
BATCH = 1000
"""Items of one parent at a time: what is alive at once is bounded."""


@pytest.mark.timeout(60 + ITEMS // 1000)
@pytest.mark.parametrize("thread_per_core", [False, True])
def test_each_item_runs_exactly_once(monkeypatch, thread_per_core):
    monkeypatch.setattr(ready, "BATCH", 2)  # tiny: whatever goes wrong at a border goes wrong often
    monkeypatch.setattr(pool_module, "ROUND", 3)
    monkeypatch.setattr(blocking, "MOST", 2)
    ran = bytearray(ITEMS)

    async def item(number: int) -> int:
        match number % 8:
            case 0 | 1 | 2:
                await task.yield_now()
            case 3:
                await task.sleep(number % 5 * 1e-4)
            case 4:
                await task.spawn(nothing())
            case 5 if number % 64 == 5:
                await task.spawn_blocking(int)
            case 6 if number % 64 == 6:
                task.run_blocking(int)
        ran[number] += 1
        return number

    async def nothing() -> None:
        pass

    async def parent(numbers: range) -> int:
        total = 0
        for start in range(0, len(numbers), BATCH):
            children = [task.spawn(item(number)) for number in numbers[start : start + BATCH]]
            total += sum([await child for child in children])
        return total

    began = time.perf_counter()
    with WorkerPool(8, "conserving", thread_per_core=thread_per_core) as pool:
        parts = [range(first, ITEMS, 8) for first in range(8)]
        spawned: list[Any] = together(*[lambda part=part: task.spawn(parent(part), pool=pool) for part in parts])
        assert sum(each.result(50 + ITEMS // 1000) for each in spawned) == sum(range(ITEMS))
        assert ran.count(1) == ITEMS, "each exactly once"

        def at_rest() -> bool:
            s = pool.statistics()
            return (s.idle, s.queued, s.tasks, s.timers, s.blocked, s.calls_running, s.calls_waiting) == (
                8,
                0,
                0,
                0,
                0,
                0,
                0,
            )

        eventually(at_rest, "counts back to zero")
        s = pool.statistics()
        assert sum(s.items) >= ITEMS
        assert bool(s.steals) is not thread_per_core
    print(f"\n{ITEMS} items in {time.perf_counter() - began:.1f} s, {s.steals} thefts, {s.threads} threads")
