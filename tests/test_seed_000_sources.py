"""The inner conditions of seed 000, which nobody can see from outside: over the source, or over a recorded history."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from spots import Stage, let_others_run, missing, named_tests

import zlink_nogil
from zlink_nogil.execution import ActorSerialExecutor, PerActor, SessionSerialExecutor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool

CONDITIONS = {
    "2: nothing but the coordinator has an Actor's or a timer's queue in a field": (
        "test_only_coordinators_have_queues_in_fields",
        "test_nobody_else_reaches_into_a_coordinator",
    ),
    "2: the coordinators of Actors and sessions have no map of queues": ("test_actors_and_sessions_have_no_map",),
    "5: no payload is passed where a head is put on the Spot's queue": (
        "test_a_head_is_made_and_put_without_a_payload",
        "test_a_head_reserves_the_fixed_cost_whatever_waits_behind_it",
    ),
    "6.7: nothing goes on after a yield but through the queue": (
        "test_a_coroutine_is_stepped_in_one_place",
        "test_what_ends_a_wait_only_puts_the_turn_in_its_line",
        "test_a_continuation_waits_for_its_turn",
        "test_a_continuation_does_not_run_on_the_stack_that_ended_the_wait",
    ),
    "6.5: who submits wakes the loop outside the critical section": ("test_the_loop_is_never_started_under_the_gate",),
    "7: no value of a registry is read twice for one message": (),  # GAP: comes with zlink_nogil.spots
    "8: what assumes an upper layer's order says so": (
        "test_assertions.py::test_what_is_documented_on_lane_asserts_it",
        "test_assertions.py::test_the_walk_finds_what_is_missing",
        "test_moving_an_actor_asserts_that_it_is_its_turn",
    ),
}

PACKAGE = Path(zlink_nogil.__file__).parent
EXECUTION = PACKAGE / "execution"
TREES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
OF_EXECUTION = {name: tree for name, tree in TREES.items() if name.startswith("execution/")}

type Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_every_condition_has_a_test():
    mentioned = [reference for references in CONDITIONS.values() for reference in references]
    assert missing(mentioned, __file__) == []
    assert named_tests(__file__) - set(mentioned) == {"test_every_condition_has_a_test"}


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def function(file: str, owner: str, name: str) -> Function:
    (found,) = [
        node
        for each in classes(TREES[file])
        if each.name == owner
        for node in each.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return found


def calls_of(tree: ast.AST, method: str) -> list[ast.Call]:
    """`anything.method(...)`"""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def names(node: ast.AST | None) -> set[str]:
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | self_calls(node)


def self_calls(node: ast.AST) -> set[str]:
    return {
        f"self.{each.func.attr}"
        for each in ast.walk(node)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "self"
    }


# -- 2. who has queues ----------------------------------------------------------------------------------------------

QUEUES = {"SerialExecutionQueue", "QueueMap", "self._queue", "self._make_actor_queue"}
FIELDS = {
    ("execution/spot.py", "SpotSerialExecutor"): {"_spot", "_actors", "_timers", "_ending"},
    ("execution/actor.py", "ActorSerialExecutor"): {"_queue"},
    ("execution/session.py", "SessionSerialExecutor"): {"_queue"},
    ("execution/_queue_map.py", "QueueMap"): {"_queues"},  # the coordinator's map
    ("messaging/owners.py", "Owners"): {"_queues"},  # of the keys of channel calls: neither Actors nor timers
}


def fields_with_queues(owner: ast.ClassDef) -> set[str]:
    """What is assigned or declared with a queue, or something that holds queues, in its value or its type."""
    found = set()
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign):
            targets, mentioned = [node.target], names(node.annotation) | names(node.value)
        elif isinstance(node, ast.Assign):
            targets, mentioned = node.targets, names(node.value)
        else:
            continue
        for target in targets:
            declared = isinstance(target, ast.Name) and node in owner.body
            if (isinstance(target, ast.Attribute) or declared) and mentioned & QUEUES:
                found.add(target.attr if isinstance(target, ast.Attribute) else target.id)
    return found


def test_only_coordinators_have_queues_in_fields():
    found = {
        (file, owner.name): fields
        for file, tree in TREES.items()
        for owner in classes(tree)
        if (fields := fields_with_queues(owner))
    }
    assert found == FIELDS


def test_nobody_else_reaches_into_a_coordinator():
    reached = [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("_spot", "_queue", "_queues", "_actors", "_timers")
        and ast.unparse(node.value) != "self"
    ]
    assert reached == []


def test_actors_and_sessions_have_no_map(pool):
    for coordinator in (ActorSerialExecutor("a", pool=pool), SessionSerialExecutor("s", pool=pool)):
        fields = {name: getattr(coordinator, name) for name in type(coordinator).__slots__}
        assert fields.keys() == {"name", "_queue"}
        assert not any(isinstance(value, Mapping) for value in fields.values())
        assert not hasattr(coordinator, "__dict__")


# -- 5. heads -------------------------------------------------------------------------------------------------------


def test_a_head_is_made_and_put_without_a_payload():
    made = [
        call
        for tree in TREES.values()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Head"
    ]
    put = [call for tree in TREES.values() for call in calls_of(tree, "put_head")]
    assert [ast.unparse(call) for call in made] == ["Head(self)"]
    assert [ast.unparse(call) for call in put] == ["self.outer.put_head(self._head)"]
    initializer = function("execution/_head.py", "Head", "__init__")
    assert [ast.unparse(call) for call in calls_of(initializer, "__init__")] == ["super().__init__()"]
    putting = function("execution/_loop.py", "Loop", "put_head")
    assert "payload_bytes" not in ast.unparse(putting)
    assert "self._fixed_cost" in ast.unparse(putting)


def test_a_head_reserves_the_fixed_cost_whatever_waits_behind_it(pool):
    stage = Stage(pool, SpotWide, cost=7)
    stage.hold_spot()
    for actor, size in (("a", 0), ("b", 5_000_000)):
        for _ in range(3):
            stage.spot.execute_actor(actor, lambda: None, size)
    assert stage.spot_reserved() == (3, 21), "one head for each Actor, and what holds the Spot"
    assert stage.reserved()[1] > 15_000_000
    stage.let_go()


# -- 6. one way on --------------------------------------------------------------------------------------------------


def users_of(method: str) -> set[str]:
    """The functions of the package's execution layer that call `anything.method(...)`."""
    return {
        f"{owner.name}.{node.name}"
        for tree in OF_EXECUTION.values()
        for owner in classes(tree)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and calls_of(node, method)
    }


def test_a_coroutine_is_stepped_in_one_place():
    assert users_of("send") | users_of("throw") == {"Turn._step"}
    assert [ast.unparse(call) for call in calls_of(function("execution/turn.py", "Turn", "advance"), "run")] == [
        "self._context.run(self._step, interruption)"
    ]
    assert users_of("_step") == set(), "and nobody else steps it"
    assert users_of("advance") == {"Loop.run_slice", "Loop.run_head"}
    assert users_of("run_head") == {"Head.advance"}
    assert users_of("run_slice") == {"Loop._run_out"}, "but for the pool's workers"


def test_what_ends_a_wait_only_puts_the_turn_in_its_line():
    """Each waker is `_resume`; that and the interruptions notify and schedule, and step nothing."""
    waits = [call for tree in OF_EXECUTION.values() for call in calls_of(tree, "wait_for")]
    assert {ast.unparse(call.args[1]) for call in waits} == {"functools.partial(self._resume, item)"}
    assert self_calls(function("execution/_loop.py", "Loop", "_resume")) == {"self._notify", "self._schedule"}
    assert self_calls(function("execution/_loop.py", "Loop", "resume_head")) == {"self._notify", "self._schedule"}
    assert self_calls(function("execution/_loop.py", "Loop", "_notify")) == {"self._wake", "self._move"}
    assert users_of("_notify") == {
        "Loop._suspend",
        "Loop._resume",
        "Loop.resume_head",
        "Loop.hold_head",
        "SerialExecutionQueue.expire",
        "SerialExecutionQueue.interrupt",
        "SerialExecutionQueue.cancel",
    }
    scheduling = ast.unparse(function("execution/_loop.py", "Loop", "_schedule"))
    assert all(way in scheduling for way in ("put_head", "resume_head", "self.pool.submit", "self.pool.run_late"))


@pytest.mark.parametrize("kind", ["actor", "spot"])
def test_a_continuation_waits_for_its_turn(pool, kind):
    stage, reply = Stage(pool, SpotWide), Completion[str](pool)
    handler = stage.waits("handler", reply)
    handled = stage.spot.execute_spot(handler) if kind == "spot" else stage.spot.execute_actor("a", handler)
    stage.hold_spot()
    stage.spot.execute_spot(stage.note("was there before"))
    reply.succeed("there")
    let_others_run(pool)
    assert (stage.seen, handled.done()) == (["handler begins"], False), "the outcome is there, the turn is not"
    assert stage.let_go() == ["handler begins", "was there before", "handler goes on"]


@pytest.mark.parametrize(("mode", "how"), [(PerActor, "await"), (SpotWide, "await"), (SpotWide, "yield")])
def test_a_continuation_does_not_run_on_the_stack_that_ended_the_wait(mode, how):
    with WorkerPool(1) as pool:
        stage, reply = Stage(pool, mode), Completion[str](pool)
        stage.spot.execute_actor("a", stage.waits("a", reply, how))
        let_others_run(pool)
        other = Stage(pool, mode)

        def end_the_wait() -> None:
            reply.succeed("there")
            stage.seen.append("ended the wait")

        other.spot.execute_spot(end_the_wait)
        assert stage.let_go() == ["a begins", "ended the wait", "a goes on"]


def test_the_loop_is_never_started_under_the_gate():
    gated = [
        node
        for tree in OF_EXECUTION.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and any(ast.unparse(item.context_expr) == "self._gate" for item in node.items)
    ]
    assert len(gated) > 10, "the walk finds what it looks for"
    forbidden = {"_schedule", "submit", "run_late", "run_slice", "advance", "succeed", "fail", "wait_for", "put_head"}
    assert [
        f"{call.lineno} {ast.unparse(call)}" for block in gated for name in forbidden for call in calls_of(block, name)
    ] == []


# -- 8. what is assumed is asserted ---------------------------------------------------------------------------------


def test_moving_an_actor_asserts_that_it_is_its_turn(pool):
    stage, actor = Stage(pool, SpotWide), ActorSerialExecutor("a", pool=pool)
    with pytest.raises(AssertionError, match="must run in a turn of"):
        stage.spot.admit_member("a", actor)
    with pytest.raises(AssertionError, match="must run in a turn of"):
        stage.spot.execute_spot(lambda: stage.spot.admit_member("b", actor)).result()
