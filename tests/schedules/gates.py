"""A Spot's queue, whose turn is a gate, the Actor queues that get their turns from it, and work that is watched there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion

from .harness import Scenario
from .test_queue import Watched

__all__ = ["GATE", "Gate", "in_order"]

GATE = [f"zlink_nogil.execution.{name}" for name in ("_head", "_loop", "_lines", "queue", "turn")]


def in_order(ran: list[str], *names: str) -> bool:
    """Those of `names` that ran did so in this order, each once."""
    return [name for name in ran if name in names] == [name for name in names if name in ran]


class Gate(Watched):
    """`capacity` is the Spot queue's, in items. An Actor's work is called after it: "a1", "a2" of "a"."""

    def __init__(self, s: Scenario, *actors: str, workers: int = 1, capacity: int = 1024, **policy: Any) -> None:
        super().__init__(s, workers, shared=True, application_message_capacity=capacity, **policy)
        self.actors = {name: self.make_actor(name, self.queue) for name in actors}
        self.capacity = capacity
        self.rooms: dict[str, set[int]] = {}
        self.began: list[str] = []
        s.check("the Actors' queues are idle", lambda: all(queue.is_idle() for queue in self.actors.values()))
        s.check("their reservations too", lambda: all(queue.reserved() == (0, 0) for queue in self.actors.values()))

    def make_actor(self, name: str, outer: SerialExecutionQueue | None) -> SerialExecutionQueue:
        return SerialExecutionQueue(pool=self.pool, name=name, outer=outer)

    def actor(self, *names: str) -> None:
        """Submit work of Actors."""
        for name in names:
            self.submit(self.actors[name[0]].enqueue, name, self.plain(name))

    def plain(self, name: str) -> Callable[[], None]:
        def run() -> None:
            with self.s.alone(self._room(name), "one turn of an Actor at a time"), self.s.alone(self.inside, "one gate"):
                items, _ = self.queue.reserved()
                self.s.expect(1 <= items <= self.capacity, "a turn stands in the Spot's queue, and no more than have room")
                self._begin(name)
                self.ran.append(name)

        return run

    def kept(self, name: str, awaited: Completion[None]) -> Callable[[], Any]:
        """Awaits with the turn."""

        async def run() -> None:
            with self.s.alone(self._room(name), "one turn of an Actor at a time"), self.s.alone(self.inside, "one gate"):
                self._begin(name)
                await awaited
            self.ran.append(name)

        return run

    def yielding(self, name: str, *awaited: Completion[None]) -> Callable[[], Any]:
        """Gives the gate back for each; an Actor's queue is kept meanwhile."""
        self.capacity += 1  # who is away keeps its room, and no Actor's head starves for that

        async def run() -> None:
            with self.s.alone(self._room(name), "one turn of an Actor at a time"):
                with self.s.alone(self.inside, "one gate"):
                    self._begin(name)
                for one in awaited:
                    try:
                        await one.yield_()
                    finally:
                        with self.s.alone(self.inside, "one gate"):
                            pass
            self.ran.append(name)

        return run

    def _begin(self, name: str) -> None:
        self.s.expect(self.pool.is_worker(), "work begins on the pool's threads, and not when that is closed")
        self.began.append(name)

    def _room(self, name: str) -> set[int]:
        """Only an Actor's work keeps out its next; a Spot's turns may each be away."""
        return self.rooms.setdefault(name[0] if name[0] in self.actors else name, set())

    def at_once(self, act: Callable[..., object], *args: object) -> None:
        """When everybody else has come to rest, and with whoever else does so."""
        self.s.sleep(1.0)
        act(*args)
