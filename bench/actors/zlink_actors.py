"""Our side: `Actor`s of a host, each with a gate of its own, or all of them members of one SpotWide Spot.

The queues get room for everything that is sent, because Pykka's have no bound and refuse nothing.
"""

from __future__ import annotations

from collections import deque

from bench.actors.counting import Arrivals, Counts
from zlink_nogil import Completion, Host
from zlink_nogil.execution import ExecutionLanePolicy, SpotWide
from zlink_nogil.spots import Actor, ActorRef, MessageContext, Spot

__all__ = ["ZlinkActors"]

ROOM = 10_000_000
"""Items of a queue, and so of the Spot's, which gives turns to all."""
BATCH = 100
"""Actors that are being made at the same time."""


class Counter(Actor):
    def __init__(self, arrivals: Arrivals) -> None:
        self.total = self.received = self.expected = 0
        self.arrivals = arrivals

    def on_number(self, message: int, ctx: MessageContext) -> int:  # noqa: ARG002 - what a handler takes
        self.total += message
        self.received += 1
        if self.received == self.expected:
            self.arrivals.complete()
        return message


class Room(Spot, mode=SpotWide):
    """Where the Actors of `spot_wide` are members."""


class ZlinkActors:
    def __init__(self, workers: int, *, spot_wide: bool = False) -> None:
        policy = ExecutionLanePolicy(application_message_capacity=ROOM, application_byte_capacity=ROOM * 1024)
        self._host = Host(workers=workers, policy=policy)
        self._spot_wide = spot_wide
        self._refs: list[ActorRef] = []

    def start(self, actors: int, arrivals: Arrivals) -> list[Counts]:
        counters: list[Counts] = []

        def counter() -> Counter:
            counters.append(made := Counter(arrivals))
            return made

        self._host.actors.register(Counter, factory=counter)
        self._host.spots.register(Room)
        self._host.start()
        room = self._host.spots.create("Room", "room").result() if self._spot_wide else None
        create = self._host.actors.create
        for begin in range(0, actors, BATCH):
            made = [create("Counter", str(n), spot=room).submit() for n in range(begin, min(begin + BATCH, actors))]
            self._refs += [creation.result() for creation in made]
        return counters

    def tell(self, first: int, rounds: int) -> None:
        refs = self._refs[first:] + self._refs[:first]
        for number in range(rounds):
            for ref in refs:
                ref.send(number).submit()

    def ask(self, first: int, rounds: int, window: int) -> int:
        refs = self._refs[first:] + self._refs[:first]
        answers = 0
        if window == 1:
            for number in range(rounds):
                for ref in refs:
                    answers += ref.request(number, reply=int).result()
            return answers
        waiting: deque[Completion[int]] = deque()
        for number in range(rounds):
            for ref in refs:
                if len(waiting) == window:
                    answers += waiting.popleft().result()
                waiting.append(ref.request(number, reply=int).submit())
        return answers + sum(completion.result() for completion in waiting)

    def stop(self) -> None:
        self._host.close()
