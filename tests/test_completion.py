"""`Completion` (design 7; decisions 11-13): one outcome, told to everybody, each in their own way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, together

from zlink_nogil.errors import Cancelled, CapacityExceeded, DeadlineExceeded, InvalidOperation, Unavailable
from zlink_nogil.scheduler import Completion, WorkerPool


class Watched(Completion[Any]):
    """Tells when somebody waits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting = threading.Semaphore(0)
        self.settlings = 0

    def add_waker(self, waker: Any) -> bool:
        added = super().add_waker(waker)
        self._waiting.release()
        return added

    def settled(self) -> None:
        self.settlings += 1

    def waiters(self, times: int) -> list[Background]:
        """Threads of which each waits in `result` by now."""
        calls = [Background(self.result, PATIENCE) for _ in range(times)]
        for _ in calls:
            assert self._waiting.acquire(timeout=PATIENCE), "nobody waits"
        return calls


class Calls:
    """A callback that keeps where it ran."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self._called = threading.Semaphore(0)

    def __call__(self, completion: Completion[Any]) -> None:
        assert completion.done()
        self.threads.append(threading.current_thread())
        self._called.release()

    def wait(self) -> None:
        assert self._called.acquire(timeout=PATIENCE), "the callback was not called"


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


@pytest.fixture
def completion(pool: WorkerPool) -> Watched:
    return Watched(pool)


# -- result, exception, done ----------------------------------------------------------------------------------------


def test_result_gives_the_value_before_and_after(completion):
    waiters = completion.waiters(3)
    assert not completion.done()
    assert completion.succeed(7)
    assert [waiter.result() for waiter in waiters] == [7, 7, 7]
    assert completion.done()
    assert completion.result() == completion.result(0) == 7
    assert completion.exception() is None


def test_result_raises_the_operations_error(completion):
    (waiter,) = completion.waiters(1)
    completion.fail(Unavailable("gone", accepted=True))
    with pytest.raises(Unavailable, match="gone") as caught:
        waiter.result()
    assert caught.value.accepted, "the copy has all of it"
    assert isinstance(completion.exception(), Unavailable)


@pytest.mark.parametrize("timeout", [0, -1, 0.01])
def test_a_timeout_of_result_leaves_the_operation_alone(completion, timeout):
    with pytest.raises(DeadlineExceeded, match="goes on"):
        completion.result(timeout)
    with pytest.raises(TimeoutError):  # what a Python user would catch
        completion.exception(timeout)
    assert not completion.done()
    assert completion._wakers == [], "who gave up is not kept"
    assert completion.succeed("in the end")
    assert completion.result() == "in the end"


@pytest.mark.parametrize("timeout", [math.nan, -math.inf, "1"])
def test_a_timeout_that_is_no_number_of_seconds_fails_in_the_caller_only(completion, timeout):
    with pytest.raises((TypeError, DeadlineExceeded)):
        completion.result(timeout)
    assert completion._wakers == []
    assert completion.succeed(1)


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_timeout_beyond_any_clock_waits_for_the_outcome(completion, timeout):
    threading.Thread(target=completion.succeed, args=(1,)).start()
    assert completion.result(timeout) == 1


# -- one outcome ----------------------------------------------------------------------------------------------------


def test_exactly_one_of_reply_error_and_cancel_wins(pool):
    for _ in range(40):
        completion = Watched(pool)
        (waiter,) = completion.waiters(1)
        ends = together(
            lambda c=completion: c.succeed("value"), lambda c=completion: c.fail(KeyError("error")), completion.cancel
        )
        assert sorted(ends) == [False, False, True]
        expected = ["value", KeyError, Cancelled][ends.index(True)]
        for look in (waiter.result, completion.result):
            try:
                seen = look()
            except BaseException as error:
                seen = type(error)
            assert seen == expected
        assert completion.settlings == 1


def test_later_outcomes_change_nothing(completion):
    completion.succeed(1)
    assert not completion.succeed(2)
    assert not completion.fail(ValueError())
    assert not completion.abandon()
    assert not completion.cancel()
    assert completion.result() == 1


def test_cancel_ends_an_operation_that_has_no_say(completion):
    waiters = completion.waiters(2)
    assert completion.cancel()
    for waiter in waiters:
        with pytest.raises(Cancelled):
            waiter.result()
    assert completion.cancelled()
    assert isinstance(completion.exception(), Cancelled)


def test_cancel_is_not_swallowed_by_except_exception(completion):
    def swallow() -> None:
        with contextlib.suppress(Exception):
            completion.result()

    completion.fail(Cancelled())  # the same as cancelling it
    assert completion.cancelled()
    with pytest.raises(Cancelled):
        swallow()


@pytest.mark.parametrize("answer", [True, False])
def test_the_owner_decides_what_becomes_of_a_cancel(pool, answer):
    asked: list[None] = []
    completion = Watched(pool, lambda: (asked.append(None), answer)[1])
    assert completion.cancel() is answer
    assert not completion.done()
    completion.succeed("finished all the same")
    assert completion.result() == "finished all the same"
    assert not completion.cancel(), "too late"
    assert len(asked) == 1


# -- each waiter's own exception ------------------------------------------------------------------------------------


class Coded(Exception):
    """Its constructor takes something else than what it keeps in `args`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Strict(Exception):
    def __init__(self, *, name: str) -> None:
        super().__init__()
        self.name = name


ERRORS = [
    CapacityExceeded("full"),
    Coded(5),
    Strict(name="x"),
    OSError(2, "no such file", "/x"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ExceptionGroup("two", [ValueError(1), KeyError(2)]),
    SystemExit(3),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_waiter_gets_its_own_exception_instance(completion, error):
    waiters = completion.waiters(4)
    completion.fail(error)
    seen = [completion.exception()]
    for waiter in waiters:
        with pytest.raises(type(error)) as caught:
            waiter.result()
        seen.append(caught.value)
    assert len({id(each) for each in (error, *seen)}) == 6
    for each in seen:
        assert (type(each), str(each), each.args) == (type(error), str(error), error.args)
        assert vars(each) == vars(error)


def test_a_copy_keeps_where_the_error_came_from(completion):
    try:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            raise ValueError("the second") from KeyError("the cause")
    except ValueError as raised:
        raised.add_note("a note")
        completion.fail(raised)
    with pytest.raises(ValueError, match="the second") as caught:
        completion.result()
    text = "".join(traceback.format_exception(caught.value))
    assert all(part in text for part in ("the cause", "a note", "raise ValueError"))
    assert isinstance(caught.value.__context__, ZeroDivisionError)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_copy_shows_what_was_handled_unless_that_was_hidden(completion, hidden):
    error = ValueError("the second")
    error.__context__, error.__suppress_context__ = KeyError("the first"), hidden
    completion.fail(error)
    with pytest.raises(ValueError, match="the second") as caught:
        completion.result()
    assert ("the first" in "".join(traceback.format_exception(caught.value))) is not hidden


def test_an_error_that_cannot_be_copied_is_raised_as_it_is(completion):
    class Odd(OSError):
        def __init__(self, *, code: int) -> None:
            super().__init__(code)

    error = Odd(code=1)
    completion.fail(error)
    assert completion.exception() is error


# -- callbacks ------------------------------------------------------------------------------------------------------


def test_a_callback_runs_in_a_new_turn_never_on_the_completing_stack(completion, pool):
    before, after = Calls(), Calls()
    completion.add_done_callback(before)
    completion.succeed(1)
    before.wait()
    completion.add_done_callback(after)
    after.wait()
    (worker,) = pool.threads
    assert before.threads == after.threads == [worker]


def test_a_callback_of_a_worker_does_not_run_inside_its_slice(pool):
    completion, calls, seen = Completion[int](pool), Calls(), []

    class Completing:
        def run_slice(self) -> bool:
            completion.add_done_callback(calls)
            completion.succeed(1)
            seen.append(list(calls.threads))
            return False

    pool.submit(Completing())
    calls.wait()
    assert seen == [[]]


@pytest.mark.parametrize("error", [ValueError("in a callback"), SystemExit("in a callback")])
def test_what_a_callback_raises_is_logged_and_the_next_ones_run(completion, caplog, error):
    def fail(_: Any) -> None:
        raise error

    first, last = Calls(), Calls()
    for callback in (first, fail, last):
        completion.add_done_callback(callback)
    completion.succeed(1)
    last.wait()
    assert first.threads == last.threads
    assert "in a callback" in caplog.text
    assert completion.result() == 1, "the outcome stands"


def test_settled_comes_once_after_the_callbacks(pool):
    order: list[str] = []
    settled = threading.Event()

    class Settling(Completion[int]):
        def settled(self) -> None:
            order.append("settled")
            settled.set()

    completion = Settling(pool)
    for name in ("first", "second"):
        completion.add_done_callback(lambda _, name=name: order.append(name))
    completion.succeed(1)
    assert settled.wait(PATIENCE)
    assert order == ["first", "second", "settled"]


def test_context_variables_follow_who_registered_and_do_not_leak(pool):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    seen: list[str] = []

    def callback(completion: Completion[int]) -> None:
        seen.append(variable.get())
        variable.set("left behind")
        completion.result()

    completions = [Completion[int](pool) for _ in range(2)]
    contextvars.copy_context().run(lambda: (variable.set("mine"), completions[0].add_done_callback(callback)))
    completions[1].add_done_callback(callback)
    last = Calls()
    for completion in completions:
        completion.succeed(1)
    completions[1].add_done_callback(last)
    last.wait()
    assert seen == ["mine", "nobody's"]


def test_a_callback_still_runs_after_the_pool_was_closed():
    pool = WorkerPool(1)
    completion, calls = Completion[int](pool), Calls()
    completion.add_done_callback(calls)
    pool.close()
    completion.succeed(1)
    calls.wait()


# -- futures --------------------------------------------------------------------------------------------------------


def test_a_future_has_the_same_outcome(pool):
    succeeded, failed, cancelled = (Completion[int](pool) for _ in range(3))
    futures = [completion.as_future() for completion in (succeeded, failed, cancelled)]
    succeeded.succeed(7)
    failed.fail(Unavailable("gone"))
    cancelled.cancel()
    assert futures[0].result(PATIENCE) == 7
    with pytest.raises(Unavailable, match="gone"):
        futures[1].result(PATIENCE)
    with pytest.raises(concurrent.futures.CancelledError):
        futures[2].result(PATIENCE)


def test_cancelling_the_future_cancels_the_operation(completion):
    assert completion.as_future().cancel()
    assert completion.cancelled()


def test_cancelling_the_future_of_an_operation_that_goes_on_is_harmless(pool):
    completion = Completion[int](pool, canceller=lambda: False)
    future, calls = completion.as_future(), Calls()
    assert future.cancel()
    completion.add_done_callback(calls)
    assert completion.succeed(1)
    calls.wait()
    assert future.cancelled()


def test_asyncio_awaits_the_future(completion):
    async def wait() -> int:
        future = asyncio.wrap_future(completion.as_future())
        completion.succeed(7)
        return await asyncio.wait_for(future, PATIENCE)

    assert asyncio.run(wait()) == 7


# -- waiting for oneself --------------------------------------------------------------------------------------------


def refuse(*_: object) -> None:
    raise InvalidOperation("would wait for itself")


def test_waiting_is_refused_before_it_begins(pool):
    completion = Completion[int](pool, on_wait=refuse)
    for wait in (completion.result, completion.exception):
        with pytest.raises(InvalidOperation, match="itself"):
            wait()
    with pytest.raises(InvalidOperation, match="itself"):
        completion.__await__().send(None)
    completion.succeed(1)
    assert completion.result() == 1, "nothing to wait for"


def test_an_outcome_that_comes_between_the_look_and_the_check(pool):
    """The outcome takes `_on_wait` away; whoever is about to wait must not stumble over that."""

    class Racing(Completion[int]):
        _check = None

        @property
        def _on_wait(self) -> Any:
            check = self._check
            if check is not None:
                self.succeed(7)
            return check

        @_on_wait.setter
        def _on_wait(self, check: Any) -> None:
            self._check = check

    assert Racing(pool, on_wait=lambda *_: None).result(PATIENCE) == 7
    steps = Racing(pool, on_wait=lambda *_: None).__await__()
    next(steps)
    with pytest.raises(StopIteration, match="7"):
        next(steps)


def test_a_waker_is_called_once_or_not_at_all(completion):
    woken: list[str] = []
    kept, dropped = (lambda _: woken.append("kept")), (lambda _: woken.append("dropped"))
    assert completion.add_waker(kept)
    assert completion.add_waker(dropped)
    completion.remove_waker(dropped)
    completion.remove_waker(dropped)
    completion.succeed(1)
    assert not completion.add_waker(kept)
    assert woken == ["kept"]


def test_a_slow_waiter_does_not_hold_up_the_others(completion):
    gate, calls = Gate(), Calls()
    completion.add_done_callback(lambda _: gate())
    waiters = completion.waiters(2)
    assert completion.succeed(1), "the completing thread does not wait for callbacks"
    assert [waiter.result() for waiter in waiters] == [1, 1]
    completion.add_done_callback(calls)
    gate.open()
    calls.wait()
