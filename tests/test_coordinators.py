"""The entry points of the coordinators (design 3.5): what they take and refuse, and which queues they keep.

How work gives its turn back is in `test_coordinators_yield.py`, waiting for oneself in `_waits.py`, closing in
`_closing.py`, Actors that join a Spot in `_members.py`; what seed 000 asks of them is in `test_seed_000.py`.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import os
import weakref
from collections.abc import Iterator

import pytest
from background import Gate
from children import python
from spots import KINDS, MODES, Stage, entries, joined, let_others_run, policy, refused
from support import PATIENCE, outcome

from zlink_nogil.errors import Cancelled, CapacityExceeded
from zlink_nogil.execution import ActorSerialExecutor, PerActor, SessionSerialExecutor, SpotSerialExecutor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


# -- what they take -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["PerActor", "per_actor", 1, None, True, SpotWide.value, type(SpotWide)])
def test_a_mode_that_is_none_is_refused(pool, mode):
    with pytest.raises(TypeError, match="PerActor, SpotWide, Entry or Instance"):
        SpotSerialExecutor("spot", mode, pool=pool)


@pytest.mark.parametrize("size", [-1, 1.5, "3", None])
@pytest.mark.parametrize("entry", ["execute_spot", "execute_actor", "Actor", "session"])
def test_a_size_that_is_none_is_refused_and_nothing_is_changed(pool, entry, size):
    stage = Stage(pool, SpotWide)
    submit = {
        "execute_spot": lambda: stage.spot.execute_spot(refused, size),
        "execute_actor": lambda: stage.spot.execute_actor("a", refused, size),
        "Actor": lambda: ActorSerialExecutor("a", pool=pool).execute_actor(refused, size),
        "session": lambda: SessionSerialExecutor("s", pool=pool).execute_application(refused, size),
    }[entry]
    with pytest.raises(ValueError, match="payload_bytes"):
        submit()
    assert stage.reserved() == (0, 0)
    stage.actor("a", "goes on")
    assert stage.let_go() == ["goes on"]


@pytest.mark.parametrize("mode", KINDS)
def test_each_entry_returns_what_the_work_returns_or_raises(pool, mode):
    stage = Stage(pool, mode)
    for execute in entries(stage.spot).values():
        assert execute(lambda: 7).result(PATIENCE) == 7
        assert isinstance(outcome(execute([].pop)), IndexError)
        assert isinstance(outcome(execute(lambda: 1 // 0)), ZeroDivisionError)
    stage.at_rest()


@pytest.mark.parametrize("mode", KINDS)
def test_context_variables_follow_the_submitter(pool, mode):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    stage = Stage(pool, mode)
    for execute in entries(stage.spot).values():
        mine = contextvars.copy_context().run(lambda e=execute: (variable.set("mine"), e(variable.get))[1])
        assert [mine.result(PATIENCE), execute(variable.get).result(PATIENCE)] == ["mine", "nobody's"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle"])
def test_cancelled_before_it_begins_it_never_runs_and_its_room_is_free(pool, mode, kind):
    stage = Stage(pool, mode, items=3, actor_items=3, lifecycle_items=1)
    execute = entries(stage.spot)[kind]
    stage.hold(execute if kind != "lifecycle" else stage.spot.execute_spot)
    before = stage.reserved()
    for _ in range(20):
        completion = execute(refused)
        assert completion.cancel()
        assert isinstance(outcome(completion), Cancelled)
    heads = stage.reserved()[0] - before[0]
    assert heads == 0, "no head is left of an Actor whose first turn still runs"
    execute(stage.note("goes on"))
    assert stage.let_go() == ["goes on"]


def test_the_head_of_a_cancelled_actors_work_does_no_harm(pool):
    stage = Stage(pool, SpotWide)
    stage.hold_spot()
    completion = stage.spot.execute_actor("a", refused)
    assert completion.cancel()
    stage.actor("a", "the next takes its head")
    assert stage.spot.execute_actor("b", refused).cancel()
    assert stage.let_go() == ["the next takes its head"]


# -- capacities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_with_a_capacity_of_one_everywhere_everything_runs(pool, mode):
    stage = Stage(
        pool, mode, items=1, lifecycle_items=1, burst=1, cost=0, bytes=1,
        actor_items=1, actor_lifecycle_items=1, actor_burst=1, actor_cost=0, actor_bytes=1,
    )  # fmt: skip
    for _ in range(20):
        for name, execute in entries(stage.spot).items():
            assert execute(lambda name=name: name).result(PATIENCE) == name
        assert stage.spot.execute_actor("a", lambda: "payload", 1).result(PATIENCE) == "payload"
    for payload in (2, 2**70):
        with pytest.raises(CapacityExceeded, match="never fits"):
            stage.spot.execute_actor("a", refused, payload)
    reply = Completion[int](pool)
    waiting = [stage.spot.execute_actor(name, stage.waits(name, reply, "await")) for name in "abcd"]
    reply.succeed(1)
    assert [completion.result(PATIENCE) for completion in waiting] == [1] * 4, "accepted, so never refused"
    stage.at_rest()


@pytest.mark.parametrize("mode", MODES)
def test_a_full_spot_refuses_its_own_work_and_takes_lifecycle_work(pool, mode):
    stage = Stage(pool, mode, items=2, lifecycle_items=1)
    stage.hold_spot()
    stage.spot.execute_spot(stage.note("spot"))
    with pytest.raises(CapacityExceeded, match="application lane"):
        stage.spot.execute_spot(refused)
    stage.spot.execute_lifecycle(stage.note("lifecycle"))
    with pytest.raises(CapacityExceeded, match="lifecycle lane"):
        stage.spot.execute_lifecycle(refused)
    assert stage.let_go() == ["lifecycle", "spot"]


def test_accepted_work_of_actors_is_never_refused_later_and_heads_wait_in_order(pool):
    stage = Stage(pool, SpotWide, items=2)
    stage.hold_spot()
    names = [f"actor {index}" for index in range(20)]
    for name in names:
        stage.actor(name, name)
    with pytest.raises(CapacityExceeded):
        stage.spot.execute_spot(refused)
    assert stage.spot_reserved()[0] == 2, "the others have no room yet"
    assert stage.let_go() == names


def test_a_timer_of_a_per_actor_spot_has_room_of_its_own(pool):
    stage = Stage(pool, PerActor, items=1)
    stage.hold(lambda work: stage.spot.execute_timer("tick", work))
    with pytest.raises(CapacityExceeded):
        stage.spot.execute_timer("tick", refused)
    assert stage.spot.execute_timer("beat", lambda: "ran").result(PATIENCE) == "ran"
    stage.let_go()


# -- which queues are kept ------------------------------------------------------------------------------------------


NAMES = 100_000 if os.environ.get("ZLINK_FULL_ROUNDS") else 10_000
"""`ZLINK_FULL_ROUNDS=1` for the number in the name of the test, a quarter of a minute for each mode."""


def queues(stage: Stage) -> int:
    return len(stage.spot.snapshots())


@pytest.mark.parametrize("mode", MODES)
def test_who_has_seen_a_hundred_thousand_actors_does_not_keep_as_many_queues(pool, mode):
    stage = Stage(pool, mode)
    for index in range(NAMES):
        last = stage.spot.execute_actor(str(index), int)
        if index % 500 == 0:
            last.result(PATIENCE)
    last.result(PATIENCE)
    assert queues(stage) <= 1 + 2 * 500 + 64


def test_idle_timers_are_dropped_as_well_and_a_spot_wide_spot_has_none(pool):
    for mode, most in ((PerActor, 1 + 64), (SpotWide, 1)):
        stage = Stage(pool, mode)
        for index in range(1000):
            stage.spot.execute_timer(str(index), int).result(PATIENCE)
        assert queues(stage) <= most


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_with_work_that_waits_is_never_dropped(pool, mode):
    """Suspended, with the turn or without it, or waiting for its turn: order and claim survive any number of names."""
    stage, reply, beginning = Stage(pool, mode), Completion[int](pool), Gate()
    how = "yield" if mode is SpotWide else "await"
    stage.spot.execute_actor("suspended", stage.waits("first", reply, how))
    stage.spot.execute_actor("suspended", stage.note("second"))
    let_others_run(pool)
    for index in range(300):
        stage.spot.execute_actor(str(index), int).result(PATIENCE)
    assert any(each.name == "spot stage actor suspended" and each.suspended for each in stage.spot.snapshots())
    stage.spot.execute_actor("suspended", stage.note("third"))
    reply.succeed(1)
    assert stage.let_go() == ["first begins", "first goes on", "second", "third"]
    assert not beginning.begun()


def test_a_dropped_queue_is_made_again_and_holds_nothing_of_before(pool):
    stage = Stage(pool, PerActor)

    class Payload:
        pass

    payload = Payload()
    kept = weakref.ref(payload)
    stage.spot.execute_actor("a", functools.partial(id, payload)).result(PATIENCE)
    del payload
    for index in range(200):
        stage.spot.execute_actor(str(index), int).result(PATIENCE)
    gc.collect()
    assert kept() is None
    assert stage.spot.execute_actor("a", lambda: "made again").result(PATIENCE) == "made again"


# -- what they tell -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", KINDS)
def test_is_current_is_true_on_every_turn_of_the_coordinator_and_nowhere_else(pool, mode):
    stage, other = Stage(pool, mode), Stage(pool, mode, name="other")
    for execute in entries(stage.spot).values():
        assert execute(lambda: (stage.spot.is_current(), other.spot.is_current())).result(PATIENCE) == (True, False)
    assert not stage.spot.is_current()


def test_snapshots_tell_who_has_the_turn_since_when_and_who_waits(pool):
    stage, reply = Stage(pool, SpotWide), Completion[int](pool)
    stage.spot.execute_actor("a", stage.waits("a", reply))
    gate = stage.hold_spot()
    stage.actor("b", "b")
    own, *actors = stage.spot.snapshots()
    assert (own.name, own.waiting, own.reserved_items) == ("spot stage", 1, 3)
    assert own.held_seconds >= 0
    assert "Gate" in own.holder
    assert ["handler" in each for each in own.suspended] == [True]
    assert [(each.name, each.waiting) for each in actors] == [("spot stage actor a", 0), ("spot stage actor b", 1)]
    gate.open()
    reply.succeed(1)
    stage.let_go()
    assert {each.holder for each in stage.spot.snapshots()} == {None}
    assert repr(stage.spot) == "<SpotSerialExecutor 'stage' SpotWide>"


def test_one_coordinator_may_use_the_policy_of_each_kind(pool):
    stage = Stage(pool, PerActor, items=1, actor_items=2)
    member = joined(stage, "m", items=3)
    for execute, room in (
        (stage.spot.execute_spot, 1),
        (lambda work: stage.spot.execute_actor("a", work), 2),
        (member.execute_actor, 3),
        (SessionSerialExecutor("s", policy=policy(items=4), pool=pool).execute_application, 4),
    ):
        gate = stage.hold(execute)
        for _ in range(room - 1):
            execute(lambda: None)
        with pytest.raises(CapacityExceeded, match=f"{room} of {room} items"):
            execute(refused)
        gate.open()
    stage.let_go()


# -- a child process ------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, threading
sys.path.insert(0, "tests")
from spots import KINDS, Stage, entries
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution import ActorSerialExecutor, SessionSerialExecutor
from zlink_nogil.scheduler import Completion, WorkerPool

pool = WorkerPool(2)
stages = [Stage(pool, mode) for mode in KINDS]
held = threading.Event()
coordinators = [stage.spot for stage in stages]
coordinators += [ActorSerialExecutor("a", pool=pool), SessionSerialExecutor("s", pool=pool)]
reply = Completion(pool)
ended = [execute(stage.waits(name, reply, "await")) for stage in stages for name, execute in entries(stage.spot).items()]
coordinators.append(Stage(pool, KINDS[0], name="lane held").spot)
inside = threading.Event()
threading.Thread(target=coordinators[-1]._lane.run, args=(lambda: (inside.set(), held.wait(20)),)).start()
inside.wait(20)
child = os.fork()
if child == 0:
    refused = tried = 0
    for coordinator in coordinators:
        asks = [coordinator.close, getattr(coordinator, "snapshots", None) or coordinator.snapshot]
        for call in [*(lambda e=e: e(print) for e in entries(coordinator).values()), *asks]:
            tried += 1
            try:
                call()
            except InvalidOperation:
                refused += 1
    os._exit(0 if refused == tried > 30 else 1)
_, status = os.waitpid(child, 0)
held.set()
reply.succeed("parent")
print(os.waitstatus_to_exitcode(status), {completion.result(20) for completion in ended})
for coordinator in coordinators:
    coordinator.close()
pool.close()
"""


def test_in_a_forked_child_everything_is_refused_and_the_parent_is_not_disturbed():
    done = python(FORKED, "-X", "gil=0", "-W", "ignore::DeprecationWarning")
    assert (done.stdout.strip(), done.stderr) == ("0 {'parent'}", "")
