"""The Spots of a host under every schedule: create and close of one id, failures, messages meanwhile."""

from __future__ import annotations

from typing import Any

from zlink_nogil.errors import AlreadyExists, Cancelled, InvalidOperation, NotFound, ShuttingDown
from zlink_nogil.scheduler import Completion
from zlink_nogil.task import spawn

from .harness import Scenario, run_exhaustive, run_lines, run_random
from .world_of_spots import MODULES, WatchedSpot, World

GONE = {NotFound.__name__, ShuttingDown.__name__}


def rooms(s: Scenario, workers: int = 1) -> World:
    world = World(s, workers)
    world.spots.register(type("Room", (WatchedSpot,), {"world": world}), type_name="room")
    world.start()
    s.check("nobody lives that is in no directory", lambda: set(world.living) == set(world.spots.ids()))
    s.check("all are at rest", world.at_rest)
    return world


def many_create_one(s: Scenario) -> None:
    """`get_or_create` of one id makes one object; `create` of it fails or was first."""
    world = rooms(s)
    s.thread("1", world.attempt, "get", lambda: world.spots.get_or_create("room", "r"))
    s.thread("2", world.attempt, "get", lambda: world.spots.get_or_create("room", "r"))
    s.thread("3", world.attempt, "create", lambda: world.spots.create("room", "r"))
    s.check("one was made", lambda: world.born == ["r"])
    s.check("both have it", lambda: world.outcome("get") == [world.spots.ref("r")] * 2)
    s.check("new, or refused", lambda: world.outcome("create") in ([world.spots.ref("r")], [AlreadyExists.__name__]))


def test_many_create_one() -> None:
    run_random(many_create_one)
    run_exhaustive(many_create_one, preemptions=1, switches=0)
    run_lines(many_create_one, MODULES)


def made_by_a_message(s: Scenario) -> None:
    """Of two first messages to an id that is made on demand, one makes it, and both are answered."""
    world = World(s, 1)
    world.spots.register(type("Room", (WatchedSpot,), {"world": world}), type_name="room", on_demand="r")
    world.start()
    s.thread("1", world.attempt, "1", lambda: world.spots.request("r", "hello"))
    s.thread("2", world.attempt, "2", lambda: world.spots.request("r", "hello"))
    s.check("one was made", lambda: world.born == ["r"])
    s.check("both were answered", lambda: world.outcome("1") == world.outcome("2") == ["hello"])
    s.check("all are at rest", world.at_rest)


def test_made_by_a_message() -> None:
    run_random(made_by_a_message)
    run_exhaustive(made_by_a_message, preemptions=1, switches=0)
    run_exhaustive(made_by_a_message, preemptions=1, switches=1, lines=["zlink_nogil.spots.creations"])
    run_lines(made_by_a_message, MODULES)


def create_and_close(s: Scenario) -> None:
    """Whoever comes while one closes waits for its end and gets the next; two never live at once."""
    world = rooms(s)
    world.spots.create("room", "r").result()
    s.thread("closer", world.attempt, "close", lambda: world.spots.close("r"))
    s.thread("creator", world.attempt, "get", lambda: world.spots.get_or_create("room", "r"))
    s.thread("sender", world.attempt, "send", lambda: world.spots.request("r", "hello"))
    s.check("it was closed", lambda: world.outcome("close") == [None])
    s.check("there is one to have", lambda: world.outcome("get") == [world.spots.ref("r")])
    s.check("answered, or told", lambda: set(world.outcome("send")) <= {"hello", *GONE})
    s.check("closed and made again, or the old one found before", lambda: world.born in (["r"], ["r", "r"]))


def test_create_and_close() -> None:
    run_random(create_and_close)
    run_exhaustive(create_and_close, preemptions=1, switches=0)
    run_lines(create_and_close, MODULES)


def two_close(s: Scenario) -> None:
    """Both return when it has ended, and what was accepted has run."""
    world = rooms(s)
    world.spots.create("room", "r").result()
    accepted = world.spots.request("r", "hello").submit()

    def close() -> None:
        world.attempt("close", lambda: world.spots.close("r"))
        s.expect("r" not in world.living, "it has ended when a close returns")
        s.expect("r" not in world.spots, "its id is free when a close returns")
        s.expect(accepted.done(), "what was accepted is over when a close returns")

    s.thread("1", close)
    s.thread("2", close)
    s.check("ended, or gone before", lambda: set(world.outcome("close")) <= {None, NotFound.__name__})
    s.check("what was accepted ran", lambda: accepted.result() == "hello")


def test_two_close() -> None:
    run_random(two_close)
    run_exhaustive(two_close, preemptions=1, switches=0)
    run_lines(two_close, MODULES)


def a_creation_that_fails(s: Scenario) -> None:
    """It leaves nothing: the next one works, and a message meanwhile is answered by a living one, or fails."""
    world = World(s)
    failures = [ValueError("the first one fails")]

    class Room(WatchedSpot):
        def on_create(self) -> None:
            if failures:
                raise failures.pop()
            super().on_create()

    Room.world = world
    world.spots.register(Room, type_name="room")
    world.start()

    def create_twice() -> None:
        world.attempt("create", lambda: world.spots.get_or_create("room", "r"))
        world.attempt("again", lambda: world.spots.get_or_create("room", "r"))

    s.thread("creator", create_twice)
    s.thread("other", world.attempt, "other", lambda: world.spots.get_or_create("room", "r"))
    s.thread("sender", world.attempt, "send", lambda: world.spots.request("r", "hello"))
    one = [world.spots.ref("r")]
    s.check("the second works", lambda: world.outcome("again") == one)
    s.check("one of them failed", lambda: "ValueError" in world.outcome("create") + world.outcome("other"))
    s.check("answered, or told", lambda: set(world.outcome("send")) <= {"hello", *GONE})
    s.check("one lives", lambda: world.born == ["r"])
    s.check("all are at rest", world.at_rest)


def test_a_creation_that_fails() -> None:
    run_random(a_creation_that_fails)
    run_exhaustive(a_creation_that_fails, preemptions=1, switches=0)
    run_lines(a_creation_that_fails, MODULES)


def a_creation_that_is_cancelled(s: Scenario) -> None:
    """Whenever that comes, it and who waited for the same are told, and nothing is left."""
    world = World(s)
    never = Completion[None](world.pool)

    class Room(WatchedSpot):
        async def on_create(self) -> None:
            await never

    Room.world = world
    world.spots.register(Room, type_name="room")
    world.start()

    def create_and_cancel() -> None:
        creation = world.spots.create("room", "r").submit()
        s.thread("other", world.attempt, "other", lambda: world.spots.get_or_create("room", "r"))
        s.expect(creation.cancel(), "it is not too late")
        s.expect(isinstance(creation.exception(), Cancelled), "it was cancelled")
        never.fail(NotFound("nobody comes"))

    s.thread("creator", create_and_cancel)
    told = {NotFound.__name__, ShuttingDown.__name__}
    s.check("with it, or with one of its own", lambda: set(world.outcome("other")) <= told)
    s.check("nothing is left", lambda: not world.spots.ids())


def test_a_creation_that_is_cancelled() -> None:
    run_random(a_creation_that_is_cancelled)
    run_exhaustive(a_creation_that_is_cancelled, preemptions=1, switches=0)
    run_lines(a_creation_that_is_cancelled, MODULES)


def closing_what_is_being_created(s: Scenario) -> None:
    """Refused, or it was open already."""
    world = rooms(s)
    s.thread("creator", world.attempt, "get", lambda: world.spots.get_or_create("room", "r"))
    s.thread("closer", world.attempt, "close", lambda: world.spots.close("r"))
    told: set[Any] = {None, NotFound.__name__, InvalidOperation.__name__}
    s.check("closed, or told why not", lambda: set(world.outcome("close")) <= told)
    s.check("made", lambda: world.outcome("get") == [world.spots.ref("r")])


def test_closing_what_is_being_created() -> None:
    run_random(closing_what_is_being_created)
    run_exhaustive(closing_what_is_being_created, preemptions=1, switches=0)
    run_lines(closing_what_is_being_created, MODULES)


def ending_all(s: Scenario) -> None:
    """When the host's Spots have ended, none is left and none can be made."""
    world = rooms(s)
    world.spots.create("room", "a").result()

    def end() -> None:
        world.spots.refuse_creations()
        s.expect(spawn(world.spots.end_all(100.0), pool=world.pool).result() == [], "nothing went wrong")
        s.expect(len(world.spots) == 0, "none is left")

    s.thread("host", end)
    s.thread("creator", world.attempt, "create", lambda: world.spots.create("room", "b"))
    s.thread("closer", world.attempt, "close", lambda: world.spots.close("a"))
    s.check("made before, or refused", lambda: world.outcome("create")[0] in (world.spots.ref("b"), "ShuttingDown"))
    s.check("nobody lives", lambda: not world.living)


def test_ending_all() -> None:
    run_random(ending_all)
    run_exhaustive(ending_all, preemptions=1, switches=0)
    run_lines(ending_all, MODULES)
