"""Members of a Spot under every schedule: they come and go while work is given to them, by both ways."""

from __future__ import annotations

from zlink_nogil.errors import AlreadyExists, InvalidOperation
from zlink_nogil.execution import (
    ActorSerialExecutor,
    Instance,
    PerActor,
    SerialExecutionQueue,
    SpotMode,
    SpotWide,
    Turn,
)

from .gates import in_order
from .harness import Scenario, run_exhaustive, run_lines, run_random
from .test_spot import SPOT, Watched


class Members(Watched):
    def __init__(self, s: Scenario, mode: SpotMode) -> None:
        super().__init__(s, mode)
        self.members: dict[str, ActorSerialExecutor] = {}

    def join(self, name: str) -> None:
        """Work of the Actor "a" that makes it a member; it tells whether it is one now."""
        actor = self.members[name] = ActorSerialExecutor(name, pool=self.pool)

        def joins() -> None:
            try:
                self.spot.admit_member(name[0], actor)
            except AlreadyExists:
                self.members.pop(name)
            self.ran.append(f"{name} joins")

        self.give(actor.execute_actor, joins, name=f"{name} joins")

    def leave(self, name: str) -> None:
        def leaves() -> None:
            self.spot.release_member(name[0])
            actor.move_to(None, None)
            self.ran.append(f"{name} leaves")

        actor = self.members[name]
        self.give(actor.execute_actor, leaves, name=f"{name} leaves")


def members(s: Scenario, mode: SpotMode) -> None:
    """An Actor joins and leaves while both its senders and the Spot's give it work: in order, each once."""
    spot = Members(s, mode)
    spot.join("a")
    actor = spot.members["a"]

    def direct() -> None:
        for name in ("d1", "d2"):
            spot.give(actor.execute_actor, lambda name=name: spot.ran.append(name), name=name)

    s.thread("direct", direct)
    s.thread("spot", spot.own, "s1")
    s.thread("leaver", lambda: spot.leave("a") if "a" in spot.members else None)
    s.check("in order, and nothing is lost", lambda: in_order(spot.ran, "d1", "d2") and len(spot.ran) == 5)


def members_per_actor(s: Scenario) -> None:
    members(s, PerActor)


def members_spot_wide(s: Scenario) -> None:
    members(s, SpotWide)


def strays(s: Scenario) -> None:
    """Work by an id that is no member's (yet): a queue of its own, or the member's - but the same id never has two."""
    spot = Members(s, PerActor)
    spot.join("a")
    busy: list[str] = []

    def run(name: str) -> None:
        turn = Turn.current
        assert turn is not None
        s.expect(not busy, "one turn of an Actor at a time")
        busy.append(name)
        s.step()
        s.expect(isinstance(turn.queue, SerialExecutionQueue) and not turn.queue.retired, "a retired queue runs nothing")
        busy.remove(name)
        spot.ran.append(name)

    def send() -> None:
        for name in ("a1", "a2"):
            spot.give(spot.spot.execute_actor, "a", lambda name=name: run(name), name=name)

    s.thread("sender", send)
    s.check("in order, and nothing is lost", lambda: in_order(spot.ran, "a1", "a2") and len(spot.ran) == 3)


def comes_and_goes(s: Scenario) -> None:
    """A stranger's queue makes place for the member's, and a new one takes over when that has left."""
    spot = Members(s, SpotWide)

    def one_after_the_other() -> None:
        spot.actor("a1")
        spot.submitted["a1"].result()
        s.sleep(1.0)
        spot.join("a")
        spot.submitted["a joins"].result()
        spot.actor("a2")
        spot.submitted["a2"].result()
        s.expect(spot.queues["a"][-1] is spot.members["a"]._queue, "a member has its own queue")
        spot.leave("a")
        spot.submitted["a leaves"].result()
        spot.queues["a"].pop()
        spot.actor("a3")

    s.thread("caller", one_after_the_other)
    s.check("nothing was refused", lambda: spot.ran == ["a1", "a joins", "a2", "a leaves", "a3"])


def spoken_to_as_it_leaves(s: Scenario) -> None:
    """Work that comes through the Spot as the member leaves goes to it, or to a stranger's queue, and runs."""
    spot = Members(s, SpotWide)
    spot.join("a")
    actor = spot.members["a"]

    def leaves() -> None:
        spot.spot.release_member("a")
        actor.move_to(None, None)

    def send() -> None:
        for name in ("a1", "a2"):
            spot.give(spot.spot.execute_actor, "a", lambda name=name: spot.ran.append(name), name=name)

    def leave() -> None:
        s.sleep(1.0)
        actor.execute_actor(leaves).result()

    s.thread("leaver", leave)
    s.thread("sender", send)
    s.thread("late sender", lambda: (s.sleep(1.0), spot.own("s1")))
    s.check("nothing is lost", lambda: len(spot.ran) == 4)


def without_actors(s: Scenario) -> None:
    """An Instance Spot has none; it has a gate."""
    spot = Members(s, Instance)
    actor = ActorSerialExecutor("a", pool=spot.pool)
    for refused in (lambda: spot.spot.execute_actor("a", spot.ran.clear), lambda: spot.spot.admit_member("a", actor)):
        try:
            refused()
        except InvalidOperation:
            continue
        s.expect(False, "it has no Actors")
    s.thread("1", spot.own, "s1")
    s.thread("2", spot.timer, "t1")
    s.check("one at a time", lambda: sorted(spot.ran) == ["s1", "t1"])


def two_of_a_name(s: Scenario) -> None:
    """Two Actors join by the same id at once: one of them is in."""
    spot = Members(s, SpotWide)
    s.thread("1", spot.join, "a")
    s.thread("2", spot.join, "aa")
    s.check("one", lambda: len(spot.members) == 1)


def test_members() -> None:
    run_random(members_per_actor)
    run_random(members_spot_wide)
    run_exhaustive(members_spot_wide, preemptions=1, switches=0)
    run_lines(members_spot_wide, SPOT)
    run_random(strays)
    run_exhaustive(strays, preemptions=1, switches=0)
    run_lines(strays, SPOT)
    run_random(comes_and_goes, 20)
    run_random(spoken_to_as_it_leaves)
    run_lines(spoken_to_as_it_leaves, SPOT)
    run_random(without_actors, 20)
    run_random(two_of_a_name, 50)
    run_exhaustive(two_of_a_name, preemptions=1, switches=0)
