"""What SIGINT and SIGTERM do while a host serves and closes (decision 15). Handlers run in the main thread only.

Guarantees
    A close that has begun goes on to its end: Ctrl-C does not leave half of a host behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zlink_nogil import _sync
from zlink_nogil.scheduler import interrupts

__all__ = ["Stops", "put_off_interrupts", "sigterm_calls"]


class Stops:
    """A handler that counts its signal, and ends the process at once when there are more than `most`."""

    def __init__(self, most: int | None = None) -> None:
        self.seen = 0
        self._most = most

    def __call__(self, signum: int, _frame: FrameType | None) -> None:
        self.seen += 1
        if self._most is not None and self.seen > self._most:
            os._exit(128 + signum)


@contextmanager
def put_off_interrupts(stops: Stops) -> Iterator[None]:
    """SIGINT goes to `stops` meanwhile, one that was put off before included.

    Nothing happens outside the main thread, where SIGINT is not handled, and within another `put_off_interrupts`.
    """
    previous = signal.getsignal(signal.SIGINT)
    if _sync.current_thread() is not _sync.main_thread() or not callable(previous) or isinstance(previous, Stops):
        yield
        return
    signal.signal(signal.SIGINT, stops)
    try:
        try:
            interrupts.raise_if_interrupted()
        except KeyboardInterrupt:
            stops(signal.SIGINT, None)
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is stops:
            signal.signal(signal.SIGINT, previous)


@contextmanager
def sigterm_calls(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM calls `stop()`, a second ends the process at once. Nothing happens outside the main thread."""
    if _sync.current_thread() is not _sync.main_thread():
        yield
        return
    stops = Stops(most=1)

    def handle(signum: int, frame: FrameType | None) -> None:
        stops(signum, frame)
        stop()

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
