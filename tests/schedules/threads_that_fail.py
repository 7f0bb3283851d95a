"""A system that has no thread to give, now and then."""

from __future__ import annotations

from typing import Any, cast

from zlink_nogil import _sync

from .harness.threads import Thread

__all__ = ["fail_to_start"]


def fail_to_start(*failing: int) -> None:
    """The starts with these numbers (from 0, counted from now) raise `RuntimeError`, in the scenario that calls this."""
    started = 0

    class Failing(Thread):
        def start(self) -> None:
            nonlocal started
            number, started = started, started + 1
            self._world.offer("starts", None)
            if number in failing:
                raise RuntimeError("can't start new thread")
            super().start()

    _sync.Thread = cast(Any, Failing)  # type: ignore[misc]
