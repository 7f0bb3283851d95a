"""`SerialExecutionQueue` under every schedule: admit, drain, suspend, resume, cancel, close, quiescence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil.errors import Cancelled, CapacityExceeded, ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool

from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = [f"zlink_nogil.execution.{name}" for name in ("queue", "turn", "_item", "_lane", "_lines", "_loop")]


class Watched:
    """A queue and what is known about its work, checked as it runs."""

    def __init__(self, s: Scenario, workers: int = 1, *, shared: bool = False, **policy: Any) -> None:
        self.s = s
        self.pool = WorkerPool(workers)
        self.queue = SerialExecutionQueue(ExecutionLanePolicy(**policy), pool=self.pool, shared=shared)
        self.inside: set[int] = set()
        self.ran: list[str] = []
        self.refused: list[str] = []
        self.submitted: dict[str, Completion[Any]] = {}
        s.check("every outcome is there", lambda: all(completion.done() for completion in self.submitted.values()))
        s.check("ran if and only if it succeeded", lambda: sorted(self.ran) == sorted(self.outcomes("ok")))
        s.check("reservations are back to zero", lambda: self.queue.reserved() == (0, 0))
        s.check("the queue is idle", self.queue.is_idle)

    def work(self, name: str) -> Callable[[], None]:
        def run() -> None:
            with self.s.alone(self.inside, "one turn at a time"):
                self.s.expect(self.queue.is_current(), "a turn is on its queue")
                items, _ = self.queue.reserved()
                self.s.expect(items >= 1, "a reservation lasts until the work has finished")
                self.ran.append(name)

        return run

    def waiting_work(self, name: str, awaited: Completion[None]) -> Callable[[], Any]:
        async def run() -> None:
            with self.s.alone(self.inside, "one turn at a time"):
                await awaited
            self.ran.append(name)

        return run

    def submit(self, enqueue: Callable[[Callable[[], Any]], Completion[Any]], name: str, work: Any = None) -> None:
        try:
            self.submitted[name] = enqueue(work or self.work(name))
        except (ShuttingDown, CapacityExceeded):
            self.refused.append(name)

    def enqueue(self, *names: str) -> None:
        for name in names:
            self.submit(self.queue.enqueue, name)

    def outcomes(self, *kinds: str) -> list[str]:
        return [name for name, completion in self.submitted.items() if self.outcome(completion) in kinds]

    @staticmethod
    def outcome(completion: Completion[Any]) -> str:
        error = completion.exception(0.0)
        if error is None:
            return "ok"
        return "cancelled" if isinstance(error, Cancelled) else "shutdown"

    def close(self, timeout: float = 1000.0) -> None:
        self.queue.close(timeout)
        self.s.expect(self.queue.is_idle(), "nothing accepted is left when close returns")


def order_and_capacity(s: Scenario) -> None:
    """Admitted in order or refused; a full queue takes work again when some has finished."""
    queue = Watched(s, application_message_capacity=2)
    s.thread("a", queue.enqueue, "a1", "a2")
    s.thread("b", queue.enqueue, "b1", "b2")
    s.check("nothing is lost", lambda: len(queue.ran) + len(queue.refused) == 4)
    s.check("in the order of admission", lambda: _in_order(queue.ran, "a1", "a2") and _in_order(queue.ran, "b1", "b2"))


def _in_order(ran: list[str], *names: str) -> bool:
    return [name for name in ran if name in names] == [name for name in names if name in ran]


def test_order_and_capacity() -> None:
    run_random(order_and_capacity)
    run_exhaustive(order_and_capacity, preemptions=1, switches=0)
    run_lines(order_and_capacity, MODULES)


def two_workers(s: Scenario) -> None:
    """One turn at a time, whichever worker drains, also across the end of a slice (its time budget is used up)."""
    queue = Watched(s, workers=2, owner_time_budget_ms=1e-12)
    s.thread("a", queue.enqueue, "a1", "a2")
    s.thread("b", lambda: queue.submit(queue.queue.enqueue_lifecycle, "b"))
    s.check("nothing is lost", lambda: len(queue.ran) == 3)


def test_two_workers() -> None:
    run_random(two_workers)
    run_exhaustive(two_workers, preemptions=1, switches=0)
    run_lines(two_workers, MODULES)


def suspend_and_resume(s: Scenario) -> None:
    """A suspended turn keeps its queue and goes on exactly once, whenever what it awaits comes."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited)))
    s.thread("b", queue.enqueue, "b")
    s.thread("resumer", lambda: s.expect(awaited.succeed(None), "the only one"))
    s.check("both ran", lambda: sorted(queue.ran) == ["b", "waits"])


def test_suspend_and_resume() -> None:
    run_random(suspend_and_resume)
    run_exhaustive(suspend_and_resume, preemptions=1, switches=1)
    run_lines(suspend_and_resume, MODULES)


def cancel_a_waiting_turn(s: Scenario) -> None:
    """Cancelled before it began, at its wait, or too late: one of them, and the queue goes on."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited))
    s.thread("canceller", queue.submitted["waits"].cancel)
    s.thread("resumer", awaited.succeed, None)
    s.thread("b", queue.enqueue, "b")
    s.check("the next one ran", lambda: "b" in queue.ran)
    s.check("an end for the other", lambda: queue.outcome(queue.submitted["waits"]) in ("ok", "cancelled"))


def test_cancel_a_waiting_turn() -> None:
    run_random(cancel_a_waiting_turn)
    run_exhaustive(cancel_a_waiting_turn, preemptions=1, switches=0)
    run_lines(cancel_a_waiting_turn, MODULES)


def closing(s: Scenario) -> None:
    """Accepted work has ended when `close` returns; afterwards everything is refused."""
    queue = Watched(s)
    s.thread("a", queue.enqueue, "a1", "a2")
    s.thread("closer", queue.close)
    s.thread("closer too", queue.close)
    s.check("run or refused", lambda: len(queue.ran) + len(queue.refused) == 2)


def test_closing() -> None:
    run_random(closing)
    run_exhaustive(closing, preemptions=1, switches=0)
    run_lines(closing, MODULES)


def closing_with_a_suspended_turn(s: Scenario) -> None:
    """When the time of a close is over, who waits is interrupted and who has not begun is refused, each once."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)

    def resume() -> None:
        s.sleep(1.0)
        awaited.succeed(None)

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited)))
    s.thread("b", queue.enqueue, "b")
    s.thread("closer", queue.close, 1.0)
    s.thread("late", resume)
    s.check("an end for each", lambda: len(queue.outcomes("ok", "shutdown")) + len(queue.refused) == 2)


def test_closing_with_a_suspended_turn() -> None:
    run_random(closing_with_a_suspended_turn)
    run_exhaustive(closing_with_a_suspended_turn, preemptions=1, switches=0)
    run_lines(closing_with_a_suspended_turn, MODULES)


def quiescence(s: Scenario) -> None:
    """Whoever waits for quiet is woken when nothing accepted is left, not earlier and not never."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited))

    def wait() -> None:
        queue.queue.await_quiescence().result()
        s.expect("waits" in queue.ran, "suspended work counts")

    s.thread("waiter", wait)
    s.thread("b", queue.enqueue, "b")
    s.thread("resumer", awaited.succeed, None)


def test_quiescence() -> None:
    run_random(quiescence)
    run_exhaustive(quiescence, preemptions=1, switches=0)
    run_lines(quiescence, MODULES)


def a_pool_that_closes_first(s: Scenario) -> None:
    """Accepted work ends, run or refused, also when the pool is closed under the queue."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)
    s.thread("a", queue.enqueue, "a")
    s.thread("w", lambda: queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", awaited)))
    s.thread("closer", queue.pool.close)
    s.thread("resumer", awaited.succeed, None)
    s.check("an end for each", lambda: len(queue.outcomes("ok", "shutdown")) + len(queue.refused) == 2)


def test_a_pool_that_closes_first() -> None:
    run_random(a_pool_that_closes_first)
    run_exhaustive(a_pool_that_closes_first, preemptions=1, switches=0)
    run_lines(a_pool_that_closes_first, MODULES)


def barriers_and_bursts(s: Scenario) -> None:
    """Lifecycle work goes first, but no more than the burst limit in a row while application work waits."""
    queue = Watched(s, lifecycle_burst_limit=1)

    def first() -> None:
        queue.submit(queue.queue.enqueue_lifecycle, "life 1")
        queue.enqueue("app")
        queue.submit(queue.queue.enqueue_barrier_next, "barrier")
        queue.ran.append("first")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "first", first))
    s.thread("b", lambda: queue.submit(queue.queue.enqueue_lifecycle, "life 2"))
    s.check("the barrier is next", lambda: queue.ran[queue.ran.index("first") + 1] == "barrier")
    s.check("application work is not starved", lambda: queue.ran.index("app") <= queue.ran.index("first") + 3)
    s.check("nothing is lost", lambda: set(queue.ran) == {"first", "barrier", "app", "life 1", "life 2"})


def test_barriers_and_bursts() -> None:
    run_random(barriers_and_bursts)
    run_exhaustive(barriers_and_bursts, preemptions=1, switches=1)


def an_interruption_before_the_wait(s: Scenario) -> None:
    """Cancelled or out of time while it runs: a turn is told at its next wait, even when what it awaits never comes."""
    queue = Watched(s)
    never: Completion[None] = Completion(queue.pool)
    promised: list[bool] = []
    queue.submit(queue.queue.enqueue, "waits", queue.waiting_work("waits", never))
    s.thread("canceller", lambda: promised.append(queue.submitted["waits"].cancel()))
    s.check("a promise is kept", lambda: promised == [True] and queue.outcomes("cancelled") == ["waits"])


def out_of_time_before_the_wait(s: Scenario) -> None:
    queue = Watched(s)
    never: Completion[None] = Completion(queue.pool)

    async def slow() -> None:
        s.sleep(1.5)
        await never

    queue.submit(queue.queue.enqueue, "waits", slow)
    s.thread("closer", queue.close, 1.0)
    s.check("told", lambda: queue.outcomes("shutdown") == ["waits"])


def test_an_interruption_before_the_wait() -> None:
    run_random(an_interruption_before_the_wait, 100)
    run_exhaustive(an_interruption_before_the_wait, preemptions=1)
    run_exhaustive(out_of_time_before_the_wait, preemptions=1)


def an_outcome_frees_its_place(s: Scenario) -> None:
    """Whoever has seen an outcome, good or bad, finds its reservation returned."""
    queue = Watched(s, application_message_capacity=1)

    def fails() -> None:
        raise Cancelled

    def one_after_the_other() -> None:
        queue.enqueue("a")
        queue.submitted["a"].result()
        queue.submit(queue.queue.enqueue, "b", fails)
        queue.submitted["b"].exception()
        queue.enqueue("c")

    s.thread("caller", one_after_the_other)
    s.check("none was refused", lambda: queue.refused == [] and queue.ran == ["a", "c"])


def test_an_outcome_frees_its_place() -> None:
    run_random(an_outcome_frees_its_place, 100)
    run_exhaustive(an_outcome_frees_its_place, preemptions=1)


def bursts_begin_again(s: Scenario) -> None:
    """Each application turn ends a burst: after it lifecycle work goes first again."""
    queue = Watched(s, lifecycle_burst_limit=1)

    def first() -> None:
        queue.enqueue("app 1", "app 2", "app 3")
        for name in ("life 1", "life 2", "life 3"):
            queue.submit(queue.queue.enqueue_lifecycle, name)
        queue.ran.append("first")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "first", first))
    s.check("in turns", lambda: queue.ran[1:] == ["life 1", "app 1", "life 2", "app 2", "life 3", "app 3"])


def test_bursts_begin_again() -> None:
    run_random(bursts_begin_again, 50)
