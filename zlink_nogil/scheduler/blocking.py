"""`BlockingCalls`: functions that block, on threads of their own (design 2.3).

Guarantees
    At most `MOST` run at a time; the others wait in line, first in first out, and delay no worker. Every call that was
    accepted runs once or is withdrawn, never both. A thread that cannot be started is the caller's error when nobody runs;
    otherwise the call waits for one that does.

Ownership
    every field under `_lock`
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.scheduler.threads import ThreadCache

__all__ = ["BlockingCall", "BlockingCalls"]

MOST: Final = 512
"""Threads that run blocking calls at a time."""


class BlockingCall(Protocol):
    """Neither raises."""

    def run(self) -> None: ...

    def withdrawn(self) -> None:
        """It will not run."""
        ...


class BlockingCalls:
    """Thread-safe."""

    def __init__(self, threads: ThreadCache) -> None:
        self._threads = threads
        self._lock = _sync.Lock()
        self._line: deque[BlockingCall] = deque()
        self._running = 0
        self._closing = False
        self._refusing = False

    def add(self, call: BlockingCall, *, inside: bool) -> bool:
        """False (nothing done) after `close`, for calls from inside the pool after `cancel_all`.

        Raises what starting a thread raises, having accepted nothing.
        """
        with self._lock:
            if self._refusing or (self._closing and not inside):
                return False
            if self._running < MOST:
                try:
                    self._threads.run(self._work)
                    self._running += 1
                except BaseException:
                    if not self._running:
                        raise
            self._line.append(call)
            return True

    def withdraw(self, call: BlockingCall) -> bool:
        """Take a call out of the line; False if it has begun, or is over. `withdrawn` is not called."""
        with self._lock:
            if call not in self._line:
                return False
            self._line.remove(call)
            return True

    def close(self) -> None:
        """Accept only what accepted work asks for."""
        with self._lock:
            self._closing = True

    def cancel_all(self) -> int:
        """Withdraw what has not begun and accept nothing more; how many there were."""
        with self._lock:
            self._refusing = True
            line, self._line = self._line, deque()
        for call in line:
            call.withdrawn()
        return len(line)

    def counts(self) -> tuple[int, int]:
        """(waiting, running)."""
        with self._lock:
            return len(self._line), self._running

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._running -= 1
                    return
                call = self._line.popleft()
            call.run()
