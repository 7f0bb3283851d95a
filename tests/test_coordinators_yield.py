"""`yield_()` (design 3.4 "Suspending"): where it is allowed, what it gives back, and how it goes on or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from spots import Stage, Work, entries, joined, let_others_run, refused, run_out
from support import PATIENCE, outcome

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, CapacityExceeded, InvalidOperation, ShuttingDown, Unavailable
from zlink_nogil.execution import (
    ActorSerialExecutor,
    Call,
    Entry,
    Instance,
    PerActor,
    SessionSerialExecutor,
    SpotWide,
)
from zlink_nogil.scheduler import Completion, Wait, WorkerPool

type Run = Callable[[Work], Completion[Any]]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Of one worker: when something else has run on it, whoever was before that has suspended or ended."""
    with WorkerPool(1) as pool:
        yield pool


@pytest.fixture
def stage(pool: WorkerPool) -> Stage:
    return Stage(pool, SpotWide)


@pytest.fixture
def reply(pool: WorkerPool) -> Completion[Any]:
    return Completion(pool)


# -- where it is allowed --------------------------------------------------------------------------------------------


class Operation:
    """A call that notes that it was started."""

    def __init__(self, completion: Completion[Any]) -> None:
        self.started: list[Wait | None] = []
        self.call: Call[Any] = Call(lambda how: (self.started.append(how), completion)[1])


def places(pool: WorkerPool) -> dict[str, Run]:
    """Where there is no shared gate."""
    found: dict[str, Run] = {}
    for mode in (PerActor, Entry):
        spot = Stage(pool, mode).spot
        found |= {f"{mode!r} {kind}": execute for kind, execute in entries(spot).items()}
    found |= {f"Actor {kind}": run for kind, run in entries(ActorSerialExecutor("a", pool=pool)).items()}
    found |= {f"session {kind}": run for kind, run in entries(SessionSerialExecutor("s", pool=pool)).items()}
    found["task"] = lambda work: task.spawn(work(), pool=pool)
    return found


PLACES = [
    *(f"{mode} {kind}" for mode in ("PerActor", "Entry") for kind in ("spot", "actor", "timer", "lifecycle")),
    *("Actor actor", "Actor lifecycle", "task"),
    *(f"session {kind}" for kind in ("application", "control", "infrastructure", "final")),
]


@pytest.mark.parametrize("place", PLACES)
def test_off_a_shared_gate_it_raises_and_nothing_is_begun(pool, reply, place):
    operation = Operation(reply)

    async def handler() -> str:
        with pytest.raises(InvalidOperation, match="shared Spot gate"):
            await operation.call.yield_()
        assert operation.started == [], "before anything is sent"
        with pytest.raises(InvalidOperation, match="shared Spot gate"):
            await reply.yield_()
        done: Completion[int] = Completion(pool)
        done.succeed(1)
        with pytest.raises(InvalidOperation, match="shared Spot gate"):
            await done.yield_()  # whether it may does not depend on who was faster
        return await operation.call

    handled = places(pool)[place](handler)
    let_others_run(pool)
    reply.succeed("it can be used once still")
    assert handled.result(PATIENCE) == "it can be used once still"
    assert operation.started == [Wait.KEEP]


def test_on_a_plain_thread_it_raises_and_nothing_is_begun(reply):
    operation = Operation(reply)
    with pytest.raises(InvalidOperation, match="outside a turn"):
        operation.call.yield_().send(None)
    assert operation.started == []


@pytest.mark.parametrize(
    ("mode", "kind"),
    [(SpotWide, kind) for kind in ("spot", "actor", "timer", "lifecycle", "member")]
    + [(Instance, kind) for kind in ("spot", "timer", "lifecycle")],
)
def test_on_every_kind_of_turn_of_a_shared_gate_it_gives_it_back(pool, reply, mode, kind):
    stage = Stage(pool, mode)
    if kind == "member":
        execute: Run = joined(stage, "m").execute_actor
    else:
        execute = entries(stage.spot)[kind]
    operation = Operation(reply)

    async def handler() -> Any:
        value = await operation.call.yield_()
        assert stage.spot.is_current()
        return value

    handled = execute(handler)
    assert stage.spot.execute_spot(lambda: "goes on").result(PATIENCE) == "goes on"
    assert (operation.started, handled.done()) == ([Wait.GIVE_BACK], False)
    reply.succeed("there")
    assert handled.result(PATIENCE) == "there"
    stage.at_rest()


# -- what it does ---------------------------------------------------------------------------------------------------


def test_with_the_outcome_there_the_turn_is_kept(stage, reply):
    reply.succeed("there")

    async def handler() -> None:
        stage.spot.execute_lifecycle(stage.note("behind"))
        for _ in range(20):
            assert await reply.yield_() == "there"
        stage.seen.append("not given back")

    stage.spot.execute_spot(handler).result(PATIENCE)
    assert stage.let_go() == ["not given back", "behind"]


@pytest.mark.parametrize("kind", ["spot", "actor", "timer"])
def test_the_continuation_runs_behind_what_waits(stage, reply, kind):
    entries(stage.spot)[kind](stage.waits("handler", reply))
    gate = stage.hold_spot()
    stage.actor("b", "another Actor")
    stage.spot.execute_spot(stage.note("Spot"))
    reply.succeed(1)
    stage.spot.execute_spot(stage.note("came later"))
    gate.open()
    assert stage.let_go() == ["handler begins", "another Actor", "Spot", "handler goes on", "came later"]


def test_lifecycle_work_goes_on_in_its_own_line(stage, reply):
    stage.spot.execute_lifecycle(stage.waits("join", reply))
    stage.hold_spot()
    stage.spot.execute_spot(stage.note("Spot"))
    reply.succeed(1)
    assert stage.let_go() == ["join begins", "join goes on", "Spot"]


def test_an_await_after_a_yield_keeps_the_turn_again(pool, stage, reply):
    second = Completion[str](pool)

    async def handler() -> None:
        await reply.yield_()
        stage.seen.append("goes on")
        await second
        stage.seen.append("ends")

    stage.spot.execute_actor("a", handler)
    assert stage.spot.execute_spot(lambda: "given back").result(PATIENCE) == "given back"
    reply.succeed(1)
    stage.spot.execute_spot(stage.note("waits"))
    let_others_run(pool)
    assert stage.seen == ["goes on"]
    second.succeed("")
    assert stage.let_go() == ["goes on", "ends", "waits"]


def test_a_reservation_is_kept_while_it_has_yielded(pool, reply):
    stage = Stage(pool, SpotWide, items=2, actor_items=1, cost=1, actor_cost=10)
    handled = [
        stage.spot.execute_actor("a", stage.waits("a", reply), 100),
        stage.spot.execute_spot(stage.waits("spot", reply), 1000),
    ]
    let_others_run(pool)
    assert stage.seen == ["a begins", "spot begins"]
    assert stage.reserved() == (3, 110 + 1 + 1001), "the Actor's item, its head, the Spot's item"
    for execute in (lambda work: stage.spot.execute_actor("a", work), stage.spot.execute_spot):
        with pytest.raises(CapacityExceeded):
            execute(refused)
    reply.succeed(1)  # going on needs no room: there is none
    for completion in handled:
        assert completion.result(PATIENCE) == 1
    stage.at_rest()


def test_heads_that_find_no_room_go_on_in_order_when_only_turns_that_wait_have_it(pool, reply):
    stage = Stage(pool, SpotWide, items=1)
    stage.spot.execute_spot(stage.waits("spot", reply))
    let_others_run(pool)
    gate = stage.hold_actor("a")
    for actor in ("b", "a", "c"):
        stage.actor(actor, f"{actor} again" if actor == "a" else actor)
    with pytest.raises(CapacityExceeded):
        stage.spot.execute_spot(refused)
    gate.open()
    let_others_run(pool)
    assert stage.seen == ["spot begins", "b", "c", "a again"]
    reply.succeed(1)
    assert stage.let_go()[-1] == "spot goes on"


def test_what_is_submitted_does_not_slip_in_before_a_head_that_waits_for_room(pool):
    """Room becomes free - whoever drains does not ask for the gate - after the waiting heads were looked at."""
    stage = Stage(pool, SpotWide, items=1)
    gate = Gate()
    running = stage.spot.execute_spot(gate)
    gate.wait_begun()
    stage.actor("a", "the head that waits")

    class SlowToAdd(int):
        def __add__(self, other: int) -> int:
            gate.open()
            running.result(PATIENCE)
            return int(self) + other

    with pytest.raises(CapacityExceeded):
        stage.spot.execute_spot(refused, SlowToAdd(0))
    assert stage.let_go() == ["the head that waits"]


def test_yielding_for_an_actor_whose_head_finds_no_room_does_not_hang(pool):
    """All the room of the Spot's queue is taken by turns that wait for others of that Spot."""
    stage = Stage(pool, SpotWide, items=1)

    def asks(actor: str, answer: Work) -> Work:
        async def handler() -> Any:
            return await stage.spot.execute_actor(actor, answer).yield_()

        return handler

    chain = asks("b", asks("c", asks("d", lambda: "d's answer")))
    assert stage.spot.execute_actor("a", chain).result(PATIENCE) == "d's answer"
    assert stage.spot.execute_spot(chain).result(PATIENCE) == "d's answer"
    stage.at_rest()


# -- how it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle"])
def test_the_error_of_what_is_awaited_is_raised_there(pool, stage, reply, kind):
    handled = entries(stage.spot)[kind](stage.waits("handler", reply))
    let_others_run(pool)
    reply.fail(Unavailable("gone"))
    assert isinstance(outcome(handled), Unavailable)
    stage.spot.execute_actor("a", stage.note("the next")).result(PATIENCE)
    assert stage.let_go() == ["handler begins", "handler Unavailable", "the next"]


@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle"])
def test_cancelled_while_it_has_yielded_it_ends_on_a_turn_of_its_own(stage, reply, kind):
    handled = entries(stage.spot)[kind](stage.waits("handler", reply))
    gate = stage.hold_spot()
    assert handled.cancel()
    let_anybody = Background(lambda: reply.succeed("too late"))
    assert let_anybody.result(), "what it awaited is left alone"
    assert stage.seen == ["handler begins"], "not while another turn runs"
    gate.open()
    assert isinstance(outcome(handled), Cancelled)
    stage.spot.execute_actor("a", stage.note("the next")).result(PATIENCE)
    assert stage.let_go() == ["handler begins", "handler Cancelled", "the next"]


def test_a_cancel_may_be_caught_and_another_wait_begun(pool, stage, reply):
    second = Completion[str](pool)

    async def handler() -> str:
        with pytest.raises(Cancelled):
            await reply.yield_()
        return await second.yield_()

    handled = stage.spot.execute_actor("a", handler)
    let_others_run(pool)
    handled.cancel()
    reply.succeed("late")
    let_others_run(pool)
    assert not handled.done()
    second.succeed("second")
    assert handled.result(PATIENCE) == "second"
    stage.at_rest()


@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle", "member"])
def test_when_the_time_of_close_is_over_shutting_down_is_raised_there(pool, stage, reply, kind):
    execute = joined(stage, "m").execute_actor if kind == "member" else entries(stage.spot)[kind]
    handled = execute(stage.waits("handler", reply))
    let_others_run(pool)
    behind = stage.spot.execute_actor("b", lambda: "ran")
    assert behind.result(PATIENCE) == "ran"
    run_out(stage.spot)
    assert isinstance(outcome(handled), ShuttingDown)
    assert stage.seen == ["handler begins", "handler ShuttingDown"]
    assert reply.succeed("nobody waits for it")
    stage.at_rest()


@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle", "member"])
def test_within_the_time_of_close_it_goes_on_with_its_result(pool, stage, reply, kind):
    execute = joined(stage, "m").execute_actor if kind == "member" else entries(stage.spot)[kind]
    handled = execute(stage.waits("handler", reply))
    let_others_run(pool)
    closing = Background(stage.spot.close, PATIENCE)
    reply.succeed("in time")
    closing.result()
    assert handled.done()
    assert handled.result() == "in time"
