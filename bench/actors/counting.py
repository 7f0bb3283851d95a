"""What the actors of every peer do: count what arrives, and say when it was everything."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Protocol

__all__ = ["Arrivals", "Counts", "Peer"]


class Counts(Protocol):
    """An actor's state: a plain object that only its own handler touches while messages are on their way.

    The handler adds the message to `total`, one to `received`, calls `arrivals.complete()` at `expected`, and returns the
    message. It says so in its own body: a method shared between the peers would be a call more for each message.
    """

    total: int
    received: int
    expected: int
    arrivals: Arrivals


class Arrivals:
    """Waits until every actor has what it expects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._over = threading.Event()
        self._at = 0.0

    def expect(self, actors: int) -> None:
        self._left = actors
        self._over.clear()

    def complete(self) -> None:
        """By an actor, once."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._at = perf_counter()
                self._over.set()

    def wait(self, patience: float) -> float:
        """When the last message arrived, by `perf_counter`; `TimeoutError` after `patience` seconds."""
        if not self._over.wait(patience):
            raise TimeoutError(f"{self._left} actors did not get everything within {patience:.0f} s")
        return self._at


class Peer(Protocol):
    """A library of actors. `tell` and `ask` are what a sender thread does: `rounds` times a message to each of the actors,
    beginning with actor number `first`, the number of the round being the message."""

    def start(self, actors: int, arrivals: Arrivals) -> list[Counts]:
        """Make the actors; returns their states once all of them are ready for messages."""

    def tell(self, first: int, rounds: int) -> None: ...

    def ask(self, first: int, rounds: int, window: int) -> int:
        """With `window` requests in flight, one meaning that each is waited for; returns the sum of the answers."""

    def stop(self) -> None: ...
