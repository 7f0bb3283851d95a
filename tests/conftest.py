"""Options of the whole suite: pytest reads them only from here."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("schedules", "scripted schedules")
    group.addoption(
        "--schedules",
        type=int,
        metavar="N",
        help="run N seeds of every scenario, a tenth of that line by line, instead of about a hundred",
    )
    group.addoption("--seed", type=int, metavar="S", help="run only the schedule of seed S of every scenario")
