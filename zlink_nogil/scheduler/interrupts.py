"""Ctrl-C at safe points only (decision 15).

An interrupt between the two frames of one message would desynchronise a socket, and one inside a critical section would
leave it half done. While a host runs, the SIGINT handler therefore looks at where the main thread is: in the user's own
code, in `park` or `poll` it raises at once; anywhere else in the runtime it leaves a mark, and the next safe point raises.

Ownership: `_pending` and `_previous` are written by the main thread only (signal handlers run there).
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from zlink_nogil import _sync

__all__ = ["install", "may_lead", "park", "poll", "raise_if_interrupted", "restore"]

LONGEST_DEAFNESS: Final = 0.5
"""Seconds."""

_PACKAGE = "zlink_nogil"
_Handler = Callable[[int, FrameType | None], Any] | int | None
_previous: list[_Handler] = []
_pending = False


def install() -> bool:
    """Defer SIGINT around the runtime's critical sections; False outside the main thread or when SIGINT is not handled.

    A handler the user installed is kept and called at the safe point instead of raising `KeyboardInterrupt`.
    Nested installs count; each needs one `restore`.
    """
    current = signal.getsignal(signal.SIGINT)
    if _sync.current_thread() is not _sync.main_thread() or not callable(current):
        return False
    _previous.append(current)
    if current is not _on_sigint:
        signal.signal(signal.SIGINT, _on_sigint)
    return True


def restore() -> None:
    """Undo one successful `install`. Main thread only."""
    previous = _previous.pop()
    if not _previous:
        signal.signal(signal.SIGINT, previous)


def park(parker: _sync.Parker, timeout: float | None = None) -> bool:
    """`parker.park(timeout)` as a safe point: in the main thread an interrupt raises here, within `LONGEST_DEAFNESS`."""
    raise_if_interrupted()
    if _sync.current_thread() is not _sync.main_thread():
        return parker.park(timeout)
    deadline = math.inf if timeout is None else _sync.monotonic() + timeout
    while True:
        # A signal that comes in the last instructions before the thread sleeps is handled when the wait ends.
        left = deadline - _sync.monotonic()
        if parker.park(min(left, LONGEST_DEAFNESS)):
            return True
        raise_if_interrupted()
        if not left > LONGEST_DEAFNESS:  # NaN ends the wait, too
            return False


def poll(epoll: _sync.Epoll, timeout: float) -> list[tuple[int, int]]:
    """`epoll.poll(timeout)`, none for -1, as a safe point; in the main thread it may return with nothing before the time."""
    if _sync.current_thread() is not _sync.main_thread():
        return epoll.poll(timeout)
    raise_if_interrupted()
    return epoll.poll(LONGEST_DEAFNESS if timeout < 0 else min(timeout, LONGEST_DEAFNESS))


def may_lead() -> bool:
    """Can no interrupt come between two frames of one message on this thread?"""
    return bool(_previous) or _sync.current_thread() is not _sync.main_thread()


def raise_if_interrupted() -> None:
    """A safe point without a wait."""
    global _pending
    if _pending and _sync.current_thread() is _sync.main_thread():
        _pending = False
        _deliver(None)


def _on_sigint(_signum: int, frame: FrameType | None) -> None:
    global _pending
    if _interruptible(frame):
        _pending = False  # an earlier one is told with this one
        _deliver(frame)
    else:
        _pending = True


def _deliver(frame: FrameType | None) -> None:
    user_handler = next((handler for handler in reversed(_previous) if handler is not _on_sigint), None)
    if callable(user_handler):
        user_handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def _interruptible(frame: FrameType | None) -> bool:
    """True when the innermost frame of ours is a safe point, or none is ours."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == _PACKAGE or module.startswith(_PACKAGE + "."):
            if frame.f_code in (park.__code__, poll.__code__, raise_if_interrupted.__code__):
                return True
            if module != _sync.__name__:
                return False
        frame = frame.f_back
    return True
