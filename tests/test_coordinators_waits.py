"""Waiting for oneself (decision 11): for the own turn, in a cycle of owners; and what is none of that."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest
from background import Gate
from children import python
from spots import Stage, Work, entries, joined
from support import PATIENCE, eventually, outcome

from zlink_nogil import task
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation
from zlink_nogil.execution import ActorSerialExecutor, Entry, Instance, PerActor, SessionSerialExecutor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool

type Wait = Callable[[Completion[Any]], Coroutine[Any, Any, Any]]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    """With one worker, what a handler submits has not ended when it begins to wait."""
    with WorkerPool(1) as pool:
        yield pool


async def keeps(completion: Completion[Any]) -> Any:
    return await completion


async def gives_back(completion: Completion[Any]) -> Any:
    return await completion.yield_()


async def blocks(completion: Completion[Any]) -> Any:
    return completion.result(PATIENCE)


async def joins(completion: Completion[Any]) -> Any:
    return (await task.join(completion))[0]


async def races(completion: Completion[Any]) -> Any:
    return await task.race(completion)


async def within_a_time(completion: Completion[Any]) -> Any:
    return await task.timeout(PATIENCE, completion)


WAYS: dict[str, Wait] = {function.__name__: function for function in (keeps, gives_back, blocks)}
COMBINED: dict[str, Wait] = {function.__name__: function for function in (joins, races, within_a_time)}


def asks(submit: Callable[[], Completion[Any]], wait: Wait) -> Work:
    """A handler that submits, waits for that, and returns what came: the value, or the error it got at the wait."""

    async def handler() -> tuple[Any, Completion[Any]]:
        submitted = submit()
        try:
            return await wait(submitted), submitted
        except InvalidOperation as error:
            return error, submitted

    return handler


# -- the own turn ---------------------------------------------------------------------------------------------------


SHARED = [
    *(("spot", target) for target in ("spot", "timer", "lifecycle", "actor")),
    *(("actor", target) for target in ("spot", "timer", "lifecycle", "actor", "other actor")),
    *(("timer", target) for target in ("spot", "timer", "other timer", "actor")),
    *(("lifecycle", target) for target in ("spot", "actor", "lifecycle")),
]


@pytest.mark.parametrize(("place", "target"), SHARED)
def test_on_a_shared_gate_keeping_the_turn_for_work_that_needs_it_raises(single, place, target):
    stage = Stage(single, SpotWide)
    kinds = entries(stage.spot)
    error, submitted = kinds[place](asks(lambda: kinds[target](lambda: "ran"), keeps)).result(PATIENCE)
    assert isinstance(error, InvalidOperation)
    assert submitted.result(PATIENCE) == "ran", "submitting was legal"
    stage.at_rest()


@pytest.mark.parametrize(("place", "target"), SHARED)
def test_on_a_shared_gate_giving_the_turn_back_for_it_is_allowed_but_for_the_actor_itself(single, place, target):
    stage = Stage(single, SpotWide)
    kinds = entries(stage.spot)
    answer, submitted = kinds[place](asks(lambda: kinds[target](lambda: "ran"), gives_back)).result(PATIENCE)
    if (place, target) == ("actor", "actor"):
        assert isinstance(answer, InvalidOperation), "its claim is kept"
    else:
        assert answer == "ran"
    assert submitted.result(PATIENCE) == "ran"
    stage.at_rest()


@pytest.mark.parametrize("mode", [PerActor, Entry])
@pytest.mark.parametrize(("place", "target"), SHARED)
def test_with_queues_of_their_own_only_the_own_one_raises(single, mode, place, target):
    stage = Stage(single, mode)
    kinds = entries(stage.spot)
    answer, submitted = kinds[place](asks(lambda: kinds[target](lambda: "ran"), keeps)).result(PATIENCE)
    same = place == target or {place, target} == {"spot", "lifecycle"}
    assert isinstance(answer, InvalidOperation) if same else answer == "ran"
    assert submitted.result(PATIENCE) == "ran"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["Actor", "member", "session", "Instance"])
def test_each_owner_asking_itself_raises_however_it_waits(single, kind, way):
    stage = Stage(single, Instance if kind == "Instance" else SpotWide)
    execute = {
        "Actor": lambda: ActorSerialExecutor("mine", pool=single).execute_actor,
        "session": lambda: SessionSerialExecutor("mine", pool=single).execute_application,
        "member": lambda: joined(stage, "mine").execute_actor,
        "Instance": lambda: stage.spot.execute_spot,
    }[kind]()
    answer, submitted = execute(asks(lambda: execute(lambda: "ran"), WAYS[way])).result(PATIENCE)
    if (kind, way) == ("Instance", "gives_back"):
        assert answer == "ran"
    else:
        assert isinstance(answer, InvalidOperation)
    assert submitted.result(PATIENCE) == "ran"


@pytest.mark.parametrize("way", COMBINED)
def test_waiting_for_several_things_one_of_which_is_oneself_raises_as_well(single, way):
    actor = ActorSerialExecutor("mine", pool=single)
    answer, submitted = actor.execute_actor(asks(lambda: actor.execute_actor(lambda: "ran"), COMBINED[way])).result(PATIENCE)
    assert isinstance(answer, InvalidOperation)
    assert submitted.done() or submitted.result(PATIENCE)


def test_the_message_names_the_caller_its_lane_its_owner_and_what_it_needs(single):
    stage = Stage(single, SpotWide, name="orders")

    async def book_an_order() -> Any:
        return await stage.spot.execute_actor("b", lambda: None)

    error = outcome(stage.spot.execute_actor("a", book_an_order))
    assert isinstance(error, InvalidOperation)
    for part in ("await in ", "book_an_order", "on the application lane of 'spot orders actor a'", "turn of 'spot orders'"):
        assert part in str(error)

    def join_the_orders() -> Any:
        return stage.spot.execute_actor("b", lambda: None).result(PATIENCE)

    error = outcome(stage.spot.execute_lifecycle(join_the_orders))
    assert isinstance(error, InvalidOperation)
    for part in ("result() in ", "join_the_orders", "on the lifecycle lane of 'spot orders'"):
        assert part in str(error)

    per_actor = Stage(single, PerActor, name="stock")
    error = outcome(per_actor.spot.execute_timer("tick", lambda: per_actor.spot.execute_actor("b", list).result()))
    assert re.search("would block for work of its own coordinator, at 'spot stock actor b'", str(error))


# -- what is no waiting for oneself ---------------------------------------------------------------------------------


def test_blocking_for_another_coordinator_is_allowed(pool):
    stage, other = Stage(pool, SpotWide), Stage(pool, SpotWide, name="other")
    for execute in entries(stage.spot).values():
        for target in entries(other.spot).values():
            assert execute(lambda target=target: target(lambda: "ran").result(PATIENCE)).result(PATIENCE) == "ran"


def test_a_task_that_a_turn_starts_may_wait_for_it(pool):
    stage = Stage(pool, SpotWide)

    async def somebody_else() -> Any:
        return await stage.spot.execute_actor("a", lambda: "ran")

    started = stage.spot.execute_actor("a", lambda: task.spawn(somebody_else(), pool=pool)).result(PATIENCE)
    assert started.result(PATIENCE) == "ran"


def test_waiting_for_what_is_there_already_is_allowed(pool):
    stage = Stage(pool, SpotWide)
    done = stage.spot.execute_actor("a", lambda: "ran")
    done.result(PATIENCE)
    for way in WAYS.values():
        assert stage.spot.execute_actor("a", asks(lambda: done, way)).result(PATIENCE)[0] == "ran"


# -- cycles of owners -----------------------------------------------------------------------------------------------


def ring(stages: list[Stage], wait: Wait, names: list[str]) -> list[Any]:
    """Each of the Actors waits for the next one, the last for the first, and all are in their handlers by then."""
    inside: list[Gate] = [Gate() for _ in stages]
    ends: list[Completion[Any]] = []

    def handler(index: int) -> Work:
        async def run() -> Any:
            after = (index + 1) % len(stages)
            inside[index]()
            submitted = stages[after].spot.execute_actor(names[after], lambda: "ran")
            return (await asks(lambda: submitted, wait)())[0]

        return run

    for index, stage in enumerate(stages):
        ends.append(stage.spot.execute_actor(names[index], handler(index)))
        inside[index].wait_begun()
    for gate in inside:
        gate.open()
    return [completion.result(PATIENCE) for completion in ends]


@pytest.mark.parametrize("way", ["keeps", "blocks"])
@pytest.mark.parametrize("owners", [2, 3])
def test_of_a_cycle_of_owners_the_last_to_wait_is_told_and_the_others_go_on(way, owners):
    with WorkerPool(owners) as pool:
        stages = [Stage(pool, PerActor, name=f"spot{index}") for index in range(owners)]
        ended = ring(stages, WAYS[way], ["a"] * owners)
        told = [error for error in ended if isinstance(error, InvalidOperation)]
        assert len(told) == 1
        assert ended.count("ran") == owners - 1
        assert "would wait in a cycle of owners" in str(told[0])
        for stage in stages:
            assert f"'spot {stage.spot.name} actor a'" in str(told[0])
            stage.at_rest()


def test_two_actors_of_one_spot_that_keep_their_turns_for_each_other_are_told(pool):
    stage = Stage(pool, PerActor)
    ended = ring([stage, stage], keeps, ["a", "b"])
    assert sorted(type(each).__name__ for each in ended) == ["InvalidOperation", "str"]


def test_two_actors_that_have_yielded_for_each_other_are_told(single):
    """Each keeps its claim, although the gate is given back."""
    stage = Stage(single, SpotWide)
    gate = stage.hold_spot()
    ends = [
        stage.spot.execute_actor(one, asks(lambda other=other: stage.spot.execute_actor(other, lambda: "ran"), gives_back))
        for one, other in (("a", "b"), ("b", "a"))
    ]
    gate.open()
    answers = [completion.result(PATIENCE)[0] for completion in ends]
    assert sorted(type(answer).__name__ for answer in answers) == ["InvalidOperation", "str"]
    stage.at_rest()


@pytest.mark.parametrize(
    ("place", "way"), [("the same Spot", "gives_back"), ("another Spot", "gives_back"), ("another Spot", "keeps")]
)
def test_an_actor_asked_back_by_work_that_it_waits_for_is_told(pool, place, way):
    """The one in the middle keeps nothing: it has given its gate back, and is waited for all the same."""
    stage = Stage(pool, SpotWide)
    middle = stage if place == "the same Spot" else Stage(pool, SpotWide, name="middle")
    answers: list[Any] = []

    async def asked() -> str:
        answers.append((await asks(lambda: stage.spot.execute_actor("a", lambda: "a's"), gives_back)())[0])
        return "asked"

    handled = stage.spot.execute_actor("a", asks(lambda: middle.spot.execute_spot(asked), WAYS[way]))
    assert handled.result(PATIENCE)[0] == "asked"
    assert isinstance(answers[0], InvalidOperation)
    assert "cycle of owners" in str(answers[0])
    stage.at_rest()


@types.coroutine
def slowly(wait: Coroutine[Any, Any, Any], gate: Gate) -> Generator[Any, None, Any]:
    """`await wait`, but stay on the turn for a while when it has begun to wait."""
    awaited = wait.send(None)
    gate()
    yield awaited
    try:
        wait.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("one wait, one step")


@pytest.mark.parametrize("kind", ["spot", "actor"])
def test_who_gives_the_gate_back_is_not_part_of_a_cycle_through_it(pool, kind):
    """Not even while it is still on its way out."""
    yields, keeps_it = Stage(pool, SpotWide, name="yields"), Stage(pool, PerActor, name="keeps")
    begun_to_wait, waits_for_the_gate = Gate(), Gate()

    async def needs_the_gate() -> Any:
        waits_for_the_gate()
        return await asks(lambda: yields.spot.execute_spot(lambda: "had the gate"), keeps)()

    async def handler() -> Any:
        return await slowly(keeps_it.spot.execute_spot(needs_the_gate).yield_(), begun_to_wait)

    handled = entries(yields.spot)[kind](handler)
    begun_to_wait.wait_begun()
    waits_for_the_gate.open()
    eventually(lambda: keeps_it.spot.snapshots()[0].suspended, "it waits for the gate")
    begun_to_wait.open()
    assert handled.result(PATIENCE)[0] == "had the gate"


WITHOUT_DEBUG = """
import threading
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation
from zlink_nogil.execution import ActorSerialExecutor
from zlink_nogil.scheduler import WorkerPool

assert not __debug__, "assertions are compiled out"
with WorkerPool(2) as pool:
    a, b = (ActorSerialExecutor(name, pool=pool) for name in "ab")
    inside = threading.Barrier(2)

    def asks(other):
        inside.wait(20)
        try:
            return other.execute_actor(str).result(0.2)
        except DeadlineExceeded:
            return "deadline"

    print(sorted(ended.result(20) for ended in [a.execute_actor(lambda: asks(b)), b.execute_actor(lambda: asks(a))]))
    try:
        a.execute_actor(lambda: a.execute_actor(str).result(20)).result(20)
    except InvalidOperation:
        print("itself: raises")
    a.close()
    b.close()
"""


def test_without_debug_a_cycle_ends_by_its_deadline_and_asking_oneself_raises():
    done = python(WITHOUT_DEBUG, "-O", "-X", "gil=0")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first in ("['', 'deadline']", "['deadline', 'deadline']")
    assert second == "itself: raises"
    assert (sys.flags.optimize, DeadlineExceeded.__name__) == (0, "DeadlineExceeded"), "here it raises: see above"
