"""`Watchers`: threads that block until something is ready.

Ownership
    `_parkers` under `_lock`, a leaf
"""

from __future__ import annotations

from collections.abc import Callable

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded
from zlink_nogil.scheduler import interrupts

__all__ = ["Watchers"]


class Watchers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self._parkers: list[_sync.Parker] = []

    def wait(self, enough: Callable[[], bool], timeout: float, describe: Callable[[], str]) -> None:
        """Block until `enough()`, asked again with every `notify`; `DeadlineExceeded` after `timeout` seconds."""
        deadline = _sync.monotonic() + timeout
        parker = _sync.Parker()
        with self._lock:
            self._parkers.append(parker)
        try:
            while not enough():
                left = deadline - _sync.monotonic()
                if left <= 0 or not interrupts.park(parker, left):
                    if enough():
                        return
                    raise DeadlineExceeded(f"{describe()} within {timeout} s")
        finally:
            with self._lock:
                self._parkers.remove(parker)

    def notify(self) -> None:
        with self._lock:
            parkers = list(self._parkers)
        for parker in parkers:
            parker.unpark()
