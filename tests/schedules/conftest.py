"""What the command line says about schedules (`tests/conftest.py` declares the options)."""

from __future__ import annotations

import pytest

from .harness import settings


def pytest_configure(config: pytest.Config) -> None:
    settings.schedules = config.getoption("--schedules", None)
    settings.seed = config.getoption("--seed", None)
