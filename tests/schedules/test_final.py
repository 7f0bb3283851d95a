"""Work at the end, under every schedule: of a queue (`enqueue_final`), and of a turn (`defer_barrier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, InvalidOperation
from zlink_nogil.scheduler import Completion

from .gates import GATE
from .harness import Scenario, run_exhaustive, run_lines, run_random
from .test_queue import Watched
from .test_yield import Away

LOOP = GATE[1:4]


def final(gate: Watched, name: str) -> None:
    def run() -> None:
        gate.s.expect(gate.queue.reserved() == (1, gate.queue.policy.fixed_work_byte_cost), "the last one is alone")
        gate.ran.append(name)

    gate.submit(gate.queue.enqueue_final, name, run)


def last(gate: Watched, *names: str) -> Callable[[], object]:
    """One of `names` ran, and nothing after it."""
    return lambda: [name for name in gate.ran if name in names] == gate.ran[-1:]


def accepted_once(s: Scenario) -> None:
    """Two want to be the last one, and others submit: one of them is, and what was accepted ran before."""
    gate = Watched(s)
    s.thread("one", final, gate, "one")
    s.thread("two", final, gate, "two")
    s.thread("a", gate.enqueue, "a1", "a2")
    s.check("one of them, at the end", last(gate, "one", "two"))
    s.check("run or refused", lambda: len(gate.ran) + len(gate.refused) == 4)
    s.check("the other one is refused", lambda: ("one" in gate.refused) != ("two" in gate.refused))


def test_accepted_once() -> None:
    run_random(accepted_once)
    run_exhaustive(accepted_once, preemptions=1, switches=0)
    run_lines(accepted_once, GATE)
    run_random(refused_but_the_last, 10)


def refused_but_the_last(s: Scenario) -> None:
    """New work is refused, on the turn and off it; a final one is not, and nothing is deferred where nobody runs."""
    gate = Watched(s)

    def one_after_the_other() -> None:
        gate.queue.refuse_new()
        gate.enqueue("a")
        try:
            gate.queue.defer_barrier(gate.ran.clear)
        except InvalidOperation:
            final(gate, "final")

    s.thread("caller", one_after_the_other)
    s.check("the last one ran", lambda: gate.ran == ["final"] and gate.refused == ["a"])


def after_who_is_away(s: Scenario) -> None:
    """It waits for the turns that gave theirs back, kept it, or come back at this moment."""
    gate = Away(s, workers=2)
    awaited: Completion[None] = Completion(gate.pool)
    s.thread("y", gate.away, "y", awaited)
    s.thread("k", lambda: gate.submit(gate.queue.enqueue, "k", gate.kept("k", awaited)))
    s.thread("final", final, gate, "final")
    s.thread("resumer", awaited.succeed, None)
    s.check("at the end", last(gate, "final"))


def test_after_who_is_away() -> None:
    run_random(after_who_is_away)
    run_exhaustive(after_who_is_away, preemptions=1, switches=0)
    run_lines(after_who_is_away, GATE)


def when_time_is_over(s: Scenario) -> None:
    """It runs in any case, also when what is before it is told that the time is over; after a close it is refused."""
    gate = Away(s)
    never: Completion[None] = Completion(gate.pool)
    s.thread("y", gate.away, "y", never)
    s.thread("a", gate.enqueue, "a")
    s.thread("final", final, gate, "final")
    s.thread("expirer", gate.queue.expire)
    s.thread("closer", gate.at_once, gate.close, 1.0)
    s.check("at the end", last(gate, "final"))
    s.check("an end for each", lambda: len(gate.submitted) + len(gate.refused) == 3)


def closed_meanwhile(s: Scenario) -> None:
    gate = Watched(s)
    s.thread("final", final, gate, "final")
    s.thread("closer", gate.close, 1.0)
    s.thread("a", gate.enqueue, "a")
    s.check("run or refused", lambda: len(gate.ran) + len(gate.refused) == 2)
    s.check("in order", lambda: gate.ran in ([], ["a"], ["final"], ["a", "final"]))


def test_when_time_is_over() -> None:
    run_random(when_time_is_over)
    run_exhaustive(when_time_is_over, preemptions=1, switches=0)
    run_lines(when_time_is_over, GATE)
    run_exhaustive(closed_meanwhile, preemptions=1, switches=0)


def a_final_that_waits(s: Scenario) -> None:
    """The last turn waits, yields and is told like any other; cancelled before it begins, it leaves nothing behind."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.submit(gate.queue.enqueue_final, "final", gate.yielding("final", awaited))
    s.thread("resumer", awaited.succeed, None)
    s.thread("canceller", gate.submitted["final"].cancel)
    s.thread("expirer", gate.queue.expire)


def test_a_final_that_waits() -> None:
    run_random(a_final_that_waits)
    run_exhaustive(a_final_that_waits, preemptions=1, switches=0)
    run_lines(a_final_that_waits, GATE)


class Deferring(Watched):
    """A turn "first" that defers "deferred" and waits a moment."""

    def first(self, awaited: Completion[None] | None = None, error: type[BaseException] | None = None) -> None:
        async def run() -> None:
            self.submit(self.queue.defer_barrier, "deferred")
            self.submit(self.queue.defer_barrier, "deferred too")
            self.s.step()
            if awaited is not None:
                await awaited
            if error is not None:
                raise error
            self.ran.append("first")

        self.submit(self.queue.enqueue, "first", run)

    def follows(self) -> bool:
        """Right after the handler, in order, before the next item; or ended with it."""
        if "first" not in self.ran:
            return not {"deferred", "deferred too"} & set(self.ran)
        at = self.ran.index("first") + 1
        deferred = [name for name in ("deferred", "deferred too") if name in self.ran]
        return self.ran[at : at + len(deferred)] == deferred


def right_after(s: Scenario) -> None:
    queue = Deferring(s)
    s.thread("first", queue.first)
    s.thread("a", queue.enqueue, "a1", "a2")
    s.thread("life", lambda: queue.submit(queue.queue.enqueue_lifecycle, "life"))
    s.check("right after", queue.follows)
    s.check("nothing is lost", lambda: len(queue.ran) == 6)


def cancelled_deferral(s: Scenario) -> None:
    """A cancel of what is deferred, before, as or after the handler ends."""
    queue = Deferring(s)
    told: list[bool] = []

    def cancel() -> None:
        while "deferred" not in queue.submitted:
            s.sleep(0.1)
        told.append(queue.submitted["deferred"].cancel())

    s.thread("first", queue.first)
    s.thread("a", queue.enqueue, "a")
    s.thread("canceller", cancel)
    s.check("right after", queue.follows)
    s.check("as told", lambda: "deferred" not in queue.outcomes("cancelled") or told == [True])
    s.check("nothing else is lost", lambda: {"first", "deferred too", "a"} <= set(queue.ran))


def cancelled_as_the_handler_ends(s: Scenario) -> None:
    """Withdrawn, or run: it is in the line, or was taken out of it."""
    queue = Deferring(s)
    deferred = _sync.Event()

    def defers() -> None:
        queue.submit(queue.queue.defer_barrier, "deferred")
        deferred.set()
        queue.ran.append("first")

    def cancel() -> None:
        deferred.wait()
        queue.submitted["deferred"].cancel()

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "first", defers))
    s.thread("canceller", cancel)
    s.check("the handler ended well", lambda: queue.ran[0] == "first")


def the_handler_fails(s: Scenario) -> None:
    """Failed or cancelled: what it deferred ends as cancelled, with it."""
    queue = Deferring(s)
    awaited: Completion[None] = Completion(queue.pool)
    queue.first(awaited)
    s.thread("canceller", queue.submitted["first"].cancel)
    s.thread("resumer", awaited.succeed, None)
    s.thread("a", queue.enqueue, "a")
    s.check("together", lambda: len(queue.outcomes("ok")) in (1, 4) and queue.follows())


def it_raises(s: Scenario) -> None:
    queue = Deferring(s)
    s.thread("first", queue.first, None, Cancelled)
    s.thread("a", queue.enqueue, "a")
    s.check("all of it is cancelled", lambda: sorted(queue.outcomes("cancelled")) == ["deferred", "deferred too", "first"])
    s.check("the next one runs", lambda: queue.ran == ["a"])


def time_is_over(s: Scenario) -> None:
    """Expired while the handler runs, waits or ends: what it deferred has an end, run or told."""
    queue = Deferring(s)
    never: Completion[None] = Completion(queue.pool)
    s.thread("first", queue.first, never)
    s.thread("closer", queue.close, 1.0)
    s.check("refused or told", lambda: not queue.ran)


def expired_meanwhile(s: Scenario) -> None:
    queue = Deferring(s)
    queue.first()
    s.thread("expirer", queue.queue.expire)
    s.check("right after", queue.follows)


def expired_by_the_handler(s: Scenario) -> None:
    """The time is over before the handler ends: what it deferred has not begun, and never does."""
    queue = Deferring(s)

    def expires() -> None:
        queue.submit(queue.queue.defer_barrier, "deferred")
        queue.queue.expire()
        queue.ran.append("first")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "first", expires))
    s.check("told", lambda: queue.ran == ["first"] and queue.outcomes("shutdown") == ["deferred"])


def test_deferred() -> None:
    run_random(right_after)
    run_exhaustive(right_after, preemptions=1, switches=0)
    run_lines(right_after, GATE)
    run_random(cancelled_deferral)
    run_exhaustive(cancelled_deferral, preemptions=1, switches=1)
    run_lines(cancelled_deferral, GATE)
    run_exhaustive(cancelled_as_the_handler_ends, preemptions=1, switches=0, lines=LOOP[:1])


def test_deferred_by_a_handler_that_fails() -> None:
    run_random(the_handler_fails)
    run_exhaustive(the_handler_fails, preemptions=1, switches=0)
    run_random(it_raises, 20)
    run_random(expired_by_the_handler, 20)
    run_random(time_is_over)
    run_exhaustive(time_is_over, preemptions=1)
    run_exhaustive(expired_meanwhile, preemptions=1, switches=0, lines=LOOP)


def through_a_head(s: Scenario) -> None:
    """An Actor's deferred work, in a Spot with others: its own next message waits, also without room in the Spot."""
    gate = Away(s, "a", "b", capacity=1)
    ran = gate.ran

    async def joins() -> None:
        gate.submit(gate.actors["a"].defer_barrier, "deferred", lambda: ran.append("deferred"))
        s.step()
        ran.append("a1")

    s.thread("a", lambda: (gate.submit(gate.actors["a"].enqueue, "a1", joins), gate.actor("a2")))
    s.thread("b", gate.actor, "b1")
    s.check("in order", lambda: [name for name in ran if name != "b1"] == ["a1", "deferred", "a2"])


def final_of_an_actor(s: Scenario) -> None:
    gate = Away(s, "a", capacity=1)
    actor: Any = gate.actors["a"]
    s.thread("a", gate.actor, "a1", "a2")
    s.thread("final", lambda: gate.submit(actor.enqueue_final, "a final", gate.plain("a final")))
    s.thread("expirer", actor.expire)
    s.check("at the end", last(gate, "a final"))


def test_through_a_head() -> None:
    run_random(through_a_head)
    run_exhaustive(through_a_head, preemptions=1, switches=0)
    run_lines(through_a_head, GATE)
    run_random(final_of_an_actor)
    run_exhaustive(final_of_an_actor, preemptions=1, switches=0)
    run_lines(final_of_an_actor, GATE)
