"""What the command line says about schedules (`tests/conftest.py` declares the options).

`ZLINK_FIRST_SEED` moves the seeds of every random search (`tools/run schedules`).
"""

from __future__ import annotations

import os

import pytest

from zlink_nogil.scheduler import pool as pool_module

from .harness import settings


def pytest_configure(config: pytest.Config) -> None:
    settings.schedules = config.getoption("--schedules", None)
    first_seed = os.environ.get("ZLINK_FIRST_SEED")
    settings.first_seed = None if first_seed is None else int(first_seed)
    settings.seed = config.getoption("--seed", None)


class _NoWatch:
    """A watch would be one more thread in every scenario with a pool."""

    def __init__(self, pool: object) -> None: ...

    def begin(self) -> None: ...

    def end(self) -> None: ...


@pytest.fixture(autouse=True)
def _no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "Watch", _NoWatch)
