"""An Actor's queue in a Spot's, under every schedule: its head on the way, refused room, kept, given back, cancelled."""

from __future__ import annotations

from zlink_nogil.scheduler import Completion

from .gates import GATE, Gate, in_order
from .harness import Scenario, run_exhaustive, run_lines, run_random


def one_gate(s: Scenario) -> None:
    """Two workers, two Actors and the Spot, and room for one turn: nothing accepted is refused later."""
    gate = Gate(s, "a", "b", workers=2, capacity=1)
    s.thread("a", gate.actor, "a1", "a2")
    s.thread("b", gate.actor, "b1", "b2")
    s.thread("spot", lambda: gate.submit(gate.queue.enqueue, "s", gate.plain("s")))
    s.check("in the order of each Actor", lambda: in_order(gate.ran, "a1", "a2") and in_order(gate.ran, "b1", "b2"))
    s.check("only the Spot's work may be refused", lambda: gate.refused in ([], ["s"]))


def one_after_the_other(s: Scenario) -> None:
    """The next one comes as the last one ends: one head at a time."""
    gate = Gate(s, "a", capacity=1)
    gate.actor("a1")
    s.thread("next", gate.actor, "a2")
    s.check("both ran", lambda: gate.ran == ["a1", "a2"])


def test_one_gate() -> None:
    run_random(one_gate)
    run_exhaustive(one_gate, preemptions=1, switches=0)
    run_lines(one_gate, GATE)
    run_exhaustive(one_after_the_other, preemptions=1)


def heads_in_a_row(s: Scenario) -> None:
    """Heads that find no room wait in order, and go ahead of what is submitted later."""
    gate = Gate(s, "a", "b", "c", capacity=2)
    before: list[str] = []

    def first() -> None:
        gate.actor("a1", "b1", "c1")
        gate.began.append("first")
        gate.ran.append("first")

    def later() -> None:
        before.extend(name for name in ("a1", "b1", "c1") if name in gate.submitted)
        gate.submit(gate.queue.enqueue, "later", gate.plain("later"))

    s.thread("first", lambda: gate.submit(gate.queue.enqueue, "first", first))
    s.thread("later", later)
    s.check("in the order in which they came", lambda: in_order(gate.ran, "a1", "b1", "c1"))
    s.check("ahead of what came later", lambda: in_order(gate.ran, *before, "later"))
    s.check(
        "only the Spot's work may be refused", lambda: "a1" not in gate.refused and len(gate.ran) + len(gate.refused) == 5
    )


def test_heads_in_a_row() -> None:
    run_random(heads_in_a_row)
    run_exhaustive(heads_in_a_row, preemptions=1)
    run_lines(heads_in_a_row, GATE)
    run_random(a_big_one_ends, 20)


def a_big_one_ends(s: Scenario) -> None:
    """Its bytes were room for several heads, which all go ahead of what is submitted then."""
    gate = Gate(s, "a", "b", "c", application_byte_capacity=1024)

    def first() -> None:
        gate.actor("a1", "b1", "c1")
        gate.ran.append("first")

    def submits() -> None:
        gate.submit(gate.queue.enqueue, "later", gate.plain("later"))
        gate.ran.append("a1")

    plain = gate.plain
    gate.plain = lambda name: submits if name == "a1" else plain(name)  # type: ignore[method-assign]
    big = gate.queue.enqueue_with_payload_bytes
    s.thread("first", lambda: gate.submit(lambda work: big(work, 768), "first", first))
    s.check("in line", lambda: gate.ran == ["first", "a1", "b1", "c1", "later"])


def no_room_for_a_head(s: Scenario) -> None:
    """A place that a cancel frees goes to the head that waits for one."""
    gate = Gate(s, "a", capacity=2)
    never: Completion[None] = Completion(gate.pool)
    gate.submit(gate.queue.enqueue, "keeps", gate.kept("keeps", never))
    gate.submit(gate.queue.enqueue, "s", gate.plain("s"))
    gate.actor("a1")
    s.thread("canceller", gate.submitted["s"].cancel)
    s.thread("canceller too", gate.submitted["keeps"].cancel)
    s.check("it ran", lambda: "a1" in gate.ran)


def test_no_room_for_a_head() -> None:
    run_random(no_room_for_a_head)
    run_exhaustive(no_room_for_a_head, preemptions=1, switches=0)


def cancelled_on_its_way(s: Scenario) -> None:
    """The work is withdrawn while its head is in the Spot's queue: the head finds the next one, or nothing."""
    gate = Gate(s, "a", "b", capacity=1)
    gate.actor("a1")
    s.thread("canceller", gate.submitted["a1"].cancel)
    s.thread("next", gate.actor, "a2")
    s.thread("other", gate.actor, "b1")
    s.check("the others ran", lambda: {"a2", "b1"} <= set(gate.ran))
    s.check("in order", lambda: in_order(gate.ran, "a1", "a2"))


def test_cancelled_on_its_way() -> None:
    run_random(cancelled_on_its_way)
    run_exhaustive(cancelled_on_its_way, preemptions=1, switches=0)
    run_lines(cancelled_on_its_way, GATE)


def kept_in_a_head(s: Scenario) -> None:
    """A turn that waits keeps both queues, and goes on once: by its outcome or a cancel, at whatever instant."""
    gate = Gate(s, "a", "b", workers=2)
    awaited: Completion[None] = Completion(gate.pool)
    gate.submit(gate.actors["a"].enqueue, "a1", gate.kept("a1", awaited))
    s.thread("next", gate.actor, "a2", "b1")
    s.thread("resumer", awaited.succeed, None)
    s.thread("canceller", gate.submitted["a1"].cancel)
    s.check("the others ran", lambda: {"a2", "b1"} <= set(gate.ran))
    s.check("an end for it", lambda: gate.outcome(gate.submitted["a1"]) in ("ok", "cancelled"))


def both_at_its_wait(s: Scenario) -> None:
    gate = Gate(s, "a")
    awaited: Completion[None] = Completion(gate.pool)
    gate.submit(gate.actors["a"].enqueue, "a1", gate.kept("a1", awaited))
    s.thread("resumer", gate.at_once, awaited.succeed, None)
    s.thread("canceller", gate.at_once, gate.submitted["a1"].cancel)


def a_promised_cancel(s: Scenario) -> None:
    """Cancelled while it runs in a head: it is told at its wait, even when what it awaits never comes."""
    gate = Gate(s, "a")
    never: Completion[None] = Completion(gate.pool)
    gate.submit(gate.actors["a"].enqueue, "a1", gate.kept("a1", never))
    promised: list[bool] = []
    s.thread("canceller", lambda: promised.append(gate.submitted["a1"].cancel()))
    s.check("a promise is kept", lambda: promised == [True] and gate.outcomes("cancelled") == ["a1"])


def test_kept_in_a_head() -> None:
    run_random(kept_in_a_head)
    run_exhaustive(kept_in_a_head, preemptions=1, switches=0)
    run_lines(kept_in_a_head, GATE)


def test_two_ends_of_a_wait() -> None:
    run_exhaustive(both_at_its_wait, preemptions=1, switches=0, lines=GATE[1:2])
    run_exhaustive(a_promised_cancel, preemptions=1)


def the_claim(s: Scenario) -> None:
    """An Actor that yields gives back the gate alone: others go on, its own next message waits."""
    gate = Gate(s, "a", "b", capacity=2)
    awaited: Completion[None] = Completion(gate.pool)
    gate.submit(gate.actors["a"].enqueue, "a1", gate.yielding("a1", awaited))
    gate.actor("a2")

    def other() -> None:
        gate.plain("b1")()
        awaited.succeed(None)

    s.thread("b", lambda: gate.submit(gate.actors["b"].enqueue, "b1", other))
    s.check("all ran, a's in order", lambda: sorted(gate.ran) == ["a1", "a2", "b1"] and in_order(gate.ran, "a1", "a2"))


def two_claims(s: Scenario) -> None:
    """Two Actors that are away, resumed, cancelled and given more work at once."""
    gate = Gate(s, "a", "b", workers=2, capacity=1)
    awaited: Completion[None] = Completion(gate.pool)
    for name in ("a1", "b1"):
        gate.submit(gate.actors[name[0]].enqueue, name, gate.yielding(name, awaited))
    s.thread("next", gate.actor, "a2")
    s.thread("resumer", awaited.succeed, None)
    s.thread("canceller", gate.submitted["b1"].cancel)
    s.check("those that were not cancelled ran", lambda: {"a1", "a2"} <= set(gate.ran) and in_order(gate.ran, "a1", "a2"))


def test_the_claim() -> None:
    run_random(the_claim)
    run_exhaustive(the_claim, preemptions=1, switches=1)
    run_lines(the_claim, GATE)
    run_random(two_claims)
    run_exhaustive(two_claims, preemptions=1, switches=0)
    run_lines(two_claims, GATE)


def time_is_over(s: Scenario) -> None:
    """Both queues expire while an Actor's turn waits, with the gate or without, and its next one is in line."""
    gate = Gate(s, "a", "b", capacity=1)
    never: Completion[None] = Completion(gate.pool)
    s.thread("a", lambda: gate.submit(gate.actors["a"].enqueue, "a1", gate.yielding("a1", never)))
    s.thread("b", lambda: gate.submit(gate.actors["b"].enqueue, "b1", gate.kept("b1", never)))

    def close() -> None:
        queues = (*gate.actors.values(), gate.queue)
        for queue in queues:
            queue.refuse_new()
        s.sleep(1.0)
        for queue in queues:
            queue.expire()
        for queue in queues:
            queue.close(1.0)

    s.thread("closer", close)
    s.check("each was told, or refused", lambda: len(gate.outcomes("shutdown")) + len(gate.refused) == 2)


def the_gate_expires(s: Scenario) -> None:
    """The Spot's queue alone expires: a head that is suspended, or on its way to be, tells its Actor's."""
    gate = Gate(s, "a")
    never: Completion[None] = Completion(gate.pool)
    gate.submit(gate.actors["a"].enqueue, "a1", gate.kept("a1", never))

    def expire() -> None:
        gate.queue.expire()
        s.sleep(1.0)
        gate.queue.expire()

    s.thread("expirer", expire)
    s.check("told", lambda: gate.outcomes("shutdown") == ["a1"])


def a_pool_that_closes(s: Scenario) -> None:
    gate = Gate(s, "a", capacity=1)
    awaited: Completion[None] = Completion(gate.pool)
    s.thread("a", lambda: gate.submit(gate.actors["a"].enqueue, "a1", gate.kept("a1", awaited)))
    s.thread("next", gate.actor, "a2")
    s.thread("closer", gate.pool.close)
    s.thread("resumer", awaited.succeed, None)
    s.check("an end for each", lambda: len(gate.outcomes("ok", "shutdown")) + len(gate.refused) == 2)


def test_closing() -> None:
    run_random(time_is_over)
    run_exhaustive(time_is_over, preemptions=1, switches=0)
    run_lines(time_is_over, GATE)
    run_exhaustive(the_gate_expires, preemptions=1, switches=0, lines=GATE)
    run_random(a_pool_that_closes)
    run_exhaustive(a_pool_that_closes, preemptions=1, switches=0)
    run_lines(a_pool_that_closes, GATE)
