"""`PerProcess`: something a process has one of, made on first use; a forked child makes its own (decision 16).

Guarantees
    One is made, whoever asks first and at the same time. The parent's is kept in a child, untouched: its end could close
    what the two share.

Ownership
    `_value`  written under `_lock`; in a new child by its only thread
"""

from __future__ import annotations

from collections.abc import Callable

from zlink_nogil import _sync

__all__ = ["PerProcess"]


class PerProcess[T]:
    """Thread-safe. `make()` is called without anything else being held than this one's lock."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.make = make
        self._renew()
        self._parents: T | None = None

    def _renew(self) -> None:
        self._lock = _sync.Lock()
        self._fork = _sync.ForkGuard()
        self._value: T | None = None

    def get(self) -> T:
        if self._fork.inherited():  # there is one thread: nobody else is here
            self._parents = self._value
            self._renew()
        value = self._value
        if value is not None:
            return value
        with self._lock:
            if self._value is None:
                self._value = self.make()
            return self._value
