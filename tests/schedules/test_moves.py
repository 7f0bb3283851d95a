"""Membership under every schedule: joins, deferred joins, two Actors that swap, Spots that close meanwhile."""

from __future__ import annotations

from zlink_nogil.errors import DeadlineExceeded, NotFound, ShuttingDown
from zlink_nogil.execution import PerActor, SpotMode, SpotWide

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .world_of_spots import MODULES, WatchedActor, WatchedSpot, World

REFUSED = {NotFound.__name__, ShuttingDown.__name__}


def players(s: Scenario, mode: SpotMode, *, workers: int = 1, **where: str) -> World:
    """Rooms a, b and closed, which lets nobody in, and Actors in them."""
    world = World(s, workers)
    world.one_gate = mode.one_gate

    class Room(WatchedSpot, mode=mode):
        def on_join(self, actor: object) -> None:
            with world.turn(self.spot_id):
                assert isinstance(actor, WatchedActor)
                if actor.actor_id == "refused" or self.spot_id == "closed":
                    raise ValueError("not here")

        def on_leave(self, actor: object) -> None:  # noqa: ARG002
            with world.turn(self.spot_id):
                pass

    Room.world = world
    world.spots.register(Room, type_name="room")
    world.actors.register(type("Player", (WatchedActor,), {"world": world}), type_name="player")
    world.start()
    for room in ("a", "b", "closed"):
        world.spots.create("room", room).result()
    for actor_id, room in where.items():
        world.actors.create("player", actor_id, spot=room).result()
    s.check("in one Spot, the one the registration names", lambda: world.homes() == world.registered())
    s.check("all are at rest", world.at_rest)
    return world


def said(world: World, actor_id: str) -> list[str]:
    heard: list[str] = world.living[actor_id].said
    return heard


def a_deferred_join(s: Scenario, mode: SpotMode) -> None:
    """After the handler, before the next message; what is sent meanwhile arrives in order, once."""
    world = players(s, mode, ann="a")

    def send() -> None:
        going = world.actors.request("ann", "go b").submit()
        there = world.actors.request("ann", "hello").submit()
        s.expect((going.result(), there.result()) == ("a", "b"), "moved between the two")

    s.thread("mover", send)
    s.thread("other", world.attempt, "room", lambda: world.spots.request("a", "hello"))
    s.thread("another", world.attempt, "actor", lambda: world.actors.request("ann", "hi"))
    s.check("all were answered", lambda: (world.outcome("room"), len(world.outcome("actor"))) == (["hello"], 1))
    s.check("in order", lambda: [word for word in said(world, "ann") if word != "hi"] == ["go b", "hello"])
    s.check("it is there", lambda: world.homes() == {"ann": ["b"]})


def spot_wide_join(s: Scenario) -> None:
    a_deferred_join(s, SpotWide)


def per_actor_join(s: Scenario) -> None:
    a_deferred_join(s, PerActor)


def test_a_deferred_join() -> None:
    run_random(spot_wide_join)
    run_random(per_actor_join)
    run_lines(spot_wide_join, MODULES, 20)


def a_handler_that_fails(s: Scenario) -> None:
    """Its deferred join is dropped."""
    world = players(s, SpotWide, ann="a")
    s.thread("1", world.attempt, "fails", lambda: world.actors.request("ann", "fail b"))
    s.thread("2", world.attempt, "next", lambda: world.actors.request("ann", "hello"))
    s.thread("3", world.attempt, "same", lambda: world.actors.join("ann", "a"))
    s.check("told", lambda: world.outcome("fails") == ["ValueError"])
    s.check("where it is it may join", lambda: world.outcome("same") == [None])
    s.check("it never left", lambda: world.outcome("next") == ["a"] and world.homes() == {"ann": ["a"]})


def test_a_handler_that_fails() -> None:
    run_random(a_handler_that_fails)
    run_exhaustive(a_handler_that_fails, preemptions=1, switches=0)
    run_lines(a_handler_that_fails, MODULES)


def two_that_swap(s: Scenario) -> None:
    """Each waits for the other's Spot with its own turn given back: neither hangs."""
    world = players(s, SpotWide, ann="a", bob="b")
    s.thread("1", world.attempt, "ann", lambda: world.actors.join("ann", "b", timeout=1000.0))
    s.thread("2", world.attempt, "bob", lambda: world.actors.request("bob", "go a"))
    s.check("both went", lambda: world.homes() == {"ann": ["b"], "bob": ["a"]})
    s.check("both were told", lambda: (world.outcome("ann"), world.outcome("bob")) == ([None], ["b"]))


def test_two_that_swap() -> None:
    run_random(two_that_swap)
    run_exhaustive(two_that_swap, preemptions=1, switches=0)
    run_lines(two_that_swap, MODULES)


def into_one_that_closes(s: Scenario) -> None:
    """In before the end, and out with it, or refused and still where it was."""
    world = players(s, SpotWide, ann="a")
    s.thread("mover", world.attempt, "join", lambda: world.actors.join("ann", "b"))
    s.thread("closer", world.attempt, "close", lambda: world.spots.close("b"))
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("ann", "hello"))
    s.check("joined or told", lambda: set(world.outcome("join")) <= {None, *REFUSED})
    s.check("closed", lambda: world.outcome("close") == [None])
    s.check("not in a Spot that is gone", lambda: world.homes() in ({"ann": ["a"]}, {"ann": []}))
    s.check("her queue works on", lambda: len(said(world, "ann")) == 1)


def out_of_one_that_closes(s: Scenario) -> None:
    world = players(s, SpotWide, ann="a")
    s.thread("mover", world.attempt, "join", lambda: world.actors.join("ann", "b"))
    s.thread("closer", world.attempt, "close", lambda: world.spots.close("a"))
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("ann", "hello"))
    s.check("she moved", lambda: world.outcome("join") == [None] and world.homes() == {"ann": ["b"]})
    s.check("closed", lambda: world.outcome("close") == [None])
    s.check("her queue works on", lambda: len(said(world, "ann")) == 1)


def test_spots_that_close() -> None:
    for scenario in (into_one_that_closes, out_of_one_that_closes):
        run_random(scenario)
        run_lines(scenario, MODULES, 20)


def a_member_that_holds_the_turn(s: Scenario) -> None:
    """When the Spot's time is over its handler is told, or has just gone on; the Actor works on."""
    world = players(s, SpotWide, ann="a")
    held = world.actors.request("ann", "hold", timeout=1000.0).submit()

    def resume() -> None:
        s.sleep(1.1)  # a tenth of a second is left when the members have had their time
        world.hold.succeed(None)

    s.thread("closer", world.attempt, "close", lambda: world.spots.close("a", timeout=1.0))
    s.thread("resumer", resume)
    s.check("closed", lambda: world.outcome("close") == [None])
    s.check("told, or answered", lambda: type(held.exception(0.0)) in (ShuttingDown, type(None)))
    s.check("she is nowhere", lambda: world.homes() == {"ann": []})
    s.check("her queue works on", lambda: world.actors.request("ann", "hello").result() == "None")


def test_a_member_that_holds_the_turn() -> None:
    run_random(a_member_that_holds_the_turn)
    run_exhaustive(a_member_that_holds_the_turn, preemptions=1, switches=0)
    run_lines(a_member_that_holds_the_turn, MODULES, 20)


def an_actor_that_closes(s: Scenario) -> None:
    """It leaves its Spot with its last turn, wherever it is then."""
    world = players(s, SpotWide, ann="a")
    s.thread("mover", world.attempt, "join", lambda: world.actors.join("ann", "b"))
    s.thread("closer", world.attempt, "close", lambda: world.actors.close("ann"))
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("ann", "hello"))
    s.check("joined or told", lambda: set(world.outcome("join")) <= {None, *REFUSED})
    s.check("closed", lambda: world.outcome("close") == [None] and "ann" not in world.living)
    s.check("nobody counts her", lambda: not any(spot.members for spot in world.spots.entries()))


def test_an_actor_that_closes() -> None:
    run_random(an_actor_that_closes)
    run_lines(an_actor_that_closes, MODULES, 20)


def refused_at_the_door(s: Scenario) -> None:
    """An Actor that no Spot takes is not made; one that is refused elsewhere stays where it is, and works on."""
    world = players(s, SpotWide)
    world.actors.create("player", "refused").result()
    s.thread("creator", world.attempt, "create", lambda: world.actors.create("player", "new", spot="nowhere"))
    s.thread("mover", world.attempt, "join", lambda: world.actors.join("refused", "a"))
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("refused", "hello"))
    s.check("told", lambda: (world.outcome("create"), world.outcome("join")) == (["NotFound"], ["ValueError"]))
    s.check("nothing is left", lambda: world.homes() == {"refused": []})
    s.check("it works on", lambda: said(world, "refused") == ["hello"])


def test_refused_at_the_door() -> None:
    run_random(refused_at_the_door)
    run_lines(refused_at_the_door, MODULES, 20)


def refused_elsewhere(s: Scenario) -> None:
    """Its turns still come from the Spot it stays in."""
    world = players(s, SpotWide, workers=2, ann="a")
    world.attempt("join", lambda: world.actors.join("ann", "closed"))
    s.thread("1", world.attempt, "actor", lambda: world.actors.request("ann", "hello"))
    s.thread("2", world.attempt, "room", lambda: world.spots.request("a", "hello"))
    s.check("told", lambda: world.outcome("join") == ["ValueError"])
    s.check("both were answered", lambda: (world.outcome("actor"), world.outcome("room")) == (["a"], ["hello"]))


def test_refused_elsewhere() -> None:
    run_random(refused_elsewhere, 200)


def a_join_that_takes_too_long(s: Scenario) -> None:
    """At its deadline it is given up, and undone when the Spot comes to it."""
    world = players(s, SpotWide, ann="a")
    held = world.spots.request("b", "hold", timeout=1000.0).submit()

    def join() -> None:
        began = s.now
        world.attempt("join", lambda: world.actors.join("ann", "b", timeout=1.0))
        s.expect(s.now < began + 5.0, "told at the deadline")
        world.hold.succeed(None)

    s.thread("mover", join)
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("ann", "hello", timeout=100.0))
    s.check("told", lambda: world.outcome("join") == [DeadlineExceeded.__name__])
    s.check("the room goes on", lambda: held.result(0.0) == "hold")
    s.check("she is where she was", lambda: world.homes() == {"ann": ["a"]})
    s.check("her queue works on", lambda: world.outcome("send") == ["a"])


def a_deadline_that_meets_the_move(s: Scenario) -> None:
    """Moved or told; what is told succeeded has happened."""
    world = players(s, SpotWide, ann="a")
    s.timeouts_race(within=5.0)
    s.thread("mover", world.attempt, "join", lambda: world.actors.join("ann", "b", timeout=1.0))
    s.thread("sender", world.attempt, "send", lambda: world.actors.request("ann", "hello", timeout=100.0))
    s.check("moved or told", lambda: set(world.outcome("join")) <= {None, DeadlineExceeded.__name__})
    s.check("a move that is told succeeded", lambda: world.outcome("join") != [None] or world.homes() == {"ann": ["b"]})


def test_joins_and_deadlines() -> None:
    run_random(a_join_that_takes_too_long)
    run_exhaustive(a_join_that_takes_too_long, preemptions=1, switches=0)
    run_random(a_deadline_that_meets_the_move)
