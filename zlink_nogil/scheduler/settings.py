"""What the environment says about a pool, and which CPUs its places get (design 2.2; seed 001 section 8)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cpus_to_pin", "default_workers", "pinned_to", "thread_per_core_asked"]

_log = logging.getLogger("zlink_nogil.scheduler")


def default_workers() -> int:
    """`ZLINK_WORKERS`, else the CPUs this process may use. `ValueError` for a value that is no number above 0."""
    value = os.environ.get("ZLINK_WORKERS", "")
    if not value:
        return os.process_cpu_count() or 1
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise ValueError(f"ZLINK_WORKERS must be a whole number of at least 1, not {value!r}")
    return int(value)


def thread_per_core_asked() -> bool:
    """`ZLINK_THREAD_PER_CORE`: 1 or 0 (default). `ValueError` for anything else."""
    value = os.environ.get("ZLINK_THREAD_PER_CORE", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"ZLINK_THREAD_PER_CORE must be 0 or 1, not {value!r}")
    return value == "1"


def cpus_to_pin(workers: int) -> list[int | None]:
    """A CPU for each place, of those the process may use; round and round when there are more places."""
    cpus = sorted(os.sched_getaffinity(0))
    return [cpus[index % len(cpus)] for index in range(workers)]


@contextmanager
def pinned_to(cpu: int | None) -> Iterator[None]:
    """The calling thread runs on `cpu` only (None: where it may); a system that forbids it is reported."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        _log.warning("a worker could not be pinned to CPU %d: %s", cpu, error)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
