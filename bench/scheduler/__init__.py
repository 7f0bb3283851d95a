"""The scheduler next to `ThreadPoolExecutor`, `asyncio`, and what one writes by hand with a queue or two locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.measure import Cell, Plan
from bench.scheduler.scaling import cpu_scaling
from bench.scheduler.sleeping import sleeping_memory
from bench.scheduler.spawning import spawn_and_run, spawn_and_run_outside
from bench.scheduler.waking import fan_out, ping_pong, wake

__all__ = ["CELLS"]

CELLS: Final[dict[str, Callable[[Plan], Cell]]] = {
    "spawn_and_run": spawn_and_run,
    "spawn_and_run_outside": spawn_and_run_outside,
    "ping_pong": ping_pong,
    "wake": wake,
    "fan_out": fan_out,
    "cpu_scaling": cpu_scaling,
    "sleeping_memory": sleeping_memory,
}
