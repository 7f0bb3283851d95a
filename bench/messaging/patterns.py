"""What a client does: one request at a time, a hundred in flight, or sends from eight threads.

`Line` is what a row brings: it is called for every message, so it is one object with two methods, and nothing around them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from bench.messaging.stamp import ACTIVE, WARM_UP, payload

__all__ = ["PATTERNS", "SENDERS", "Line", "Outcome"]

WINDOW: Final = 100
SENDERS: Final = 8
WARM_UP_PART: Final = 0.25
"""Of the active window, before it."""


class Line(Protocol):
    """To one server. `ask` and `answer` on one thread; `send` on many."""

    def ask(self, message: bytes) -> None:
        """Begin a request."""
        ...

    def answer(self) -> float:
        """Wait for the next answer; returns when its request was begun (`perf_counter`)."""
        ...

    def send(self, message: bytes) -> None:
        """Returns when it was admitted."""
        ...


@dataclass
class Outcome:
    count: int
    seconds: float
    latency: float = 0.0
    """Seconds in all."""


def _serial(line: Line, size: int, phase: int, seconds: float) -> Outcome:
    message, ask, answer = payload(size, phase), line.ask, line.answer
    began = perf_counter()
    end, count = began + seconds, 0
    while perf_counter() < end:
        ask(message)
        answer()
        count += 1
    took = perf_counter() - began
    return Outcome(count, took, took)


def _window(line: Line, size: int, phase: int, seconds: float) -> Outcome:
    message, ask, answer = payload(size, phase), line.ask, line.answer
    began = perf_counter()
    end, count, latency = began + seconds, 0, 0.0
    for _ in range(WINDOW):
        ask(message)
    while (now := perf_counter()) < end:
        latency += perf_counter() - answer()
        count += 1
        ask(message)
    took = now - began
    for _ in range(WINDOW):
        answer()
    return Outcome(count, took, latency)


def _saturate(line: Line, size: int, phase: int, seconds: float) -> Outcome:
    message, counts = payload(size, phase), [0] * SENDERS
    barrier = threading.Barrier(SENDERS + 1)

    def run(index: int) -> None:
        send, count = line.send, 0
        barrier.wait()
        end = perf_counter() + seconds
        while perf_counter() < end:
            send(message)
            count += 1
        counts[index] = count

    threads = [threading.Thread(target=run, args=(index,)) for index in range(SENDERS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = perf_counter()
    for thread in threads:
        thread.join()
    return Outcome(sum(counts), perf_counter() - began)


type Pattern = Callable[[Line, int, int, float], Outcome]
PATTERNS: Final[dict[str, Pattern]] = {
    "request-serial": _serial,
    "request-window": _window,
    "send-saturation": _saturate,
}


def run(pattern: str, line: Line, size: int, seconds: float, ready: Callable[[], None]) -> Outcome:
    """Warm up, then measure; `ready` is called in between."""
    PATTERNS[pattern](line, size, WARM_UP, seconds * WARM_UP_PART)
    ready()
    return PATTERNS[pattern](line, size, ACTIVE, seconds)
