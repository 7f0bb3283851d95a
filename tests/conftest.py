"""Options of the whole suite, which pytest reads only from here; and when garbage is collected."""

from __future__ import annotations

import gc

import pytest

COLLECT_EVERY = 100
"""Tests."""

_ended = 0


def pytest_sessionstart() -> None:
    """Collect between tests only. A thread of a long test process was once found ending for ever, in its allocator's free
    list; python/cpython issue 145614, of collections while other threads work, may be the cause. That is not proven."""
    gc.disable()


def pytest_runtest_logfinish() -> None:
    global _ended
    _ended += 1
    if _ended % COLLECT_EVERY == 0:
        gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("schedules", "scripted schedules")
    group.addoption(
        "--schedules",
        type=int,
        metavar="N",
        help="run N seeds of every scenario, a tenth of that line by line, instead of about a hundred",
    )
    group.addoption("--seed", type=int, metavar="S", help="run only the schedule of seed S of every scenario")
