"""An Actor's queue that moves between Spots, under every schedule: order kept, one turn at a time, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion

from .gates import GATE, Gate, in_order
from .harness import Scenario, run_exhaustive, run_lines, run_random


class Travels(Gate):
    """Two Spots, and the Actor "a", which begins with turns of its own."""

    def __init__(self, s: Scenario, workers: int = 1, **policy: Any) -> None:
        super().__init__(s, workers=workers, **policy)
        self.other = SerialExecutionQueue(pool=self.pool, name="other", shared=True, policy=self.queue.policy)
        self.spots: dict[str, SerialExecutionQueue | None] = {"spot": self.queue, "other": self.other, "none": None}
        self.floors: dict[str, set[int]] = {"spot": self.inside, "other": set()}
        self.at = "none"
        self.actors["a"] = self.a = self.make_actor("a", None)
        s.check("the other Spot is idle", lambda: self.other.is_idle() and self.other.reserved() == (0, 0))

    def go(self, *names: str) -> None:
        """Submit turns of the Actor: "a1 spot" moves it to that Spot, "a2" looks where it is."""
        for name in names:
            self.submit(self.a.enqueue, name, self.turn(name))

    def turn(self, name: str, awaited: Completion[None] | None = None, *, gives_back: bool = False) -> Callable[[], Any]:
        async def run() -> None:
            s, here = self.s, self.at
            s.expect(self.a.outer is self.spots[here], "its turns come from where it is")
            with s.alone(self.rooms.setdefault("a", set()), "one turn of an Actor at a time"):
                with s.alone(self.floors.get(here, set()), f"one gate: {here}"):
                    target = name.partition(" ")[2]
                    if target:
                        self.a.move_to(self.spots[target], target)
                        self.at = target
                    if awaited is not None and not gives_back:
                        await awaited
                if awaited is not None and gives_back:
                    await awaited.yield_()
                s.expect(self.a.outer is self.spots[here], "until the end of its turn")
            self.ran.append(name)

        return run

    def local(self, spot: str, *names: str) -> None:
        """Submit work of a Spot."""

        def run() -> None:
            with self.s.alone(self.floors[spot], f"one gate: {spot}"):
                pass

        for name in names:
            queue = self.spots[spot]
            assert queue is not None
            self.submit(queue.enqueue, name, lambda name=name: (run(), self.ran.append(name)))


def there_and_back(s: Scenario) -> None:
    """From no Spot to one, to another one and back to none, while others submit."""
    actor = Travels(s, workers=2)
    route = ("a1 spot", "a2", "a3 other", "a4", "a5 none", "a6")
    s.thread("a", actor.go, *route)
    s.thread("spot", actor.local, "spot", "s1", "s2")
    s.thread("other", actor.local, "other", "o1")
    s.check("in order, and nothing is lost", lambda: in_order(actor.ran, *route) and len(actor.ran) == 9)


def from_two_sides(s: Scenario) -> None:
    """What is submitted as the move takes place goes along."""
    actor = Travels(s, workers=2)
    s.thread("a", actor.go, "a1 spot", "a2 none")
    s.thread("b", actor.go, "b1", "b2")
    s.thread("spot", actor.local, "spot", "s1")
    s.check("in order", lambda: in_order(actor.ran, "a1 spot", "a2 none") and in_order(actor.ran, "b1", "b2"))
    s.check("nothing is lost", lambda: len(actor.ran) == 5)


def test_moving() -> None:
    run_random(there_and_back)
    run_exhaustive(there_and_back, preemptions=1, switches=0)
    run_lines(there_and_back, GATE)
    run_random(from_two_sides)
    run_exhaustive(from_two_sides, preemptions=1, switches=0)
    run_lines(from_two_sides, GATE)


def waits_after_the_move(s: Scenario) -> None:
    """A turn that has moved its queue and waits, and goes on, before it ends: it moves at its end."""
    actor = Travels(s)
    awaited: Completion[None] = Completion(actor.pool)
    actor.submit(actor.a.enqueue, "a1 spot", actor.turn("a1 spot", awaited))
    s.thread("a", actor.go, "a2")
    s.thread("resumer", awaited.succeed, None)
    s.check("in order", lambda: actor.ran == ["a1 spot", "a2"])


def waits_in_a_spot(s: Scenario) -> None:
    """As above, from Spot to Spot: kept in the first, or away from it."""
    actor = Travels(s, workers=2)
    awaited: Completion[None] = Completion(actor.pool)
    actor.go("a0 spot")
    actor.submit(actor.a.enqueue, "a1 other", actor.turn("a1 other", awaited))
    actor.submit(actor.a.enqueue, "a2 spot", actor.turn("a2 spot", awaited, gives_back=True))
    s.thread("a", actor.go, "a3")
    s.thread("spots", actor.local, "spot", "s1")
    s.thread("resumer", awaited.succeed, None)
    s.check("in order", lambda: in_order(actor.ran, "a0 spot", "a1 other", "a2 spot", "a3") and len(actor.ran) == 5)


def cancelled_on_its_way(s: Scenario) -> None:
    """The turn that moves is cancelled where it waits, and so is the next one: the queue has moved all the same."""
    actor = Travels(s)
    awaited: Completion[None] = Completion(actor.pool)
    actor.submit(actor.a.enqueue, "a1 spot", actor.turn("a1 spot", awaited))
    actor.go("a2")
    s.thread("canceller", actor.submitted["a1 spot"].cancel)
    s.thread("canceller too", actor.submitted["a2"].cancel)
    s.thread("resumer", awaited.succeed, None)
    s.thread("a", actor.at_once, actor.go, "a3")
    s.check("it goes on", lambda: "a3" in actor.ran)


def test_waiting_between_the_move_and_the_end() -> None:
    run_random(waits_after_the_move)
    run_exhaustive(waits_after_the_move, preemptions=1, switches=0)
    run_random(waits_in_a_spot)
    run_exhaustive(waits_in_a_spot, preemptions=1, switches=0)
    run_lines(waits_in_a_spot, GATE)
    run_random(cancelled_on_its_way)
    run_exhaustive(cancelled_on_its_way, preemptions=1, switches=0)
    run_lines(cancelled_on_its_way, GATE)


def no_room_there(s: Scenario) -> None:
    """Where it arrives there is room for one turn: its heads wait, and it goes on."""
    actor = Travels(s, capacity=1)
    s.thread("a", actor.go, "a1 spot", "a2", "a3 none")
    s.thread("spot", actor.local, "spot", "s1")
    s.check("in order", lambda: in_order(actor.ran, "a1 spot", "a2", "a3 none"))
    s.check("all but the Spot's own", lambda: actor.refused in ([], ["s1"]))


def expires_meanwhile(s: Scenario) -> None:
    """It moves as its time is over."""
    actor = Travels(s, workers=2)
    never: Completion[None] = Completion(actor.pool)
    actor.go("a1 spot")
    actor.submit(actor.a.enqueue, "a2", actor.turn("a2", never))
    s.thread("expirer", actor.a.expire)
    s.check("an end for each", lambda: len(actor.outcomes("ok", "shutdown")) == 2 and "a2" not in actor.ran)


def test_arriving() -> None:
    run_random(no_room_there)
    run_exhaustive(no_room_there, preemptions=1, switches=0)
    run_lines(no_room_there, GATE)
    run_random(expires_meanwhile)
    run_exhaustive(expires_meanwhile, preemptions=1, switches=0)
    run_lines(expires_meanwhile, GATE)
