"""`Completion` under every schedule: reply, timeout, cancel and shutdown, with waiters and callbacks."""

from __future__ import annotations

from typing import Any

from zlink_nogil.errors import Cancelled, DeadlineExceeded, ShuttingDown
from zlink_nogil.scheduler import Completion, WorkerPool

from .harness import Scenario, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.scheduler.completion"]


class Watched(Completion[str]):
    """Counts what must happen once."""

    def __init__(self, s: Scenario, pool: WorkerPool, **options: Any) -> None:
        super().__init__(pool, **options)
        self.s = s
        self.winners: list[str] = []
        self.called: list[str] = []
        self.settlings: list[tuple[str, ...]] = []

    def settled(self) -> None:
        self.settlings.append(tuple(self.called))

    def end(self, how: str) -> None:
        won = {
            "reply": lambda: self.succeed("reply"),
            "shutdown": lambda: self.fail(ShuttingDown("shutdown")),
            "cancel": self.cancel,
        }[how]()
        if won:
            self.winners.append(how)
        self.s.expect(self.done(), "it is over when somebody has tried to end it")

    def called_back(self, completion: Completion[str]) -> None:
        self.s.expect(completion.done(), "a callback sees the outcome")
        self.called.append(self.seen())

    def seen(self, timeout: float | None = None) -> str:
        """The outcome, under the name of who must have won."""
        try:
            return self.result(timeout)
        except Cancelled:
            return "cancel"
        except ShuttingDown:
            return "shutdown"
        except DeadlineExceeded:
            return "timeout"


def one_winner(s: Scenario) -> None:
    """Of reply, cancel and shutdown exactly one wins, and everybody sees that one."""
    pool = WorkerPool(1)
    completion = Watched(s, pool)
    seen: list[str] = []
    completion.add_done_callback(completion.called_back)
    s.thread("waiter", lambda: seen.append(completion.seen()))
    for how in ("reply", "cancel", "shutdown"):
        s.thread(how, completion.end, how)
    s.check("exactly one winner", lambda: len(completion.winners) == 1)
    s.check("the waiter sees it", lambda: seen == completion.winners)
    s.check("the callback runs once and sees it", lambda: completion.called == completion.winners)
    s.check("settled once, after the callback", lambda: completion.settlings == [tuple(completion.winners)])


def test_one_winner() -> None:
    run_random(one_winner)
    run_exhaustive(one_winner, preemptions=1, switches=0)
    run_lines(one_winner, MODULES)


def waiters_with_a_timeout(s: Scenario) -> None:
    """A wait that times out leaves the operation alone; a waiter is never left behind, an outcome never lost."""
    completion = Watched(s, WorkerPool(1))
    seen: list[str] = []

    def hurry() -> None:
        seen.append(completion.seen(1.0))
        s.expect(completion.done() or len(completion._wakers or ()) <= 1, "who does not wait any more leaves no waker")

    s.timeouts_race()
    s.thread("patient", lambda: seen.append(completion.seen()))
    s.thread("hasty", hurry)
    s.thread("reply", completion.end, "reply")
    s.check("the patient one sees the reply", lambda: sorted(seen) in (["reply", "reply"], ["reply", "timeout"]))
    s.check("settled once", lambda: completion.settlings == [()])


def test_waiters_with_a_timeout() -> None:
    run_random(waiters_with_a_timeout)
    run_exhaustive(waiters_with_a_timeout, preemptions=1)
    run_lines(waiters_with_a_timeout, MODULES)


def one_gives_up_as_the_outcome_comes(s: Scenario) -> None:
    """Its waker goes, or is called; the others are called."""
    completion = Watched(s, WorkerPool(1))
    called: list[str] = []

    def gives_up(_: object) -> None:
        called.append("gives up")

    completion.add_waker(gives_up)
    completion.add_waker(lambda _: called.append("stays"))
    s.thread("gives up", completion.remove_waker, gives_up)
    s.thread("reply", completion.end, "reply")
    s.check("who stays is woken once", lambda: called in (["stays"], ["gives up", "stays"]))


def test_one_gives_up_as_the_outcome_comes() -> None:
    run_exhaustive(one_gives_up_as_the_outcome_comes, preemptions=1, lines=MODULES)


def late_callbacks(s: Scenario) -> None:
    """A callback that is registered while the outcome arrives runs exactly once, on either side of it."""
    completion = Watched(s, WorkerPool(1))
    s.thread("registers", completion.add_done_callback, completion.called_back)
    s.thread("registers too", completion.add_done_callback, completion.called_back)
    s.thread("reply", completion.end, "reply")
    s.check("once each", lambda: completion.called == ["reply", "reply"])
    s.check("settled once", lambda: len(completion.settlings) == 1)


def test_late_callbacks() -> None:
    run_random(late_callbacks)
    run_exhaustive(late_callbacks, preemptions=1, switches=1)
    run_lines(late_callbacks, MODULES)


def callbacks_while_the_pool_closes(s: Scenario) -> None:
    """The callback of a completion that ends while the pool closes runs exactly once all the same."""
    pool = WorkerPool(1)
    completion = Watched(s, pool)
    completion.add_done_callback(completion.called_back)
    s.thread("reply", completion.end, "reply")
    s.thread("closer", pool.close)
    s.check("once", lambda: completion.called == ["reply"])
    s.check("settled once, after the callback", lambda: completion.settlings == [("reply",)])


def test_callbacks_while_the_pool_closes() -> None:
    run_random(callbacks_while_the_pool_closes)
    run_exhaustive(callbacks_while_the_pool_closes, preemptions=1)


def waiting_where_it_may_be_forbidden(s: Scenario) -> None:
    """The check before a wait is made or the outcome is there: never half of each."""
    checked: list[str] = []
    completion = Watched(s, WorkerPool(1), on_wait=lambda *_: checked.append("allowed"))
    seen: list[str] = []
    s.thread("waiter", lambda: seen.append(completion.seen()))
    s.thread("reply", completion.end, "reply")
    s.check("the waiter sees the reply", lambda: seen == ["reply"])


def test_waiting_where_it_may_be_forbidden() -> None:
    run_random(waiting_where_it_may_be_forbidden)
    run_exhaustive(waiting_where_it_may_be_forbidden, preemptions=1, lines=MODULES)


def a_canceller_decides(s: Scenario) -> None:
    """Cancelling asks the owner, who ends the operation once, however many ask."""
    asked: list[str] = []

    def canceller() -> bool:
        asked.append("asked")
        return completion.abandon()

    completion = Watched(s, WorkerPool(1), canceller=canceller)
    for name in ("a", "b"):
        s.thread(name, completion.end, "cancel")
    s.thread("reply", completion.end, "reply")
    s.check("exactly one winner", lambda: len(completion.winners) == 1)
    s.check("it is what everybody sees", lambda: completion.seen() == completion.winners[0])


def test_a_canceller_decides() -> None:
    run_random(a_canceller_decides)
    run_exhaustive(a_canceller_decides, preemptions=1)


def polling(s: Scenario) -> None:
    """Whoever finds it done, without waiting, finds the outcome."""
    completion = Watched(s, WorkerPool(1))

    def poll() -> None:
        for _ in range(3):
            if completion.done():
                s.expect(completion.outcome() == "reply", "the outcome is there when it is done")

    s.thread("poller", poll)
    s.thread("reply", completion.end, "reply")


def test_polling() -> None:
    run_exhaustive(polling, preemptions=1, lines=MODULES)


def as_a_future(s: Scenario) -> None:
    """The future has the same outcome; giving it up in time is a cancel, and later is too late."""
    completion = Watched(s, WorkerPool(1))
    future = completion.as_future()
    given_up: list[bool] = []

    def give_up() -> None:
        s.expect(future.done() or not completion.settlings, "it ends with the callbacks")
        given_up.append(not future.done() and future.cancel())
        s.expect(completion.done(), "giving it up ends the operation, if nothing else has")

    def same() -> bool:
        if future.cancelled():
            return completion.cancelled() or given_up == [True]
        if isinstance(future.exception(0), ShuttingDown):
            return completion.winners == ["shutdown"]
        return completion.winners == [future.result(0)] == ["reply"]

    for how in ("reply", "cancel", "shutdown"):
        s.thread(how, completion.end, how)
    s.thread("gives up", give_up)
    s.check("the same outcome", lambda: future.done() and same())


def test_as_a_future() -> None:
    run_random(as_a_future, 60)
    run_exhaustive(as_a_future, preemptions=0, switches=1)
