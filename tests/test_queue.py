"""`SerialExecutionQueue` with plain functions (design 3.4): admission, capacity, order, fairness, closing."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from background import Background, Busy, Gate
from spots import Clock
from support import PATIENCE, outcome, together

from zlink_nogil.errors import Cancelled, CapacityExceeded, DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue, Turn
from zlink_nogil.scheduler import Completion, WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as pool:
        yield pool


@pytest.fixture
def single() -> Iterator[WorkerPool]:
    """A pool of one worker, which a `Busy` queue keeps from everybody else."""
    with WorkerPool(1) as pool:
        yield pool


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def refused() -> None:
    pytest.fail("refused work ran")


# -- admission ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(), Cancelled()])
def test_what_the_work_returns_or_raises_is_the_outcome(pool, error):
    queue = SerialExecutionQueue(pool=pool)
    assert queue.enqueue(lambda: 7).result(PATIENCE) == 7
    assert type(outcome(queue.enqueue(raising(error)))) is type(error)
    assert queue.enqueue(lambda: "goes on").result(PATIENCE) == "goes on"
    assert queue.reserved() == (0, 0)


@pytest.mark.parametrize(
    ("enqueue", "lane"),
    [("enqueue", "application"), ("enqueue_lifecycle", "lifecycle"), ("enqueue_barrier_next", "lifecycle")],
)
def test_a_full_lane_refuses_and_nothing_is_changed(pool, enqueue, lane):
    busy = Busy(pool, application_message_capacity=2, lifecycle_message_capacity=1)
    submit = getattr(busy.queue, enqueue)
    busy.note("fills it", submit)
    before = busy.queue.reserved()
    with pytest.raises(CapacityExceeded, match=lane):
        submit(refused)
    assert busy.queue.reserved() == before
    assert busy.let_go() == ["fills it"]


def test_each_lane_has_its_own_room(pool):
    busy = Busy(pool, application_message_capacity=1, lifecycle_message_capacity=2)
    busy.lifecycle("lifecycle")
    busy.barrier("barrier")
    for enqueue in (busy.queue.enqueue, busy.queue.enqueue_lifecycle, busy.queue.enqueue_barrier_next):
        with pytest.raises(CapacityExceeded):
            enqueue(refused)
    assert busy.let_go() == ["barrier", "lifecycle"]


@pytest.mark.parametrize("payload", [91, 10**30])
def test_an_item_larger_than_the_whole_is_refused_at_once_and_small_ones_flow(pool, payload):
    queue = SerialExecutionQueue(ExecutionLanePolicy(application_byte_capacity=100, fixed_work_byte_cost=10), pool=pool)
    with pytest.raises(CapacityExceeded, match="never fits"):
        queue.enqueue_with_payload_bytes(refused, payload)
    for fitting in (0, 45, 90):
        assert queue.enqueue_with_payload_bytes(lambda: "flows", fitting).result(PATIENCE) == "flows"
    assert queue.reserved() == (0, 0)


def test_bytes_are_counted_with_the_fixed_cost(pool):
    busy = Busy(pool, application_byte_capacity=100, fixed_work_byte_cost=10)
    busy.queue.enqueue_with_payload_bytes(lambda: None, 70)
    assert busy.queue.reserved() == (2, 90)
    with pytest.raises(CapacityExceeded, match="90 of 100 bytes"):
        busy.queue.enqueue_with_payload_bytes(refused, 1)
    busy.application("fits exactly")
    assert busy.queue.reserved() == (3, 100)
    assert busy.let_go() == ["fits exactly"]


@pytest.mark.parametrize("size", [-1, 1.5, float("nan"), "3", None])
def test_a_size_that_is_none_is_refused(pool, size):
    queue = SerialExecutionQueue(pool=pool)
    with pytest.raises(ValueError, match="payload_bytes"):
        queue.enqueue_with_payload_bytes(refused, size)
    assert queue.reserved() == (0, 0)


def test_admission_is_one_step_for_any_number_of_submitters(pool):
    for _ in range(10):
        busy = Busy(pool, application_message_capacity=4)
        seen = together(*[lambda busy=busy, name=str(name): busy.note(name) for name in range(8)])
        accepted = [each for each in seen if isinstance(each, Completion)]
        assert (len(accepted), [type(each) for each in seen].count(CapacityExceeded)) == (3, 5)
        ran = busy.let_go()
        assert sorted(ran) == sorted(completion.result(PATIENCE) for completion in accepted)


def test_a_reservation_is_returned_when_the_work_has_finished_before_its_outcome_is_seen(pool):
    gate, queue = Gate(), SerialExecutionQueue(ExecutionLanePolicy(application_message_capacity=1), pool=pool)
    first = queue.enqueue(gate)
    gate.wait_begun()
    with pytest.raises(CapacityExceeded):  # it has left the line, and has not finished
        queue.enqueue(refused)
    gate.open()
    first.result(PATIENCE)
    for _ in range(50):
        queue.enqueue(lambda: None).result(PATIENCE)


def test_a_batch_is_admitted_as_far_as_it_fits(pool):
    class Silent(Turn):
        def begin(self) -> None: ...
        def succeed(self, value: Any) -> None: ...
        def fail(self, error: BaseException) -> None: ...

    busy = Busy(pool, application_message_capacity=3)
    turns = [Silent() for _ in range(4)]
    assert [(turn, type(error)) for turn, error in busy.queue.admit(turns)] == [
        (turn, CapacityExceeded) for turn in turns[2:]
    ]
    assert busy.let_go() == []


# -- who runs it, and when ------------------------------------------------------------------------------------------


def test_the_loop_never_starts_on_the_submitters_stack(single):
    queue = SerialExecutionQueue(pool=single)
    (worker,) = {queue.enqueue(threading.current_thread).result(PATIENCE) for _ in range(10)}
    assert worker is not threading.current_thread()
    inner: list[Completion[Any]] = []
    ran: list[str] = []
    other = SerialExecutionQueue(pool=single)
    queue.enqueue(lambda: (inner.append(other.enqueue(lambda: ran.append("inner"))), ran.append("outer"))).result(PATIENCE)
    inner[0].result(PATIENCE)
    assert ran == ["outer", "inner"]


def test_ten_thousand_owners_have_no_more_threads_than_ten(pool):
    def threads(owners: int) -> set[threading.Thread]:
        queues = [SerialExecutionQueue(pool=pool) for _ in range(owners)]
        completions = [queue.enqueue(threading.current_thread) for queue in queues for _ in range(2)]
        before = threading.active_count()
        ran = {completion.result(PATIENCE) for completion in completions}
        assert threading.active_count() <= before
        return ran

    assert threads(10) | threads(10_000) <= set(pool.threads)
    assert len(pool.threads) == 2


def test_first_in_first_out_for_each_submitter_and_one_turn_at_a_time(pool):
    queue = SerialExecutionQueue(ExecutionLanePolicy(owner_time_budget_ms=1e-6), pool=pool)
    ran: list[tuple[int, int]] = []
    inside: list[int] = []

    def turn(entry: tuple[int, int]) -> None:
        inside.append(1)
        ran.append(entry)
        assert len(inside) == 1, "two turns at once"
        inside.clear()

    def submit(who: int) -> list[Completion[Any]]:
        return [queue.enqueue(lambda entry=(who, index): turn(entry)) for index in range(100)]

    for completions in together(*[lambda who=who: submit(who) for who in range(3)]):
        for completion in completions:
            completion.result(PATIENCE)
    assert len(ran) == 300
    for who in range(3):
        assert [index for submitter, index in ran if submitter == who] == list(range(100))


def test_lifecycle_work_goes_first_but_not_more_than_the_burst_in_a_row(pool):
    busy = Busy(pool, lifecycle_burst_limit=2)
    busy.application("a1", "a2")
    busy.lifecycle("l1", "l2", "l3", "l4", "l5")
    assert busy.let_go() == ["l1", "l2", "a1", "l3", "l4", "a2", "l5"]


def test_the_burst_debt_survives_slices(single, monkeypatch):
    clock = Clock(monkeypatch)
    busy = Busy(single, lifecycle_burst_limit=2)
    for name in ("a1", "a2"):
        busy.note(name, then=lambda: clock.spend(10))
    for name in ("l1", "l2", "l3", "l4"):
        busy.note(name, busy.queue.enqueue_lifecycle, then=lambda: clock.spend(10))
    assert busy.let_go() == ["l1", "l2", "a1", "l3", "l4", "a2"]


def test_the_burst_debt_is_cleared_by_application_work_only(pool):
    busy = Busy(pool, lifecycle_burst_limit=2)
    (dropped,) = busy.application("dropped")
    busy.lifecycle("l1")
    busy.note("l2", busy.queue.enqueue_lifecycle, then=lambda: (dropped.cancel(), busy.application("late")))
    busy.lifecycle("l3")
    assert busy.let_go() == ["l1", "l2", "late", "l3"], "the debt to the cancelled one is the next one's"


def test_a_barrier_is_next_before_everything_that_waits(pool):
    busy = Busy(pool)
    busy.lifecycle("lifecycle")
    busy.note("application", then=lambda: busy.barrier("from a turn"))
    busy.application("last")
    busy.barrier("first", "second")
    assert busy.let_go() == ["first", "second", "lifecycle", "application", "from a turn", "last"]


@pytest.mark.parametrize("posts_to_itself", [False, True])
def test_the_time_budget_ends_a_slice_between_items(single, monkeypatch, posts_to_itself):
    clock = Clock(monkeypatch)
    busy, other = Busy(single, owner_time_budget_ms=10), SerialExecutionQueue(pool=single)
    names = ["h1", "h2", "h3", "h4"]

    def work(index: int) -> None:
        clock.spend(6)
        if posts_to_itself and index < 3:
            busy.note(names[index + 1], then=lambda: work(index + 1))

    for index in range(1 if posts_to_itself else 4):
        busy.note(names[index], then=lambda index=index: work(index))
    other.enqueue(lambda: busy.ran.append("other"))
    assert busy.let_go() == ["h1", "h2", "other", "h3", "h4"]


def test_context_variables_follow_the_submitter_and_do_not_leak(single):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    queue = SerialExecutionQueue(pool=single)

    def swap() -> str:
        before = variable.get()
        variable.set("left behind")
        return before

    mine = contextvars.copy_context().run(lambda: (variable.set("mine"), queue.enqueue(swap))[1])
    assert [mine.result(PATIENCE), queue.enqueue(swap).result(PATIENCE)] == ["mine", "nobody's"]
    assert variable.get() == "nobody's"


# -- waiting for oneself --------------------------------------------------------------------------------------------


def test_waiting_for_the_own_queue_raises_and_submitting_to_it_does_not(pool):
    queue, other = SerialExecutionQueue(pool=pool, name="mine"), SerialExecutionQueue(pool=pool)

    def turn(wait: Callable[[Completion[Any]], Any]) -> Completion[Any]:
        assert queue.is_current()
        assert not other.is_current()
        submitted = queue.enqueue(lambda: "later")
        with pytest.raises(InvalidOperation, match="'mine'"):
            wait(submitted)
        assert other.enqueue(lambda: "others may").result(PATIENCE) == "others may"
        return submitted

    for wait in (Completion.result, Completion.exception):
        later = queue.enqueue(lambda wait=wait: turn(wait)).result(PATIENCE)
        assert later.result(PATIENCE) == "later"
    assert not queue.is_current()


def test_a_turn_cannot_wait_until_its_own_queue_is_quiet(pool):
    busy = Busy(pool)
    quiet = busy.queue.await_quiescence()

    def turn() -> None:
        for wait in (busy.queue.await_quiescence, quiet.result):
            with pytest.raises(InvalidOperation, match="'busy'"):
                wait()

    busy.note("turn", then=turn)
    assert busy.let_go() == ["turn"]
    assert quiet.result(PATIENCE) is None


# -- cancelling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application", "lifecycle", "barrier"])
def test_cancelled_before_it_begins_it_never_runs_and_leaves_nothing_behind(pool, kind):
    busy = Busy(pool, application_message_capacity=2, lifecycle_message_capacity=1)
    before = busy.queue.reserved()
    for _ in range(100):  # more than there is room for
        (completion,) = getattr(busy, kind)("cancelled")
        kept = weakref.ref(completion)
        assert completion.cancel()
        assert not completion.cancel()
        assert isinstance(outcome(completion), Cancelled)
        del completion
    gc.collect()
    assert kept() is None, "the line holds what waits, not what has been"
    assert busy.queue.reserved() == before
    busy.application("goes on")
    assert busy.let_go() == ["goes on"]


def test_cancelled_while_it_runs_a_plain_function_finishes(pool):
    busy = Busy(pool)
    assert busy.held.cancel(), "it will decide so itself"
    assert not busy.held.done()
    assert busy.let_go() == []
    assert busy.held.result(PATIENCE) == "held"
    assert not busy.held.cancel(), "too late"


def test_cancel_racing_the_start_ends_it_once(pool):
    for _ in range(30):
        busy = Busy(pool)
        (completion,) = busy.application("raced")
        _, cancelled = together(busy.let_go, completion.cancel)
        ended = outcome(completion)
        assert busy.ran == (["raced"] if ended == "raced" else [])
        assert ended == "raced" or (cancelled and isinstance(ended, Cancelled))


# -- quiescence and closing -----------------------------------------------------------------------------------------


def test_quiescence_is_all_accepted_work_having_ended(pool):
    busy = Busy(pool)
    busy.note("posts", then=lambda: busy.application("posted"))
    quiet = [busy.queue.await_quiescence() for _ in range(3)]
    assert not any(completion.done() for completion in quiet)
    assert busy.let_go() == ["posts", "posted"]
    for completion in quiet:
        completion.result(PATIENCE)
    assert busy.queue.await_quiescence().done(), "at once when there is nothing"


def test_close_refuses_new_work_and_finishes_what_was_accepted(pool):
    busy = Busy(pool)
    busy.application("accepted")
    busy.lifecycle("this as well")
    closes = [Background(busy.queue.close) for _ in range(2)]
    busy.gate.open()
    for close in closes:
        close.result()
        assert busy.ran == ["this as well", "accepted"]
    for enqueue in (busy.queue.enqueue, busy.queue.enqueue_lifecycle, busy.queue.enqueue_barrier_next):
        with pytest.raises(ShuttingDown, match="'busy'"):
            enqueue(refused)
    busy.queue.close()


def test_close_from_a_turn_only_marks_the_queue_closed(pool):
    busy = Busy(pool)
    busy.note("closes", then=busy.queue.close)
    busy.application("accepted before")
    assert busy.let_go() == ["closes", "accepted before"]
    with pytest.raises(ShuttingDown):
        busy.queue.enqueue(refused)


def test_when_the_time_is_over_what_has_not_begun_ends_once_and_what_runs_is_waited_for(pool):
    busy = Busy(pool)
    waiting = [busy.application("a")[0], busy.lifecycle("l")[0], busy.barrier("b")[0]]
    with pytest.raises(DeadlineExceeded):
        busy.queue.close(0)
    assert [type(outcome(completion)) for completion in waiting] == [ShuttingDown] * 3
    assert busy.queue.reserved()[0] == 1
    busy.gate.open()
    busy.queue.close(PATIENCE)
    assert busy.held.result(PATIENCE) == "held"
    assert (busy.ran, busy.queue.reserved()) == ([], (0, 0))


def test_a_pool_that_is_closed_ends_the_work_it_cannot_run():
    with WorkerPool(1) as pool:
        queue = SerialExecutionQueue(pool=pool)
    completion = queue.enqueue(refused)
    assert isinstance(outcome(completion), ShuttingDown)
    assert queue.is_idle()
    queue.close(PATIENCE)


def test_only_an_idle_queue_retires_and_then_takes_nothing(pool):
    busy = Busy(pool)
    assert not busy.queue.retire()
    busy.application("so it stays open")
    assert busy.let_go() == ["so it stays open"]
    assert busy.queue.retire()
    with pytest.raises(ShuttingDown):
        busy.queue.enqueue(refused)


def test_bytes_come_back_to_zero_after_every_kind_of_ending(pool):
    busy = Busy(pool, application_byte_capacity=10_000, lifecycle_byte_capacity=10_000, fixed_work_byte_cost=7)
    grown = bytearray(b"x" * 100)  # counted once, at admission
    works = [lambda: grown.extend(b"y" * 1000), grown.clear, raising(ValueError()), raising(SystemExit()), lambda: None]
    completions = [busy.queue.enqueue_with_payload_bytes(work, len(grown)) for work in works * 2]
    completions += [busy.queue.enqueue_lifecycle(raising(KeyError())), busy.queue.enqueue_barrier_next(lambda: None)]
    assert busy.queue.reserved() == (13, 10 * 107 + 3 * 7)
    with pytest.raises(CapacityExceeded):
        busy.queue.enqueue_with_payload_bytes(refused, 9_994)
    for completion in completions[::3]:
        assert completion.cancel()
    assert busy.queue.reserved() == (9, 6 * 107 + 3 * 7)
    with pytest.raises(DeadlineExceeded):
        busy.queue.close(0)
    assert busy.queue.reserved() == (1, 7)
    with pytest.raises(ShuttingDown):
        busy.queue.enqueue_with_payload_bytes(refused, 1)
    busy.let_go()
    assert all(completion.done() for completion in completions)
