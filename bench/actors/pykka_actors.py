"""Pykka's side: `ThreadingActor`, the only kind it has; a thread and a `queue.Queue` without a bound each.

By the fastest documented way: `ActorRef.tell` and `ActorRef.ask` with a bare message to `on_receive`. A proxy looks the
method up by name on each call and always makes a future.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pykka

from bench.actors.counting import Arrivals, Counts

__all__ = ["PykkaActors"]


class Counter(pykka.ThreadingActor):
    def __init__(self, arrivals: Arrivals, counters: list[Counts]) -> None:
        super().__init__()
        self.total = self.received = self.expected = 0
        self.arrivals = arrivals
        counters.append(self)

    def on_receive(self, message: int) -> int:
        self.total += message
        self.received += 1
        if self.received == self.expected:
            self.arrivals.complete()
        return message


class PykkaActors:
    def __init__(self) -> None:
        self._refs: list[pykka.ActorRef[Counter]] = []

    def start(self, actors: int, arrivals: Arrivals) -> list[Counts]:
        counters: list[Counts] = []
        self._refs = [Counter.start(arrivals, counters) for _ in range(actors)]
        return counters

    def tell(self, first: int, rounds: int) -> None:
        refs = self._refs[first:] + self._refs[:first]
        for number in range(rounds):
            for ref in refs:
                ref.tell(number)

    def ask(self, first: int, rounds: int, window: int) -> int:
        refs = self._refs[first:] + self._refs[:first]
        answers = 0
        if window == 1:
            for number in range(rounds):
                for ref in refs:
                    answers += ref.ask(number, block=True)
            return answers
        waiting: deque[pykka.Future[Any]] = deque()
        for number in range(rounds):
            for ref in refs:
                if len(waiting) == window:
                    answers += waiting.popleft().get()
                waiting.append(ref.ask(number, block=False))
        for future in waiting:
            answers += future.get()
        return answers

    def stop(self) -> None:
        pykka.ActorRegistry.stop_all()
