"""`Driver`: what a thread that waits for sockets asks of a role (decision 7).

A driver owns the descriptors of one role (ingress or completion). Whoever leads it (`role.py`) calls `rotate` and then
sleeps on `descriptors()` until `rotate`'s deadline. Only one thread leads at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

__all__ = ["Driver"]


class Driver(Protocol):
    def descriptors(self) -> Collection[int]:
        """The descriptors to sleep on now; may change from one rotation to the next."""
        ...

    def rotate(self, ready: Collection[int] | None = None, /) -> float | None:
        """Do what is there to do, bounded; return the monotonic time to be called again at the latest.

        `ready` are the descriptors that are readable; None: look at everything. Returns None for "only when one is", a time
        in the past for "at once, there is more". Must leave every ZeroMQ descriptor re-armed (EVENTS read after the last
        receive). Must not raise.
        """
        ...

    def wake(self) -> None:
        """Make one of the descriptors readable. Thread-safe."""
        ...
