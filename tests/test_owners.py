"""Owners: one queue per key, dropped when idle and many, nothing lost when dropping meets admitting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PATIENCE, eventually, together

from zlink_nogil.errors import CapacityExceeded, DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy, Turn
from zlink_nogil.messaging import owners as module
from zlink_nogil.messaging.owners import FIRST_SWEEP, OwnerName, Owners
from zlink_nogil.scheduler import Completion, Wait, WorkerPool


class Work(Turn):
    """A turn that calls `work()`, and keeps what came of it."""

    __slots__ = ("error", "finished", "work")

    def __init__(self, work: Callable[[], Any] = lambda: None, payload_bytes: int = 0) -> None:
        super().__init__(payload_bytes)
        self.work = work
        self.error: BaseException | None = None
        self.finished = threading.Event()

    def begin(self) -> Any:
        return self.work()

    def succeed(self, value: Any) -> None:  # noqa: ARG002
        self.finished.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finished.set()

    def wait(self) -> BaseException | None:
        assert self.finished.wait(PATIENCE), "the turn did not end"
        return self.error


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "test") as pool:
        yield pool


def owners(pool: WorkerPool, capacity: int = 1024, unkeyed: int = 4096) -> Owners:
    return Owners(pool, ExecutionLanePolicy(application_message_capacity=capacity), unkeyed)


def admitted(made: Owners, owner: OwnerName, *turns: Work) -> None:
    assert made.admit(owner, turns) == []


def held(made: Owners, owner: OwnerName) -> tuple[Work, threading.Event]:
    """A turn of `owner` that runs until the event is set."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    turn = Work(work)
    admitted(made, owner, turn)
    assert begun.wait(PATIENCE)
    return turn, go_on


def test_an_owner_runs_one_at_a_time_in_order_and_two_owners_at_once(pool):
    made = owners(pool)
    meeting = threading.Barrier(2)
    order: list[int] = []
    running = threading.Lock()

    def alone(number: int) -> None:
        assert running.acquire(blocking=False), "two turns of one owner at once"
        order.append(number)
        running.release()

    first, second = Work(lambda: meeting.wait(PATIENCE)), Work(lambda: meeting.wait(PATIENCE))
    admitted(made, ("c", "a"), first)
    admitted(made, ("c", "b"), second)
    assert first.wait() is second.wait() is None
    turns = [Work(lambda number=number: alone(number)) for number in range(100)]
    admitted(made, ("c", "a"), *turns)
    assert turns[-1].wait() is None
    assert order == list(range(100))


def test_channel_and_key_name_an_owner_and_no_key_is_an_owner_of_its_own(pool):
    made = owners(pool)
    turns = [Work() for _ in range(5)]
    for name, turn in zip([("c", None), ("c", ""), ("c", "k"), ("d", "k"), ("c", "k")], turns, strict=True):
        admitted(made, name, turn)
        turn.wait()
    assert len(made) == 4


def test_a_full_owner_refuses_the_rest_of_a_batch_and_runs_what_it_took(pool):
    made = owners(pool, capacity=2)
    running, go_on = held(made, ("c", "k"))
    turns = [Work() for _ in range(3)]
    refused = made.admit(("c", "k"), turns)
    assert [turn for turn, _ in refused] == turns[1:]
    assert {type(error) for _, error in refused} == {CapacityExceeded}
    assert made.admit(("c", "other"), [Work()]) == []  # a full owner is nobody else's business
    go_on.set()
    assert running.wait() is turns[0].wait() is None
    assert made.admit(("c", "k"), [turns[1]]) == []
    assert turns[1].wait() is None
    assert not turns[2].finished.is_set()  # refused work never runs


def test_without_a_key_an_owner_takes_as_many_items_as_the_host_has_permits(pool):
    made = owners(pool, capacity=1, unkeyed=3)
    _, go_on = held(made, ("c", None))
    assert len(made.admit(("c", None), [Work() for _ in range(5)])) == 3
    go_on.set()


def test_idle_owners_are_kept_up_to_the_first_sweep_and_dropped_by_it(pool):
    made = owners(pool)
    _, go_on = held(made, ("c", "busy"))
    last = Work()
    for number in range(FIRST_SWEEP - 1):
        last = Work()
        admitted(made, ("c", str(number)), last)
    assert last.wait() is None
    eventually(lambda: pool.counts()[0] == 0, "all have run")
    assert len(made) == FIRST_SWEEP
    eventually(lambda: sum(not queue.is_idle() for queue in made._queues.all()) == 1, "all but one are idle")
    admitted(made, ("c", "one more"), Work())
    assert set(made._queues._queues) == {("c", "busy"), ("c", "one more")}
    go_on.set()


def test_a_million_keys_would_not_be_a_million_queues(pool, monkeypatch):
    monkeypatch.setattr(module, "FIRST_SWEEP", 8)
    made = owners(pool)
    most = 0
    for number in range(3000):
        turn = Work()
        admitted(made, ("c", str(number)), turn)
        turn.wait()
        most = max(most, len(made))
    assert most <= 1024 + 8  # the sweep that was planned before the patch, then every few
    assert len(made) <= 32


def test_a_key_that_comes_back_after_its_queue_was_dropped_goes_on(pool):
    made = owners(pool)
    first, second = Work(), Work()
    admitted(made, ("c", "k"), first)
    first.wait()
    eventually(made._queues.find(("c", "k")).is_idle, "idle")
    with made._lock:
        made._queues.sweep()
    assert len(made) == 0
    admitted(made, ("c", "k"), second)
    assert second.wait() is None


def test_dropping_that_races_admitting_loses_nothing_and_keeps_the_order(pool):
    made = owners(pool)
    seen: dict[str, list[int]] = {key: [] for key in "ab"}
    turns: list[Work] = []
    stop = threading.Event()

    def admit(key: str) -> None:
        for number in range(200):
            turn = Work(lambda number=number: seen[key].append(number))
            turns.append(turn)
            admitted(made, ("c", key), turn)
            if number % 3 == 0:
                turn.wait()  # so that the queue is idle now and then
        if key == "a":
            stop.set()

    def sweep() -> None:
        while not stop.wait(0.0002):
            with made._lock:
                made._queues.sweep()

    for result in together(lambda: admit("a"), lambda: admit("b"), sweep):
        assert not isinstance(result, BaseException), result
    assert {turn.wait() for turn in turns} == {None}
    assert seen == {"a": list(range(200)), "b": list(range(200))}


def test_a_queue_with_a_suspended_turn_is_not_dropped(pool):
    made = owners(pool)
    waited = WaitsFor(pool)
    turn = Work(waited.work)
    admitted(made, ("c", "k"), turn)
    assert waited.begun.wait(PATIENCE)
    eventually(lambda: pool.counts() == (0, 2), "the turn waits")
    with made._lock:
        made._queues.sweep()
    assert len(made) == 1
    waited.completion.succeed(None)
    assert turn.wait() is None


class WaitsFor:
    def __init__(self, pool: WorkerPool) -> None:
        self.completion: Completion[None] = Completion(pool)
        self.begun = threading.Event()

    async def work(self) -> None:
        self.begun.set()
        await self.completion


def test_waiting_for_an_owner_on_its_own_turn_is_noticed(pool):
    made = owners(pool)
    made.check_wait(("c", "k"), None, Wait.BLOCK)  # nobody there
    inside = Work(lambda: made.check_wait(("c", "k"), None, Wait.BLOCK))
    other = Work(lambda: made.check_wait(("c", "other"), None, Wait.KEEP))
    admitted(made, ("c", "k"), inside)
    admitted(made, ("c", "k"), other)
    assert isinstance(inside.wait(), InvalidOperation)
    assert other.wait() is None


def test_close_finishes_what_was_accepted_and_refuses_the_rest(pool):
    made = owners(pool)
    running, go_on = held(made, ("c", "k"))
    queued = Work()
    admitted(made, ("c", "k"), queued)
    closing = threading.Thread(target=made.close, args=(PATIENCE,), daemon=True)
    closing.start()
    eventually(lambda: made._closed, "closing")
    late = Work()
    [(turn, error)] = made.admit(("c", "k"), [late])
    assert (turn, type(error)) == (late, ShuttingDown)
    [(_, error)] = made.admit(("c", "new"), [late])
    assert type(error) is ShuttingDown
    go_on.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert running.wait() is queued.wait() is None
    assert not late.finished.is_set()


def test_owners_that_do_not_end_in_time_do_not_keep_the_others_work_from_its_end(pool):
    made = owners(pool)
    stuck = [held(made, ("c", key)) for key in "ab"]
    queued = [Work(), Work()]
    for key, turn in zip("ab", queued, strict=True):
        admitted(made, ("c", key), turn)
    with pytest.raises(DeadlineExceeded):
        made.close(0.05)
    assert [type(turn.wait()) for turn in queued] == [ShuttingDown] * 2
    for turn, go_on in stuck:
        go_on.set()
        assert turn.wait() is None
