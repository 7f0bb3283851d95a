"""The last section of seed 000, bullet by bullet: `BULLETS` says which test each has become.

Through the public surface only: entry points and what they return, refusals, the order and the overlap of handlers, and
what a re-entering call gets.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from spots import MODES, Clock, Execute, Stage, Work, entries, let_others_run, missing, named_tests, policy, refused
from support import PATIENCE

from zlink_nogil import Actor, Host
from zlink_nogil.errors import CapacityExceeded, InvalidOperation
from zlink_nogil.execution import (
    ActorSerialExecutor,
    PerActor,
    SerialExecutionQueue,
    SessionSerialExecutor,
    SpotMode,
    SpotSerialExecutor,
    SpotWide,
)
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.spots import ActorStateSnapshot, MessageContext

BULLETS = {
    "submission: nobody can say on which queue a handler or callback runs": "test_no_way_to_name_a_queue",
    "PerActor: the handlers of two Actors overlap": "test_per_actor_the_handlers_of_two_actors_overlap",
    "SpotWide: the next handler begins when the one before has ended": "test_spot_wide_handlers_begin_one_after_the_other",
    "both modes: the work of one Actor runs in the order of submission": "test_the_work_of_one_actor_runs_in_order",
    "PerActor: timers of two names overlap, those of one name are in order": "test_per_actor_timers_overlap_by_name_only",
    "both modes: a full mailbox refuses its Actor only": "test_a_full_mailbox_refuses_its_actor_only",
    "SpotWide: of as many payloads the larger ones are refused first": "test_spot_wide_the_larger_payload_is_refused_first",
    "SpotWide: when the Spot's queue is full depends on the count": "test_spot_wide_the_spots_queue_is_full_by_count",
    "lifecycle work overtakes, but not more than the burst in a row": "test_lifecycle_work_overtakes_up_to_the_burst",
    "an owner that has used its time is cut off": "test_an_owner_that_has_used_its_time_is_cut_off",
    "SpotWide: a yielded Actor's next record waits, the others go on": "test_spot_wide_a_yielded_actors_next_record_waits",
    "one message does not see old and new state mixed": "test_one_message_sees_one_state_of_its_actor",
    "waiting for the own coordinator's work raises where one waits": "test_waiting_for_the_own_coordinator_raises",
    "the same results in each language: here, plain and async": "test_plain_and_async_handlers_are_treated_alike",
}


def test_every_bullet_is_a_test():
    assert missing(BULLETS.values(), __file__) == []
    assert named_tests(__file__) - set(BULLETS.values()) == {"test_every_bullet_is_a_test"}


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


# -- submission -----------------------------------------------------------------------------------------------------


def test_no_way_to_name_a_queue(pool):
    taken = {
        name: set(inspect.signature(method).parameters) - {"self"}
        for coordinator in (SpotSerialExecutor, ActorSerialExecutor, SessionSerialExecutor)
        for name, method in vars(coordinator).items()
        if name.startswith("execute_")
    }
    assert taken == {
        "execute_spot": {"work", "payload_bytes"},
        "execute_actor": {"actor_id", "work", "payload_bytes"} & taken["execute_actor"],
        "execute_timer": {"timer_name", "work"},
        "execute_lifecycle": {"work"},
        "execute_application": {"work", "payload_bytes"},
        "execute_control": {"work"},
        "execute_infrastructure": {"work"},
        "execute_final": {"work"},
    }
    actor, session = ActorSerialExecutor("a", pool=pool), SessionSerialExecutor("s", pool=pool)
    for coordinator in (*(Stage(pool, mode).spot for mode in MODES), actor, session):
        for execute in entries(coordinator).values():
            completion = execute(lambda: "ran")
            assert type(completion) is Completion, "and what comes back says nothing about a queue"
            assert completion.result(PATIENCE) == "ran"


# -- what may overlap, and the order --------------------------------------------------------------------------------


def meets(barrier: threading.Barrier) -> Work:
    return lambda: barrier.wait(PATIENCE)


def test_per_actor_the_handlers_of_two_actors_overlap(pool):
    stage, barrier = Stage(pool, PerActor), threading.Barrier(2)
    met = [stage.spot.execute_actor(actor, meets(barrier)) for actor in ("a", "b")]
    assert {completion.result(PATIENCE) for completion in met} == {0, 1}


def test_spot_wide_handlers_begin_one_after_the_other(pool):
    stage = Stage(pool, SpotWide)
    gate = stage.hold_actor("a")
    stage.spot.execute_actor("b", stage.note("b"))
    let_others_run(pool)
    assert (stage.seen, gate.thread.is_alive()) == ([], True), "there is a worker for b, and no turn"
    assert stage.let_go() == ["b"]


@pytest.mark.parametrize("mode", MODES)
def test_the_work_of_one_actor_runs_in_order(pool, mode):
    stage = Stage(pool, mode, budget=1e-6, actor_budget=1e-6)
    order = range(100)
    for index in order:
        for actor in ("a", "b"):
            stage.spot.execute_actor(actor, stage.note((actor, index)))
    seen = stage.let_go()
    for actor in ("a", "b"):
        assert [index for who, index in seen if who == actor] == list(order)


def test_per_actor_timers_overlap_by_name_only(pool):
    stage, barrier = Stage(pool, PerActor), threading.Barrier(2)
    met = [stage.spot.execute_timer(name, meets(barrier)) for name in ("tick", "beat")]
    assert {completion.result(PATIENCE) for completion in met} == {0, 1}
    stage.hold(lambda work: stage.spot.execute_timer("tick", work))
    for index in range(20):
        stage.spot.execute_timer("tick", stage.note(index))
    let_others_run(pool)
    assert stage.seen == [], "the same name does not overlap"
    assert stage.let_go() == list(range(20))


# -- capacity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_full_mailbox_refuses_its_actor_only(pool, mode):
    stage = Stage(pool, mode, actor_items=3)
    stage.hold_actor("full")
    stage.actor("full", "full 1", "full 2")
    with pytest.raises(CapacityExceeded):
        stage.spot.execute_actor("full", refused)
    stage.actor("other", "other 1", "other 2", "other 3")
    with pytest.raises(CapacityExceeded):
        stage.spot.execute_actor("full", refused)
    assert sorted(stage.let_go()) == ["full 1", "full 2", "other 1", "other 2", "other 3"]
    stage.actor("full", "room again")
    assert stage.let_go()[-1] == "room again"


def accepted(submit: Callable[[int], object], most: int) -> int:
    """How many of `submit(0)`, `submit(1)`, ... were accepted before the first refusal."""
    for index in range(most):
        try:
            submit(index)
        except CapacityExceeded:
            return index
    return most


def test_spot_wide_the_larger_payload_is_refused_first(pool):
    stage = Stage(pool, SpotWide, actor_bytes=1000, actor_cost=10)
    stage.hold_spot()
    counts = {
        size: accepted(lambda _, size=size: stage.spot.execute_actor(str(size), lambda: None, size), 20)
        for size in (40, 90, 490)
    }
    assert counts == {40: 20, 90: 10, 490: 2}
    stage.let_go()


@pytest.mark.parametrize("size", [0, 100_000])
def test_spot_wide_the_spots_queue_is_full_by_count(pool, size):
    stage = Stage(pool, SpotWide, items=6, cost=10, bytes=60)
    stage.hold_spot()
    for actor in "abcd":
        stage.spot.execute_actor(actor, stage.note(actor), size)
    assert stage.spot_reserved() == (5, 50), "the fixed cost each, whatever the payload"
    assert accepted(lambda index: stage.spot.execute_spot(stage.note(index)), 5) == 1
    assert stage.let_go() == ["a", "b", "c", "d", 0]


def hold_and_entries(kind: str, pool: WorkerPool) -> tuple[Stage, Execute, Execute]:
    """(stage, application entry, lifecycle entry) of a coordinator of that kind, with a burst of 2."""
    stage = Stage(pool, SpotWide if kind == "SpotWide" else PerActor, burst=2)
    if kind in ("PerActor", "SpotWide"):
        return stage, stage.spot.execute_spot, stage.spot.execute_lifecycle
    if kind == "Actor":
        actor = ActorSerialExecutor("a", policy=policy(burst=2), pool=pool)
        return stage, actor.execute_actor, actor.execute_lifecycle
    session = SessionSerialExecutor("s", policy=policy(burst=2), pool=pool)
    return (
        stage,
        session.execute_application,
        {
            "session control": session.execute_control,
            "session infrastructure": session.execute_infrastructure,
        }[kind],
    )


@pytest.mark.parametrize("kind", ["PerActor", "SpotWide", "Actor", "session control", "session infrastructure"])
def test_lifecycle_work_overtakes_up_to_the_burst(pool, kind):
    stage, application, lifecycle = hold_and_entries(kind, pool)
    gate = stage.hold(application)
    for name in ("a1", "a2"):
        application(stage.note(name))
    completions = [lifecycle(stage.note(name)) for name in ("l1", "l2", "l3", "l4", "l5")]
    gate.open()
    for completion in completions:
        completion.result(PATIENCE)
    assert stage.seen == ["l1", "l2", "a1", "l3", "l4", "a2", "l5"]


# -- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "kind"), [(mode, kind) for mode in MODES for kind in ("spot", "actor", "timer")])
def test_an_owner_that_has_used_its_time_is_cut_off(single, monkeypatch, mode, kind):
    clock = Clock(monkeypatch)
    stage = Stage(single, mode, budget=10, actor_budget=10)
    execute = entries(stage.spot)[kind]
    stage.hold(execute)
    for name in ("h1", "h2", "h3", "h4"):
        execute(stage.note(name, then=lambda: clock.spend(6)))
    SerialExecutionQueue(pool=single).enqueue(stage.note("another owner"))
    assert stage.let_go() == ["h1", "h2", "another owner", "h3", "h4"]


# -- an Actor that has yielded --------------------------------------------------------------------------------------


def test_spot_wide_a_yielded_actors_next_record_waits(pool):
    stage, reply = Stage(pool, SpotWide), Completion[str](pool)
    stage.spot.execute_actor("a", stage.waits("a", reply))
    stage.actor("a", "a's next")
    for name, execute in entries(stage.spot).items():
        if name != "actor":
            execute(stage.note(name)).result(PATIENCE)
    assert stage.seen == ["a begins", "spot", "timer", "other timer", "lifecycle", "other actor"]
    reply.succeed("there")
    assert stage.let_go()[6:] == ["a goes on", "a's next"]


# -- state, re-entry, equality --------------------------------------------------------------------------------------


class Member(Actor):
    def on_event(self, change: threading.Event, ctx: MessageContext) -> list[ActorStateSnapshot | None]:
        seen = [ctx.actor]
        self.actors.update(self.actor_id, {"name": "new"})  # as if another thread did, in the middle
        change.set()
        return [*seen, ctx.actor]


def test_one_message_sees_one_state_of_its_actor():
    host, changed = Host(workers=1), threading.Event()
    host.actors.register(Member)
    with host:
        member = host.actors.create("Member", "ann").result(PATIENCE)
        host.actors.update("ann", {"name": "old"})
        before, after = member.request(changed, name="Event", reply=list).result(PATIENCE)
        assert changed.is_set()
        assert before is after
        assert before == ActorStateSnapshot("ann", "Member", None, {"name": "old"})
        next_before, next_after = member.request(changed, name="Event", reply=list).result(PATIENCE)
        assert next_before == next_after == ActorStateSnapshot("ann", "Member", None, {"name": "new"})


def coordinators(pool: WorkerPool) -> list[Any]:
    actor = ActorSerialExecutor("a", pool=pool)
    return [*(Stage(pool, mode).spot for mode in MODES), actor, SessionSerialExecutor("s", pool=pool)]


@pytest.mark.parametrize("index", range(4), ids=["PerActor", "SpotWide", "Actor", "session"])
def test_waiting_for_the_own_coordinator_raises(single, index):
    """From each kind of work, for each kind of work; and what was submitted runs nevertheless."""
    coordinator = coordinators(single)[index]
    kinds = [kind for kind in entries(coordinator) if kind != "final"]

    def reenter() -> list[Completion[Any]]:
        submitted = []
        for kind in kinds:
            completion = entries(coordinator)[kind](lambda: "ran")
            with pytest.raises(InvalidOperation, match=f"result.* {coordinator.name}"):
                completion.result(PATIENCE)
            submitted.append(completion)
        return submitted

    for kind in kinds:
        for completion in entries(coordinator)[kind](reenter).result(PATIENCE):
            assert completion.result(PATIENCE) == "ran"


def as_async(work: Work) -> Work:
    async def handler() -> Any:
        return work()

    return handler


type Handler = Callable[[], Any | Coroutine[Any, Any, Any]]


def history(pool: WorkerPool, mode: SpotMode, dress: Callable[[Work], Handler]) -> list[Any]:
    """What one sees of a Spot with hardly any room, with a worker for each who may run."""
    stage = Stage(pool, mode, burst=1, actor_items=3)
    barrier = threading.Barrier(2)
    if mode is PerActor:
        met = [stage.spot.execute_actor(actor, dress(meets(barrier))) for actor in ("a", "b")]
        stage.seen.append({completion.result(PATIENCE) for completion in met})
    stage.hold_actor("a")
    for kind in ("a1", "a2", "a3", "a4"):
        try:
            stage.spot.execute_actor("a", dress(stage.note(kind)))
        except CapacityExceeded:
            stage.seen.append(f"{kind} refused")
    let_others_run(pool)
    stage.seen.append("a is let go")
    stage.let_go()
    stage.hold_spot()
    for name in ("s1", "s2"):
        stage.spot.execute_spot(dress(stage.note(name)))
    for name in ("l1", "l2"):
        stage.spot.execute_lifecycle(dress(stage.note(name)))
    stage.let_go()

    def reenter() -> None:
        with pytest.raises(InvalidOperation):
            stage.spot.execute_spot(stage.note("submitted")).result(PATIENCE)
        stage.seen.append("raised")

    stage.spot.execute_spot(dress(reenter)).result(PATIENCE)
    return stage.let_go()


@pytest.mark.parametrize("mode", MODES)
def test_plain_and_async_handlers_are_treated_alike(pool, mode):
    plain, asynchronous = history(pool, mode, lambda work: work), history(pool, mode, as_async)
    assert plain == asynchronous
    assert plain[:-11] == [{0, 1}] * (mode is PerActor)
    assert plain[-11:] == [
        "a3 refused",
        "a4 refused",
        "a is let go",
        "a1",
        "a2",
        "l1",
        "s1",
        "l2",
        "s2",
        "raised",
        "submitted",
    ]
