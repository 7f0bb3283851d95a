"""How coordinators end (design 3.5, 3.4): what was accepted ends, what comes later is refused, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from spots import KINDS, MODES, Stage, entries, joined, let_others_run, policy, refused, run_out
from support import PATIENCE, eventually, outcome, together

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.execution import ActorSerialExecutor, SessionSerialExecutor, SpotSerialExecutor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool

type Coordinator = SpotSerialExecutor | ActorSerialExecutor | SessionSerialExecutor


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


def make(pool: WorkerPool, kind: str) -> Coordinator:
    if kind == "Actor":
        return ActorSerialExecutor("stage", pool=pool)
    if kind == "session":
        return SessionSerialExecutor("stage", pool=pool)
    return Stage(pool, next(mode for mode in KINDS if repr(mode) == kind)).spot


COORDINATORS = ["PerActor", "SpotWide", "Entry", "Instance", "Actor", "session"]


def first(coordinator: Coordinator) -> Callable[[Callable[[], Any]], Completion[Any]]:
    return next(iter(entries(coordinator).values()))


# -- what is refused, what ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COORDINATORS)
def test_a_closed_one_refuses_everything(pool, kind):
    coordinator = make(pool, kind)
    kept = entries(coordinator)
    coordinator.close()
    for execute in kept.values():
        with pytest.raises(ShuttingDown, match="stage"):
            execute(refused)
    coordinator.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_spot_takes_no_member(pool, mode):
    stage, actor = Stage(pool, mode), ActorSerialExecutor("late", pool=pool)
    stage.spot.close()
    with pytest.raises(ShuttingDown, match="'stage'"):
        actor.execute_actor(lambda: stage.spot.admit_member("late", actor)).result(PATIENCE)
    assert actor.execute_actor(lambda: "on its own still").result(PATIENCE) == "on its own still"


@pytest.mark.parametrize("kind", COORDINATORS)
def test_accepted_work_of_every_kind_ends_before_close_returns(pool, kind):
    coordinator, gate, ran = make(pool, kind), Gate(), []
    first(coordinator)(gate)
    gate.wait_begun()
    for name, execute in entries(coordinator).items():
        execute(lambda name=name: ran.append(name))
    closes = [Background(coordinator.close, PATIENCE) for _ in range(2)]
    gate.open()
    for close in closes:
        close.result()
        assert sorted(ran) == sorted(entries(coordinator)), "also for the second close"
    coordinator.close()


@pytest.mark.parametrize("mode", MODES)
def test_accepted_work_of_members_ends_before_close_returns(pool, mode):
    stage = Stage(pool, mode)
    member = joined(stage, "m")
    stage.hold(lambda work: stage.spot.execute_actor("m", work))
    stage.spot.execute_actor("m", stage.note("through the Spot"))
    member.execute_actor(stage.note("to the Actor"))
    close = Background(stage.spot.close, PATIENCE)
    eventually(lambda: is_closed(stage.spot), "the Spot is closed")
    for execute in (lambda work: stage.spot.execute_actor("m", work), member.execute_actor, member.execute_lifecycle):
        with pytest.raises(ShuttingDown):
            execute(refused)
    assert close.running()
    stage.let_go()
    close.result()
    assert stage.seen == ["through the Spot", "to the Actor"]
    assert member.snapshot().reserved_items == 0


def is_closed(spot: SpotSerialExecutor) -> bool:
    try:
        spot.execute_timer("probe", lambda: None)
    except ShuttingDown:
        return True
    return False


@pytest.mark.parametrize("kind", COORDINATORS)
def test_on_a_turn_of_its_own_close_only_marks_it(pool, kind):
    """From every kind of work; what was accepted runs behind it."""
    for name in entries(make(pool, kind)):
        coordinator, ran = make(pool, kind), []

        def closes(coordinator: Coordinator = coordinator, ran: list[str] = ran) -> None:
            first(coordinator)(lambda: ran.append("accepted"))
            coordinator.close()
            with pytest.raises(ShuttingDown):
                first(coordinator)(refused)
            ran.append("closed")

        if name == "final":  # it has refused what is new already
            continue
        entries(coordinator)[name](closes).result(PATIENCE)
        coordinator.close(PATIENCE)
        assert sorted(ran) == ["accepted", "closed"]


def test_closing_one_coordinator_in_a_handler_of_another_waits(pool):
    stage, other = Stage(pool, SpotWide), Stage(pool, SpotWide, name="other")
    other.spot.execute_actor("a", other.note("ended"))
    stage.spot.execute_spot(lambda: (other.spot.close(PATIENCE), stage.seen.extend(other.seen))).result(PATIENCE)
    assert stage.seen == ["ended"]


# -- when the time is over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle", "member"])
def test_a_stuck_handler_is_named_and_what_waits_behind_it_ends_once(pool, mode, kind):
    stage = Stage(pool, mode)
    execute = joined(stage, "m").execute_actor if kind == "member" else entries(stage.spot)[kind]
    gate = stage.hold(execute)
    behind = [execute(refused) for _ in range(3)]
    ends: list[Completion[Any]] = []
    for completion in behind:
        completion.add_done_callback(ends.append)
    with pytest.raises(DeadlineExceeded, match=r"still running 0.01 s after .*(spot stage|actor m)"):
        stage.spot.close(0.01)
    assert [type(outcome(completion)) for completion in behind] == [ShuttingDown] * 3
    assert gate.thread.is_alive()
    stage.let_go()
    stage.spot.close(PATIENCE)
    eventually(lambda: len(ends) == 3, "each callback")
    assert sorted(map(id, ends)) == sorted(map(id, behind))


@pytest.mark.parametrize("kind", COORDINATORS)
def test_close_ends_by_its_deadline_although_every_worker_is_stuck(kind):
    with WorkerPool(1) as pool:
        coordinator, gate = make(pool, kind), Gate()
        first(coordinator)(gate)
        gate.wait_begun()
        closing = Background(coordinator.close, 0.01)
        with pytest.raises(DeadlineExceeded):
            closing.result()
        assert not gate._opened.is_set()
        gate.open()
        coordinator.close(PATIENCE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["spot", "actor", "timer", "lifecycle", "member"])
def test_a_handler_that_keeps_its_turn_gets_shutting_down_at_its_await(pool, mode, kind):
    stage = Stage(pool, mode)
    execute = joined(stage, "m").execute_actor if kind == "member" else entries(stage.spot)[kind]
    handled = execute(stage.waits("handler", Completion(pool), "await"))
    behind = execute(refused)
    eventually(lambda: stage.seen, "it has begun")
    run_out(stage.spot)
    assert [type(outcome(completion)) for completion in (handled, behind)] == [ShuttingDown] * 2
    assert stage.seen == ["handler begins", "handler ShuttingDown"]


def test_a_handler_that_waits_on_and_on_is_named(pool):
    stage, waits, gate = Stage(pool, SpotWide), [], Gate()

    async def stubborn() -> None:
        waits.append(Completion(pool))
        try:
            return await waits[-1].yield_()
        except ShuttingDown:
            gate()

    stage.spot.execute_actor("a", stubborn)
    stage.spot.execute_spot(lambda: None).result(PATIENCE)
    with pytest.raises(DeadlineExceeded, match="'spot stage actor a'"):
        stage.spot.close(0.01)
    gate.open()
    stage.spot.close(PATIENCE)


def test_closes_at_the_same_time_end_everything_once(pool):
    for mode in MODES * 5:
        stage, ends = Stage(pool, mode), []
        reply = Completion[int](pool)
        completions = [execute(stage.waits(name, reply, "await")) for name, execute in entries(stage.spot).items()] + [
            execute(stage.note(name)) for name, execute in entries(stage.spot).items()
        ]
        for completion in completions:
            completion.add_done_callback(ends.append)
        seen = together(*[lambda stage=stage: run_out(stage.spot)] * 3)
        assert seen == [None] * 3
        eventually(lambda ends=ends, completions=completions: len(ends) == len(completions), "each callback")
        assert len({id(completion) for completion in ends}) == len(completions)
        assert {type(outcome(completion)) for completion in completions} <= {ShuttingDown, str}


# -- a pool that is closed first ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COORDINATORS)
def test_on_a_closed_pool_what_is_submitted_ends_and_close_returns(kind):
    with WorkerPool(1) as pool:
        coordinator = make(pool, kind)
    for execute in entries(coordinator).values():
        try:
            completion = execute(refused if execute.__name__ != "execute_final" else lambda: None)
        except ShuttingDown:
            continue
        assert isinstance(outcome(completion), ShuttingDown) or execute.__name__ == "execute_final"
    coordinator.close(PATIENCE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["spot", "actor", "timer"])
def test_close_unwinds_what_a_closed_pool_left_suspended(mode, kind):
    with WorkerPool(1) as pool:
        stage = Stage(pool, mode)
        handled = entries(stage.spot)[kind](stage.waits("handler", Completion(pool), "await"))
        let_others_run(pool)
    run_out(stage.spot)
    assert isinstance(outcome(handled), ShuttingDown)
    assert stage.seen == ["handler begins", "handler ShuttingDown"]


# -- the last work of a session, and of a Spot ----------------------------------------------------------------------


@pytest.fixture
def session(pool: WorkerPool) -> SessionSerialExecutor:
    return SessionSerialExecutor("stage", pool=pool)


def test_the_final_work_runs_after_everything_accepted_and_refuses_what_is_new(pool, session):
    gate, ran, reply = Gate(), [], Completion[int](pool)
    session.execute_application(gate)
    gate.wait_begun()

    async def packet() -> None:
        await reply
        ran.append("packet")

    session.execute_application(packet)
    final = session.execute_final(lambda: ran.append("final"))
    session_entries = entries(session)
    for execute in session_entries.values():
        with pytest.raises(ShuttingDown):
            execute(refused)
    gate.open()
    reply.succeed(1)
    final.result(PATIENCE)
    assert ran == ["packet", "final"]
    session.close()


def test_the_final_work_runs_on_an_idle_session_and_needs_no_room(pool):
    session = SessionSerialExecutor("stage", policy=policy(lifecycle_items=1), pool=pool)
    gate = Gate()
    session.execute_control(gate)
    gate.wait_begun()
    final = session.execute_final(lambda: "last words")
    gate.open()
    assert final.result(PATIENCE) == "last words"
    idle = SessionSerialExecutor("idle", pool=pool)
    assert idle.execute_final(lambda: "last words").result(PATIENCE) == "last words"


def test_the_final_work_runs_also_when_the_time_is_over(pool, session):
    ran: list[str] = []
    begun = threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await Completion[None](pool)
        finally:
            ran.append("unwound")

    packet, behind = session.execute_application(waits), session.execute_application(refused)
    final = session.execute_final(lambda: ran.append("final"))
    assert begun.wait(PATIENCE)
    run_out(session)
    assert [type(outcome(completion)) for completion in (packet, behind)] == [ShuttingDown] * 2
    assert (final.done(), ran) == (True, ["unwound", "final"])


def test_the_final_work_may_fail_or_be_cancelled(pool):
    failing, cancelled = (SessionSerialExecutor("stage", pool=pool) for _ in range(2))
    assert isinstance(outcome(failing.execute_final([].pop)), IndexError)
    gate = Gate()
    cancelled.execute_application(gate)
    gate.wait_begun()
    final = cancelled.execute_final(refused)
    assert final.cancel()
    assert isinstance(outcome(final), Cancelled)
    gate.open()
    for session in (failing, cancelled):
        session.close(PATIENCE)
        assert session.snapshot().reserved_items == 0
        with pytest.raises(ShuttingDown):
            session.execute_final(refused)


def test_waiting_for_the_final_work_on_a_turn_before_it_raises(session):
    def turn() -> Completion[Any]:
        final = session.execute_final(lambda: "ran")
        with pytest.raises(InvalidOperation):
            final.result(PATIENCE)
        return final

    assert session.execute_application(turn).result(PATIENCE).result(PATIENCE) == "ran"


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_a_spot_runs_its_final_work_once_when_nothing_else_is_left(pool, mode):
    stage = Stage(pool, mode)
    for name, execute in entries(stage.spot).items():
        execute(stage.note(name))
    task.spawn(stage.spot.end(PATIENCE, stage.note("final")), pool=pool).result(PATIENCE)
    assert stage.seen[-1] == "final"
    assert len(stage.seen) == len(entries(stage.spot)) + 1
    with pytest.raises(ShuttingDown):
        task.spawn(stage.spot.end(PATIENCE, refused), pool=pool).result(PATIENCE)


def test_the_end_of_an_actor_runs_its_final_work_after_its_time_is_over(pool):
    actor, ran, begun = ActorSerialExecutor("a", pool=pool), [], threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await Completion[None](pool)
        finally:
            ran.append("unwound")

    handled = actor.execute_actor(waits)
    assert begun.wait(PATIENCE)
    task.spawn(actor.end(0.5, lambda: ran.append("final")), pool=pool).result(PATIENCE)
    assert isinstance(outcome(handled), ShuttingDown)
    assert ran == ["unwound", "final"]
