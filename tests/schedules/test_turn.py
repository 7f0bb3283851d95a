"""What a turn and its queue promise at the edges: capacity in bytes, its own queue, one coroutine, what is let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.execution import SerialExecutionQueue, Turn
from zlink_nogil.scheduler import Completion, WorkerPool, claims
from zlink_nogil.scheduler.spawning import sleep, spawn

from .harness import Scenario, run_exhaustive, run_random
from .test_queue import Watched, an_interruption_before_the_wait

QUEUE = ["zlink_nogil.execution.queue", "zlink_nogil.execution._loop", "zlink_nogil.execution._lines"]


class Note(Turn):
    def begin(self) -> None:
        pass

    def succeed(self, value: Any) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except InvalidOperation:
        return True
    return False


def capacity_in_bytes(s: Scenario) -> None:
    """Payload and fixed cost count from admission to the end: here there is room for one at a time."""
    queue = Watched(s, application_byte_capacity=100, fixed_work_byte_cost=20)

    def submit(name: str) -> None:
        queue.submit(lambda work: queue.queue.enqueue_with_payload_bytes(work, 40), name, lambda: look(name))

    def look(name: str) -> None:
        s.expect(queue.queue.reserved() == (1, 60), "its own cost, and nobody else's")
        queue.ran.append(name)

    s.thread("a", submit, "a")
    s.thread("b", submit, "b")
    s.check("run or refused", lambda: len(queue.ran) + len(queue.refused) == 2)


def reserved_at_one_moment(s: Scenario) -> None:
    queue = Watched(s)

    def one_after_the_other() -> None:
        queue.enqueue("a")
        queue.submitted["a"].result()
        queue.submit(queue.queue.enqueue_lifecycle, "b")

    s.thread("caller", one_after_the_other)
    s.thread("observer", lambda: s.expect(queue.queue.reserved()[0] <= 1, "there was never more than one"))


def test_capacity() -> None:
    run_exhaustive(capacity_in_bytes, preemptions=1)
    run_exhaustive(reserved_at_one_moment, preemptions=1, switches=0, lines=QUEUE)


def a_batch_and_a_close(s: Scenario) -> None:
    """Turns admitted together are one decision."""
    queue = Watched(s)
    s.thread("a", lambda: s.expect(len(queue.queue.admit([Note(), Note()])) in (0, 2), "both or none"))
    s.thread("closer", queue.close)


def quiet_at_the_last_moment(s: Scenario) -> None:
    """Who asks for quiet while the last turn leaves is told, off the turn."""
    queue = Watched(s)

    def off_the_turn(_: object) -> None:
        s.expect(Turn.current is None, "quiet is told when the turn is over")

    def ask() -> None:
        queue.enqueue("a")
        quiet = queue.queue.await_quiescence()
        quiet.add_waker(off_the_turn)
        quiet.result()

    s.thread("caller", ask)


def retiring(s: Scenario) -> None:
    """Retired when it is idle, and then it has nothing to run and takes nothing."""
    queue = Watched(s)
    retired: list[bool] = []

    def work() -> None:
        s.expect(True not in retired, "what is retired has nothing to run")
        queue.ran.append("a")

    s.thread("sweeper", lambda: retired.append(queue.queue.retire()))
    s.thread("caller", lambda: queue.submit(queue.queue.enqueue, "a", work))
    s.check("run or refused", lambda: queue.ran + queue.refused == ["a"])
    s.check("an idle one can be retired", queue.queue.retire)


def test_one_decision() -> None:
    run_exhaustive(retiring, preemptions=1, switches=0, lines=QUEUE)
    run_exhaustive(a_batch_and_a_close, preemptions=1, switches=0, lines=QUEUE)
    run_exhaustive(quiet_at_the_last_moment, preemptions=1, switches=0, lines=QUEUE)


def on_its_own_turn(s: Scenario) -> None:
    """Waiting for its own queue is told; closing it is only a mark."""
    queue = Watched(s)

    def inside() -> None:
        queue.enqueue("later")
        s.expect(refused(queue.submitted["later"].result), "it would wait for itself")
        s.expect(refused(queue.queue.await_quiescence), "it would wait for itself")
        queue.queue.close()
        queue.enqueue("too late")
        s.expect(queue.refused == ["too late"], "closed is closed")
        queue.ran.append("inside")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "inside", inside))
    s.check("what was accepted ran", lambda: queue.ran == ["inside", "later"])


def test_on_its_own_turn() -> None:
    run_random(on_its_own_turn, 50)


def a_stubborn_turn(s: Scenario) -> None:
    """Without workers, out of time, and still waiting: it is told at every wait until it ends."""
    queue = Watched(s, owner_time_budget_ms=1e-12)
    never: Completion[None] = Completion(queue.pool)
    told: list[str] = []

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await never
            except ShuttingDown as error:
                told.append(str(error))
        queue.ran.append("stubborn")

    queue.submit(queue.queue.enqueue, "stubborn", stubborn)
    s.thread("pool closer", queue.pool.close)
    s.thread("closer", queue.close, 1.0)
    s.check("told at each", lambda: len(told) == 3 or "stubborn" not in queue.ran)


def two_cancels(s: Scenario) -> None:
    """A turn that waits its turn is withdrawn once."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited))
    queue.enqueue("b")
    for name in ("one", "two"):
        s.thread(name, queue.submitted["b"].cancel)
    s.thread("resumer", awaited.succeed, None)


def two_ends_of_a_wait(s: Scenario) -> None:
    """The outcome and a cancel come at once: the turn goes on once, by one of them."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited))

    def at_once(end: Callable[..., object], *args: object) -> None:
        s.sleep(1.0)
        end(*args)

    s.thread("resumer", at_once, awaited.succeed, None)
    s.thread("canceller", at_once, queue.submitted["waits"].cancel)


def cancelled_or_shut_down(s: Scenario) -> None:
    """A turn that has not begun ends as its canceller was told."""
    queue = Watched(s)
    never: Completion[None] = Completion(queue.pool)
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", never))
    queue.enqueue("b")
    told: list[bool] = []

    def cancel() -> None:
        s.sleep(1.0)
        told.append(queue.submitted["b"].cancel())

    s.thread("closer", queue.close, 1.0)
    s.thread("canceller", cancel)
    s.check("as told", lambda: told == [queue.outcome(queue.submitted["b"]) == "cancelled"])


def test_ends() -> None:
    run_exhaustive(two_ends_of_a_wait, preemptions=1, switches=0, lines=QUEUE)
    run_exhaustive(cancelled_or_shut_down, preemptions=1, switches=0)
    run_exhaustive(an_interruption_before_the_wait, preemptions=1, switches=0, lines=QUEUE)
    run_random(a_stubborn_turn, 30)
    run_exhaustive(two_cancels, preemptions=1, switches=0)


def nobody_is_overtaken(s: Scenario) -> None:
    """Lifecycle work that ran while no application work waited does not count against the burst limit."""
    queue = Watched(s, lifecycle_burst_limit=1)

    def first() -> None:
        queue.enqueue("app")
        queue.submit(queue.queue.enqueue_lifecycle, "life")
        queue.ran.append("first")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue_lifecycle, "first", first))
    s.check("lifecycle work goes first", lambda: queue.ran == ["first", "life", "app"])


def test_nobody_is_overtaken() -> None:
    run_random(nobody_is_overtaken, 20)


def let_go(s: Scenario) -> None:
    """What a cancelled turn awaited does not keep it, or its outcome, alive."""
    queue = Watched(s)
    never: Completion[None] = Completion(queue.pool)

    async def waits() -> None:
        await never

    mine = [queue.queue.enqueue(waits)]
    kept = weakref.ref(mine[0])

    def cancel() -> None:
        s.sleep(1.0)
        s.expect(mine.pop().cancel(), "it is told")

    def gone() -> bool:
        gc.collect()
        return kept() is None and not never.done()

    s.thread("canceller", cancel)
    s.check("nothing keeps it", gone)


def one_coroutine_for_two(s: Scenario) -> None:
    """The second turn that is given a coroutine fails; the first goes on undisturbed."""
    queue = Watched(s)
    other = SerialExecutionQueue(pool=queue.pool)
    awaited: Completion[None] = Completion(queue.pool)
    shared = queue.waiting_work("waits", awaited)()

    def second() -> None:
        s.sleep(1.0)
        error = other.enqueue(lambda: shared).exception()
        s.expect(isinstance(error, InvalidOperation), "the second is told")
        awaited.succeed(None)

    s.thread("first", lambda: queue.submit(queue.queue.enqueue, "waits", lambda: shared))
    s.thread("second", second)
    s.check("the first ran", lambda: queue.ran == ["waits"])


class Shared:
    """A fresh coroutine for two, and how it ends for each of them."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.pool = WorkerPool(2)
        self.began = 0
        self.ends: list[str] = []
        self.coroutine = self._run()
        s.check("one of them ran it, the other one was told", lambda: sorted(self.ends) == ["None", "told"])
        s.check("once", lambda: self.began == 1)
        s.check("nobody has a coroutine", lambda: claims.count() == 0)

    async def _run(self) -> None:
        self.began += 1
        turn = Turn.current
        await sleep(1.0)
        self.s.expect(Turn.current is turn, "who begins it goes on with it")

    def as_turn(self, here: _sync.Event, there: _sync.Event) -> None:
        """By a turn that has begun when the other one has, too."""

        def work() -> Any:
            here.set()
            there.wait()
            return self.coroutine

        self._end(lambda: SerialExecutionQueue(pool=self.pool).enqueue(work).result())

    def as_task(self) -> None:
        self._end(lambda: spawn(self.coroutine, pool=self.pool).result())

    def _end(self, run: Callable[[], object]) -> None:
        try:
            self.ends.append(str(run()))
        except InvalidOperation:
            self.ends.append("told")
        except RuntimeError as error:  # it is over already
            self.ends.append("told" if "reuse" in str(error) else repr(error))


def two_turns_at_once(s: Scenario) -> None:
    shared = Shared(s)
    one, two = _sync.Event(), _sync.Event()
    s.thread("one", shared.as_turn, one, two)
    s.thread("two", shared.as_turn, two, one)


def a_turn_and_a_task_at_once(s: Scenario) -> None:
    shared = Shared(s)
    begun = _sync.Event()
    s.thread("turn", shared.as_turn, begun, begun)
    s.thread("task", shared.as_task)


CLAIMS = ["zlink_nogil.execution.turn", "zlink_nogil.scheduler.claims"]


def test_coroutines() -> None:
    run_random(let_go, 3)
    run_random(one_coroutine_for_two, 20)


def test_one_coroutine_at_once() -> None:
    run_exhaustive(two_turns_at_once, preemptions=1, switches=0, lines=CLAIMS)
    run_exhaustive(a_turn_and_a_task_at_once, preemptions=1, switches=0, lines=CLAIMS)
