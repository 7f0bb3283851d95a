"""Async generators that were dropped half-way: their `finally` blocks still run, on a worker."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import AsyncGenerator
from typing import Any

__all__ = ["Orphan"]

_log = logging.getLogger("zlink_nogil.scheduler")


class Orphan:
    """A runnable: the generator's clean-up, up to its first wait, in a context of its own."""

    __slots__ = ("_generator",)

    def __init__(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generator = generator

    def run_slice(self) -> bool:
        contextvars.Context().run(self._finish)
        return False

    def _finish(self) -> None:
        closing = self._generator.aclose()
        try:
            closing.send(None)
        except StopIteration:
            return
        except BaseException:  # user code
            _log.exception("closing a dropped async generator failed: %r", self._generator)
            return
        _log.error("a dropped async generator waits in its clean-up and is given up: %r", self._generator)
        try:
            closing.close()
        except BaseException:  # user code
            _log.exception("a dropped async generator goes on waiting: %r", self._generator)
