"""A turn of a shared queue that is given back, under every schedule: others go on, and it comes back once, in line."""

from __future__ import annotations

from collections.abc import Callable

from zlink_nogil.errors import Cancelled, InvalidOperation, ShuttingDown
from zlink_nogil.execution import Turn
from zlink_nogil.scheduler import Completion

from .gates import GATE, Gate, in_order
from .harness import Scenario, run_exhaustive, run_lines, run_random
from .test_queue import Watched

LOOP = GATE[1:3]


class Away(Gate):
    """A Spot's queue without Actors, and turns that yield."""

    def spot(self, *names: str) -> None:
        for name in names:
            self.submit(self.queue.enqueue, name, self.plain(name))

    def away(self, name: str, *awaited: Completion[None]) -> None:
        self.submit(self.queue.enqueue, name, self.yielding(name, *awaited))


def others_go_on(s: Scenario) -> None:
    """What the turn waits for may need the same queue: it was given back."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)

    def resumes() -> None:
        gate.plain("b")()
        awaited.succeed(None)

    s.thread("y", gate.away, "y", awaited)
    s.thread("b", lambda: gate.submit(gate.queue.enqueue, "b", resumes))
    s.thread("c", gate.spot, "c")
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "c", "y"])


def test_others_go_on() -> None:
    run_random(others_go_on)
    run_exhaustive(others_go_on, preemptions=1, switches=1)
    run_lines(others_go_on, GATE)


def resumed_as_the_slice_ends(s: Scenario) -> None:
    """Two workers, slices of one turn, and outcomes that come whenever they like: away once and a second time."""
    gate = Away(s, workers=2, owner_time_budget_ms=1e-12)
    one: Completion[None] = Completion(gate.pool)
    two: Completion[None] = Completion(gate.pool)
    s.thread("y", gate.away, "y", one, two)
    s.thread("b", gate.spot, "b")
    s.thread("resumer", one.succeed, None)
    s.thread("resumer too", two.succeed, None)
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "y"])


def test_resumed_as_the_slice_ends() -> None:
    run_random(resumed_as_the_slice_ends)
    run_exhaustive(resumed_as_the_slice_ends, preemptions=1, switches=0)
    run_lines(resumed_as_the_slice_ends, GATE)


def two_come_back(s: Scenario) -> None:
    """Two turns that are away are resumed at once, and new work comes: the queue is put into the ready set once."""
    gate = Away(s, workers=2)
    one: Completion[None] = Completion(gate.pool)
    two: Completion[None] = Completion(gate.pool)
    gate.away("y", one)
    gate.away("z", two)
    s.thread("one", gate.at_once, one.succeed, None)
    s.thread("two", gate.at_once, two.succeed, None)
    s.thread("new", gate.at_once, gate.spot, "b")
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "y", "z"])


def back_and_new(s: Scenario) -> None:
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.away("y", awaited)
    s.thread("resumer", gate.at_once, awaited.succeed, None)
    s.thread("new", gate.at_once, gate.spot, "b")
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "y"])


def test_two_come_back() -> None:
    run_random(two_come_back)
    run_exhaustive(two_come_back, preemptions=1, switches=0)
    run_lines(two_come_back, GATE)
    run_exhaustive(back_and_new, preemptions=1, switches=0, lines=LOOP)


def resumed_or_cancelled(s: Scenario) -> None:
    """One outcome for two that are away, and a cancel of one of them: each goes on once."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.away("y", awaited)
    gate.away("z", awaited)
    s.thread("resumer", awaited.succeed, None)
    s.thread("canceller", gate.submitted["y"].cancel)
    s.check("the other one ran", lambda: "z" in gate.ran)


def both_at_once(s: Scenario) -> None:
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.away("y", awaited)
    s.thread("resumer", gate.at_once, awaited.succeed, None)
    s.thread("canceller", gate.at_once, gate.submitted["y"].cancel)


def a_promised_cancel(s: Scenario) -> None:
    """Cancelled while it runs: told at its wait, also one that gives its turn back."""
    gate = Away(s)
    never: Completion[None] = Completion(gate.pool)
    gate.away("y", never)
    promised: list[bool] = []
    s.thread("canceller", lambda: promised.append(gate.submitted["y"].cancel()))
    s.check("a promise is kept", lambda: promised == [True] and gate.outcomes("cancelled") == ["y"])


def test_resumed_or_cancelled() -> None:
    run_random(resumed_or_cancelled)
    run_exhaustive(resumed_or_cancelled, preemptions=1, switches=0)
    run_lines(resumed_or_cancelled, GATE)
    run_exhaustive(both_at_once, preemptions=1, switches=0, lines=LOOP)
    run_exhaustive(a_promised_cancel, preemptions=1)


def resumed_or_out_of_time(s: Scenario) -> None:
    """A close whose time ends as the outcome comes; quiet is told when nobody is away."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    s.thread("y", gate.away, "y", awaited)
    s.thread("b", gate.spot, "b")
    s.thread("closer", gate.close, 1.0)
    s.thread("resumer", gate.at_once, awaited.succeed, None)
    s.check("an end for each", lambda: len(gate.outcomes("ok", "shutdown")) + len(gate.refused) == 2)


def expired_at_any_time(s: Scenario) -> None:
    """Whoever goes away when the time is over is told there; whoever is away is told at once."""
    gate = Away(s)
    never: Completion[None] = Completion(gate.pool)
    gate.away("y", never)
    gate.away("z", never)
    s.thread("expirer", gate.queue.expire)
    s.check("told", lambda: gate.outcomes("shutdown") == ["y", "z"])


def kept_and_out_of_time(s: Scenario) -> None:
    """The outcome of a turn that is kept has come, and the time is over before it goes on."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.submit(gate.queue.enqueue, "k", gate.kept("k", awaited))
    s.thread("both", gate.at_once, lambda: (awaited.succeed(None), gate.queue.expire()))


def test_closing() -> None:
    run_exhaustive(kept_and_out_of_time, preemptions=1, switches=0)
    run_random(resumed_or_out_of_time)
    run_exhaustive(resumed_or_out_of_time, preemptions=1, switches=0)
    run_lines(resumed_or_out_of_time, GATE)
    run_random(expired_at_any_time)
    run_exhaustive(expired_at_any_time, preemptions=1, switches=0, lines=LOOP)


def nobody_away_is_forgotten(s: Scenario) -> None:
    """A turn that is away keeps the queue from being quiet, and from being retired."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)
    gate.away("y", awaited)
    gate.spot("b")

    def look() -> None:
        if gate.queue.retire():
            s.expect(sorted(gate.ran) == ["b", "y"], "a queue that is retired has nothing to run")

    def wait() -> None:
        gate.queue.await_quiescence().result()
        s.expect(sorted(gate.ran) == ["b", "y"], "who is away counts")

    s.thread("waiter", wait)
    s.thread("sweeper", look)
    s.thread("resumer", awaited.succeed, None)


def test_nobody_away_is_forgotten() -> None:
    run_random(nobody_away_is_forgotten)
    run_exhaustive(nobody_away_is_forgotten, preemptions=1, switches=0)
    run_lines(nobody_away_is_forgotten, GATE)


def looked_at(s: Scenario) -> None:
    """What is in the queue, at one moment."""
    gate = Away(s)
    gate.spot("a", "b")

    def look() -> None:
        seen = gate.queue.snapshot()
        s.expect(seen.waiting <= seen.reserved_items <= seen.waiting + 1, "who runs has left the line, and nobody else")

    s.thread("observer", look)
    s.thread("c", gate.spot, "c")


def in_line(s: Scenario) -> None:
    """It goes on behind what waits when its outcome comes, and ahead of what comes later."""
    gate = Away(s)
    awaited: Completion[None] = Completion(gate.pool)

    def resumes() -> None:
        gate.spot("before")
        awaited.succeed(None)
        gate.spot("after")
        gate.ran.append("b")

    def first() -> None:
        gate.away("y", awaited)
        gate.submit(gate.queue.enqueue, "b", resumes)
        gate.spot("c")
        gate.ran.append("first")

    s.thread("a", lambda: gate.submit(gate.queue.enqueue, "first", first))
    s.check("in line", lambda: gate.ran == ["first", "b", "c", "before", "y", "after"])


def done_already(s: Scenario) -> None:
    """An outcome that is there keeps the turn: nobody runs in between. Whatever its state, the turn must be one to give."""
    gate = Away(s)
    other = Watched(s)
    done: Completion[None] = Completion(gate.pool)
    done.succeed(None)

    async def yields() -> None:
        with s.alone(gate.inside, "one gate"):
            turn = Turn.current
            await done.yield_()
            s.expect(Turn.current is turn, "it goes on at once")
        gate.ran.append("y")

    async def may_not() -> None:
        try:
            await done.yield_()
        except InvalidOperation:
            other.ran.append("told")

    s.thread("y", lambda: gate.submit(gate.queue.enqueue, "y", yields))
    s.thread("b", gate.spot, "b")
    s.thread("other", lambda: other.submit(other.queue.enqueue, "told", may_not))
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "y"] and other.ran == ["told"])


def nothing_to_give(s: Scenario) -> None:
    """Refused on a queue that is not shared: nothing is given back, and the turn goes on undisturbed."""
    queue = Watched(s)
    awaited: Completion[None] = Completion(queue.pool)

    async def keeps() -> None:
        with s.alone(queue.inside, "one turn at a time"):
            try:
                await awaited.yield_()
            except InvalidOperation:
                await awaited
        queue.ran.append("keeps")

    s.thread("a", lambda: queue.submit(queue.queue.enqueue, "keeps", keeps))
    s.thread("b", queue.enqueue, "b")
    s.thread("resumer", awaited.succeed, None)
    s.check("both ran", lambda: sorted(queue.ran) == ["b", "keeps"])


def away_then_kept(s: Scenario) -> None:
    """The same turn gives back, then keeps: what it did last counts."""
    gate = Away(s)
    one: Completion[None] = Completion(gate.pool)
    two: Completion[None] = Completion(gate.pool)

    async def both() -> None:
        await one.yield_()
        with s.alone(gate.inside, "one gate"):
            await two
        await one.yield_()
        gate.ran.append("y")

    gate.submit(gate.queue.enqueue, "y", both)
    s.thread("one", one.succeed, None)
    s.thread("b", gate.at_once, gate.spot, "b", "c")
    s.thread("two", gate.at_once, two.succeed, None)
    s.check("all ran", lambda: sorted(gate.ran) == ["b", "c", "y"] and in_order(gate.ran, "b", "c"))


def test_what_is_given() -> None:
    run_random(in_line, 50)
    run_exhaustive(looked_at, preemptions=1, switches=0, lines=[GATE[2], GATE[3]])
    run_random(done_already, 50)
    run_exhaustive(nothing_to_give, preemptions=1, switches=0)
    run_random(away_then_kept)
    run_exhaustive(away_then_kept, preemptions=1, switches=0)


def stubborn(s: Scenario) -> None:
    """Out of time and still waiting, without workers perhaps: told at every wait until it ends."""
    gate = Away(s, owner_time_budget_ms=1e-12)
    never: Completion[None] = Completion(gate.pool)
    told: list[type] = []

    async def waits() -> None:
        for _ in range(3):
            try:
                await never.yield_()
            except (ShuttingDown, Cancelled) as error:
                told.append(type(error))
        gate.ran.append("y")

    def wait_for(close: Callable[[], object]) -> None:
        s.sleep(0.5)
        close()

    gate.submit(gate.queue.enqueue, "y", waits)
    s.thread("pool closer", wait_for, gate.pool.close)
    s.thread("closer", gate.close, 1.0)
    s.check("told at each", lambda: len(told) == 3)


def test_stubborn() -> None:
    run_random(stubborn, 50)
    run_exhaustive(stubborn, preemptions=1, switches=0)
