"""Failure kinds of section C, and the lane and capacity kinds of D: one test each, named after the kind.

`KINDS` says where each kind is looked at; what is new here are turns that are given back, coordinators, and storms of asks
and stops. The numbers of rounds are small, `ZLINK_FULL_ROUNDS=1` makes them those of the list of kinds.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Gate
from children import python
from spots import MODES, Clock, Stage, entries, joined, let_others_run, missing, named_tests, refused
from support import PATIENCE, outcome, together

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, CapacityExceeded, ShuttingDown
from zlink_nogil.execution import ActorSerialExecutor, PerActor, SerialExecutionQueue, SessionSerialExecutor, SpotWide
from zlink_nogil.scheduler import Completion, WorkerPool

FULL = bool(os.environ.get("ZLINK_FULL_ROUNDS"))

KINDS = {
    "C1 byte accounting differs between enqueue and dequeue": (
        "test_byte_accounting_differs_between_enqueue_and_dequeue",
        "test_queue.py::test_bytes_come_back_to_zero_after_every_kind_of_ending",
        "test_queue_conservation.py::test_accepted_work_ends_exactly_once_in_order_and_nothing_stays_reserved",
    ),
    "C2 an item larger than the whole capacity waits for ever and blocks those behind it": (
        "test_an_item_larger_than_the_whole_capacity_blocks_those_behind_it",
        "test_queue.py::test_an_item_larger_than_the_whole_is_refused_at_once_and_small_ones_flow",
    ),
    "C3 messages and stop requests that are in the queue when the owner ends": (
        "test_messages_and_stop_requests_in_the_queue_when_the_owner_ends",
    ),
    "C4 a turn that fails or is stopped while awaiting leaves the queue paused, or resumes it twice": (
        "test_a_turn_that_fails_or_is_stopped_while_awaiting_pauses_the_queue_or_resumes_it_twice",
        "test_queue_suspending.py::test_a_handler_that_fails_after_a_wait_does_not_stop_its_queue",
        "test_queue_suspending.py::test_cancelled_while_waiting_it_ends_before_the_next_turn_begins",
        "test_queue_suspending.py::test_wakes_and_cancels_at_the_same_instant_step_it_once",
    ),
    "C5 one lane's blocked item holds back the other lanes": ("test_one_lanes_blocked_item_holds_back_the_others",),
    "C6 a failed start poisons the key; a stopping owner bounces new messages to itself": (
        "test_a_failed_start_poisons_the_key",
        "test_a_stopping_owner_handles_messages_after_its_stop_hook",
    ),
    "C7 a budget counted in messages is not a time budget": (
        "test_a_budget_counted_in_messages_is_not_a_time_budget",
        "test_queue.py::test_the_time_budget_ends_a_slice_between_items",
    ),
    "D1 timeout or cancel at the moment of the grant": (
        "test_cancel_at_the_moment_of_the_grant_loses_the_room",
        "test_queue.py::test_cancel_racing_the_start_ends_it_once",
        "test_state_lane.py::test_an_interrupted_waiter_does_not_swallow_a_hand_over",
    ),
    "D2 renewal outlives release": (),  # GAP: leases come with zlink_nogil.reservations
    "D3 a handle freed by the garbage collector, while the same thread is inside": (
        "test_a_finalizer_that_posts_to_an_owner_hangs_its_thread",
    ),
}


def test_every_kind_is_looked_at():
    mentioned = [reference for references in KINDS.values() for reference in references]
    assert missing(mentioned, __file__) == []
    assert named_tests(__file__) - set(mentioned) == {"test_every_kind_is_looked_at"}


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


class Feeder:
    """Ends what handlers wait for, soon."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._awaited: list[Completion[None]] = []
        self._over = threading.Event()
        self._thread = Background(self._feed)

    def awaited(self) -> Completion[None]:
        completion: Completion[None] = Completion(self._pool)
        self._awaited.append(completion)
        return completion

    def _feed(self) -> None:
        while not self._over.wait(0.0005):
            with contextlib.suppress(IndexError):
                while True:
                    self._awaited.pop(0).succeed(None)

    def stop(self) -> None:
        self._over.set()
        self._thread.result()


@pytest.fixture
def feeder(pool: WorkerPool) -> Iterator[Feeder]:
    feeder = Feeder(pool)
    yield feeder
    feeder.stop()


# -- C --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_byte_accounting_differs_between_enqueue_and_dequeue(pool, feeder, mode):
    """Of an Actor and, in a SpotWide Spot, of the heads: grown, cleared, expired, cancelled, failed, given back."""
    stage = Stage(pool, mode, items=3, actor_bytes=1_000_000, actor_items=20)
    accepted: list[Completion[Any]] = []

    async def waits(payload: bytearray) -> None:
        payload.extend(b"y" * 100)
        await (feeder.awaited().yield_() if mode is SpotWide else feeder.awaited())
        payload.clear()

    def submit(who: int) -> None:
        dice = random.Random(who)
        for _ in range(100_000 // 3 if FULL else 200):
            payload = bytearray(dice.randrange(100_000))
            work = dice.choice((payload.clear, lambda p=payload: p[len(p)], lambda p=payload: waits(p)))
            try:
                completion = stage.spot.execute_actor(dice.choice("abc"), work, len(payload))
            except CapacityExceeded:
                accepted[-1].exception(PATIENCE)
                continue
            payload.extend(b"x" * 50)  # by the producer, after posting: counted once, at admission
            accepted.append(completion)
            if dice.random() < 0.2:
                completion.cancel()
            items, size = stage.reserved()
            assert min(items, size) >= 0

    assert together(*[lambda who=who: submit(who) for who in range(3)]) == [None] * 3
    stage.at_rest()
    assert stage.spot.execute_actor("a", lambda: "admitted", 999_744).result(PATIENCE) == "admitted"


@pytest.mark.parametrize("mode", MODES)
def test_an_item_larger_than_the_whole_capacity_blocks_those_behind_it(pool, mode):
    stage = Stage(pool, mode, actor_bytes=1000, actor_cost=0, actor_items=150)
    gate = stage.hold_actor("a")
    for size in (2000, 1001):
        with pytest.raises(CapacityExceeded, match="never fits"):
            stage.spot.execute_actor("a", refused, size)
    assert stage.spot.snapshots()[1].reserved_bytes == 0, "no part of it is left"
    small = together(*[lambda: [stage.spot.execute_actor("a", lambda: "small", 10) for _ in range(24)] for _ in range(4)])
    with pytest.raises(CapacityExceeded, match="do not fit"):
        stage.spot.execute_actor("a", refused, 1000)
    gate.open()
    assert {completion.result(PATIENCE) for completions in small for completion in completions} == {"small"}
    for size in (1000, 0):
        assert stage.spot.execute_actor("a", lambda: "fits", size).result(PATIENCE) == "fits"
    stage.at_rest()
    stage.hold_actor("a")
    for _ in range(149):
        stage.actor("a", "bytes fit")
    with pytest.raises(CapacityExceeded, match="150 of 150 items"):
        stage.spot.execute_actor("a", refused)
    stage.let_go()


@pytest.mark.parametrize("kind", ["Actor", "member", "session", "PerActor", "SpotWide"])
def test_messages_and_stop_requests_in_the_queue_when_the_owner_ends(pool, feeder, kind):
    """What one sender posted before it asked to stop is handled, as long as there is time."""
    for _ in range(10_000 if FULL else 8):
        stage = Stage(pool, PerActor if kind == "PerActor" else SpotWide)
        owner: Any = stage.spot
        if kind == "Actor":
            owner = ActorSerialExecutor("owner", pool=pool)
        elif kind == "member":
            owner = joined(stage, "owner")
        elif kind == "session":
            owner = SessionSerialExecutor("owner", pool=pool)
        execute = next(iter(entries(owner).values()))
        ran: list[str] = []

        async def answers(may_yield: bool = kind in ("member", "SpotWide")) -> str:
            await (feeder.awaited().yield_() if may_yield else feeder.awaited())
            return "answered"

        def ask(execute: Callable[..., Any] = execute, answers: Callable[[], Any] = answers) -> list[str]:
            ends = []
            for _ in range(3):
                try:
                    ends.append(outcome(execute(answers)))
                except ShuttingDown as error:
                    ends.append(error)
            return [end if isinstance(end, str) else type(end).__name__ for end in ends]

        def last_words(execute: Callable[..., Any] = execute, owner: Any = owner, ran: list[str] = ran) -> str:
            try:
                words = execute(lambda: ran.append("last words"))
            except ShuttingDown:
                return "refused"
            owner.close(PATIENCE)
            assert words.done()
            return "posted"

        seen = together(*[ask] * 8, *[lambda owner=owner: owner.close(PATIENCE)] * 3, last_words)
        assert {end for ends in seen[:8] for end in ends} <= {"answered", "ShuttingDown"}
        assert seen[8:11] == [None] * 3, "each stop returns"
        assert (seen[11], ran) in (("posted", ["last words"]), ("refused", []))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["await", "yield"])
@pytest.mark.parametrize("end", ["fails", "stopped", "both"])
def test_a_turn_that_fails_or_is_stopped_while_awaiting_pauses_the_queue_or_resumes_it_twice(pool, mode, how, end):
    if (mode, how) == (PerActor, "yield"):
        how = "await"  # there is no gate to give back
    for _ in range(500 if FULL else 15):
        stage, reply = Stage(pool, mode), Completion[None](pool)
        handled = stage.spot.execute_actor("a", stage.waits("handler", reply, how))
        stage.spot.execute_actor("a", stage.note("next"))
        let_others_run(pool)
        ends = {
            "fails": [lambda reply=reply: reply.fail(ValueError())],
            "stopped": [handled.cancel, lambda stage=stage: stage.spot.execute_lifecycle(stage.note("stop hook"))],
            "both": [lambda reply=reply: reply.fail(ValueError()), handled.cancel, handled.cancel],
        }[end]
        together(*ends)
        assert isinstance(outcome(handled), (ValueError, Cancelled))
        stage.at_rest()
        mine = [note for note in stage.seen if note != "stop hook"]
        if mine[0] == "handler begins":
            assert mine[1] in ("handler ValueError", "handler Cancelled"), "the interrupted turn unwinds first"
            assert mine[2:] == ["next"], "one resume: not none, not two"
        else:
            assert mine == ["next"], "cancelled before it began"


@pytest.mark.parametrize("mode", MODES)
def test_one_lanes_blocked_item_holds_back_the_others(single, mode):
    """An Actor's turn waits: its next ones wait, and lifecycle work, timers and other Actors begin at once, in order."""
    stage, reply = Stage(single, mode), Completion[None](single)
    stage.spot.execute_actor("a", stage.waits("a", reply, "yield" if mode is SpotWide else "await"))
    stage.actor("a", "a2", "a3")
    let_others_run(single)
    for name in ("l1", "l2"):
        assert stage.spot.execute_lifecycle(stage.note(name)).result(PATIENCE) == name
    for completion in stage.actor("b", "b1", "b2"):
        completion.result(PATIENCE)
    assert stage.spot.execute_timer("tick", stage.note("tick")).result(PATIENCE)
    assert stage.seen == ["a begins", "l1", "l2", "b1", "b2", "tick"]
    reply.succeed(None)
    assert stage.let_go()[6:] == ["a goes on", "a2", "a3"]


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_start_poisons_the_key(pool, mode):
    stage = Stage(pool, mode)
    for error in (ValueError(), SystemExit(), Cancelled()):
        actor = ActorSerialExecutor("k", pool=pool)

        def start(error: BaseException = error, actor: ActorSerialExecutor = actor) -> None:
            stage.spot.admit_member("k", actor)
            raise error

        assert type(outcome(actor.execute_lifecycle(start))) is type(error)
        actor.execute_lifecycle(lambda: stage.spot.release_member("k")).result(PATIENCE)
        assert isinstance(outcome(stage.spot.execute_actor("k", [].pop)), IndexError)
        assert stage.spot.execute_actor("k", lambda: "the key is free").result(PATIENCE) == "the key is free"
    member = joined(stage, "k")
    assert stage.spot.execute_actor("k", member.is_current).result(PATIENCE)


@pytest.mark.parametrize("mode", MODES)
def test_a_stopping_owner_handles_messages_after_its_stop_hook(pool, feeder, mode):
    """The same id is made again while it stops; nothing of it is handled after the hook, and never two at once."""
    for _ in range(500 if FULL else 8):
        stage = Stage(pool, mode)
        member, inside = joined(stage, "k"), [0]

        def handles(inside: list[int] = inside, stage: Stage = stage, name: str = "old") -> None:
            inside[0] += 1
            assert inside[0] == 1, "two live owners"
            stage.seen.append(name)
            inside[0] -= 1

        async def hook(stage: Stage = stage) -> None:
            await feeder.awaited()
            stage.seen.append("stop hook")
            stage.spot.release_member("k")

        for _ in range(50):
            member.execute_actor(handles)
        stopping = task.spawn(member.end(PATIENCE, hook), pool=pool)

        def post(stage: Stage = stage, handles: Callable[..., None] = handles) -> int:
            refusals = 0
            for _ in range(20):
                try:
                    stage.spot.execute_actor("k", lambda: handles(name="by the Spot"))
                except ShuttingDown:
                    refusals += 1
            return refusals

        seen = together(post, post)
        assert all(isinstance(refusals, int) for refusals in seen), "refused clearly, or handled"
        stopping.result(PATIENCE)
        again = joined_when_free(stage, "k")
        again.execute_actor(lambda stage=stage: stage.seen.append("new")).result(PATIENCE)
        stage.at_rest()
        end = stage.seen.index("stop hook")
        assert "old" not in stage.seen[end:]
        assert stage.seen.count("old") == 50
        assert stage.seen[-1] == "new"


def joined_when_free(stage: Stage, actor_id: str) -> ActorSerialExecutor:
    """What was posted after the old owner had gone made one on demand, which goes when it is idle."""
    stage.at_rest()
    return joined(stage, actor_id)


@pytest.mark.parametrize("variant", ["plain", "yields", "posts to itself", "awaits what is there"])
@pytest.mark.parametrize("mode", MODES)
def test_a_budget_counted_in_messages_is_not_a_time_budget(single, monkeypatch, mode, variant):
    clock = Clock(monkeypatch)
    stage, there = Stage(single, mode, budget=10, actor_budget=10), Completion[None](single)
    there.succeed(None)
    gates = mode is SpotWide
    gate = stage.hold_actor("h")

    async def message(left: int) -> None:
        stage.seen.append("h")
        clock.spend(5)
        for _ in range(3 if variant == "awaits what is there" else 0):
            await there
        if variant == "yields" and gates:
            await there.yield_()
        if variant == "posts to itself" and left:
            stage.spot.execute_actor("h", lambda: message(left - 1))

    for _ in range(1 if variant == "posts to itself" else 20):
        stage.spot.execute_actor("h", lambda: message(19))
    light = SerialExecutionQueue(pool=single).enqueue(stage.note("light"))
    gate.open()
    light.result(PATIENCE)
    stage.at_rest()
    assert stage.seen.index("light") <= 3, "within one budget and one handler"
    assert stage.seen.count("h") == 20


# -- D --------------------------------------------------------------------------------------------------------------


def test_cancel_at_the_moment_of_the_grant_loses_the_room(pool):
    """Heads wait for the one place in a Spot's queue; the one whose turn it is is cancelled as the place becomes free."""
    for _ in range(100_000 if FULL else 100):
        stage = Stage(pool, SpotWide, items=1)
        gate = Gate()
        stage.spot.execute_spot(gate)
        gate.wait_begun()
        (first,) = stage.actor("a", "first")
        (second,) = stage.actor("b", "second")
        _, cancelled, _ = together(gate.open, first.cancel, lambda first=first: first.cancel())
        ended = outcome(first)
        assert (ended == "first") or isinstance(ended, Cancelled)
        assert second.result(PATIENCE) == "second", "who waits behind it gets the place"
        assert stage.let_go() == (["first", "second"] if ended == "first" else ["second"])
        assert cancelled in (True, False)


FINALIZERS = """
import gc, threading
from zlink_nogil.errors import CapacityExceeded
from zlink_nogil.execution import ActorSerialExecutor
from zlink_nogil.scheduler import WorkerPool

pool = WorkerPool(2)
actor = ActorSerialExecutor("a", pool=pool)

class Handle:
    def __init__(self):
        self.me = self

    def __del__(self):
        post()

def post():
    try:
        actor.execute_actor(int)
    except CapacityExceeded:
        pass

def leave_handles():
    for _ in range(3000):
        Handle()
        post()

gc.set_threshold(20)
threads = [threading.Thread(target=leave_handles) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.disable()
actor.close()
pool.close()
print("no hang")
"""


@pytest.mark.skip(reason="GAP: a __del__ that posts may run under the gate of the very queue, and its thread hangs")
def test_a_finalizer_that_posts_to_an_owner_hangs_its_thread():
    """The collector may start anywhere, also in a critical section; about one run in three hangs."""
    for _ in range(10):
        assert python(FINALIZERS, "-X", "gil=0").stdout.strip() == "no hang"
