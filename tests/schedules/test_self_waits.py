"""Waiting for oneself, under every schedule: told where it would be for ever, and nowhere else (decision 11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool

from .harness import Scenario, run_exhaustive, run_lines, run_random

WAITS = ["zlink_nogil.execution._waits", "zlink_nogil.execution._loop", "zlink_nogil.execution.turn"]

type Way = Callable[[Completion[Any]], Any]


async def keeping(completion: Completion[Any]) -> None:
    await completion


async def giving_back(completion: Completion[Any]) -> None:
    await completion.yield_()


async def blocking(completion: Completion[Any]) -> None:
    completion.result()


async def impatient(completion: Completion[Any]) -> None:
    """Its time is over before anything comes."""
    with contextlib.suppress(DeadlineExceeded):
        completion.result(0.0)


async def mistaken(completion: Completion[Any]) -> None:
    """Has no gate to give back."""
    try:
        await completion.yield_()
    except InvalidOperation:
        return
    raise AssertionError("there is none")


class Owners:
    """Queues whose handlers ask each other; `shared` and `outer` as those of the queues."""

    def __init__(self, s: Scenario, names: str, workers: int = 2, *, shared: str = "", **outer: str) -> None:
        self.s = s
        self.pool = WorkerPool(workers)
        self.queues: dict[str, SerialExecutionQueue] = {}
        for name in names:
            gate = self.queues.get(outer.get(name, ""))
            self.queues[name] = SerialExecutionQueue(pool=self.pool, name=name, shared=name in shared, outer=gate)
        self.here = {name: _sync.Event() for name in names}
        self.told: list[str] = []
        self.ended: list[str] = []
        self.given: list[Completion[Any]] = []
        s.check("everything has an end", lambda: all(completion.done() for completion in self.given))
        s.check("and a good one", lambda: all(completion.exception() is None for completion in self.given))
        s.check("the queues are idle", lambda: all(queue.is_idle() for queue in self.queues.values()))

    def give(self, name: str, work: Callable[[], Any]) -> Completion[Any]:
        self.given.append(self.queues[name].enqueue(work))
        return self.given[-1]

    def asks(self, me: str, other: str, way: Way = keeping, *, meeting: str = "", work: Any = None) -> Callable[[], Any]:
        """A handler of `me`: has `other` do something and waits for it, when those of `meeting` have begun as well."""

        async def run() -> None:
            self.here[me].set()
            for name in meeting:
                self.here[name].wait()
            completion = self.give(other, work or self.s.step)
            try:
                await way(completion)
            except InvalidOperation:
                self.told.append(me)
            self.ended.append(me)

        return run

    def start(self, *asks: tuple[str, str], way: Way = keeping, meeting: str = "") -> None:
        for me, other in asks:
            self.s.thread(me, self.give, me, self.asks(me, other, way, meeting=meeting))

    def one_is_told(self) -> None:
        self.s.check("exactly one is told, and all go on", lambda: len(self.told) == 1 and len(self.ended) == len(self.here))

    def nobody_is_told(self) -> None:
        self.s.check("nobody is told", lambda: self.told == [] and self.ended != [])


def each_other(s: Scenario) -> None:
    owners = Owners(s, "ab")
    owners.start(("a", "b"), ("b", "a"), meeting="ab")
    owners.one_is_told()


def each_other_in_threads(s: Scenario) -> None:
    owners = Owners(s, "ab")
    owners.start(("a", "b"), ("b", "a"), way=blocking, meeting="ab")
    owners.one_is_told()


def in_a_circle(s: Scenario) -> None:
    owners = Owners(s, "abc", workers=3)
    owners.start(("a", "b"), ("b", "c"), ("c", "a"), meeting="abc")
    owners.one_is_told()


def perhaps(s: Scenario) -> None:
    """They do not meet: whether there is a circle depends, but nobody waits for ever, and two are not told."""
    owners = Owners(s, "ab")
    owners.start(("a", "b"), ("b", "a"))
    s.check("one at most", lambda: len(owners.told) <= 1 and sorted(owners.ended) == ["a", "b"])


def test_a_circle() -> None:
    run_random(each_other)
    run_exhaustive(each_other, preemptions=1, switches=0)
    run_lines(each_other, WAITS)
    run_random(perhaps)
    run_exhaustive(perhaps, preemptions=1, switches=0, lines=WAITS[:1])


def test_a_circle_of_threads_or_of_three() -> None:
    run_random(each_other_in_threads)
    run_exhaustive(each_other_in_threads, preemptions=1, switches=0)
    run_random(in_a_circle)
    run_lines(in_a_circle, WAITS)


def through_a_gate(s: Scenario) -> None:
    """An Actor that keeps the gate waits for somebody who waits for its Spot."""
    owners = Owners(s, "sab", a="s")
    s.thread("a", owners.give, "a", owners.asks("a", "b", meeting="ab"))
    s.thread("b", owners.give, "b", owners.asks("b", "s", meeting="ab"))
    s.check("exactly one is told", lambda: len(owners.told) == 1 and sorted(owners.ended) == ["a", "b"])


def through_a_claim(s: Scenario) -> None:
    """It gives back the gate, not its own queue."""
    owners = Owners(s, "sab", a="s", shared="s")
    s.thread("a", owners.give, "a", owners.asks("a", "b", giving_back, meeting="ab"))
    s.thread("b", owners.give, "b", owners.asks("b", "a", meeting="ab"))
    s.check("exactly one is told", lambda: len(owners.told) == 1 and sorted(owners.ended) == ["a", "b"])


def test_a_circle_through_a_spot() -> None:
    run_random(through_a_gate)
    run_exhaustive(through_a_gate, preemptions=1, switches=0)
    run_random(through_a_claim)
    run_exhaustive(through_a_claim, preemptions=1, switches=0)


def over_at_that_instant(s: Scenario) -> None:
    """What `a` waits for is done, and `a` has not gone on yet: who waits for `a` does not close a circle."""
    owners = Owners(s, "ab")

    async def first() -> None:
        answer = owners.give("b", s.step)
        owners.give("b", owners.asks("b", "a"))
        await answer

    s.thread("caller", owners.give, "a", first)
    owners.nobody_is_told()


def told_if_first(s: Scenario) -> None:
    """As above, with `b` first in some schedules: then `a` waits for `b`, which is told or has been answered."""
    owners = Owners(s, "ab")
    owners.start(("a", "b"), ("b", "a"), way=blocking)
    s.check("one at most", lambda: len(owners.told) <= 1 and sorted(owners.ended) == ["a", "b"])


def gave_it_back(s: Scenario) -> None:
    """A turn that gives its gate back for `b` does not keep it from `b`, at no instant."""
    owners = Owners(s, "sb", shared="s")
    s.thread("s", owners.give, "s", owners.asks("s", "b", giving_back, work=owners.asks("b", "s")))
    owners.nobody_is_told()


def gave_the_gate_back(s: Scenario) -> None:
    """Nor an Actor's that of its Spot."""
    owners = Owners(s, "sab", shared="s", a="s")
    s.thread("a", owners.give, "a", owners.asks("a", "b", giving_back, work=owners.asks("b", "s")))
    owners.nobody_is_told()


def had_nothing_to_give(s: Scenario) -> None:
    """Refused to give back what it has not, it goes on, and waits for nobody."""
    owners = Owners(s, "ab")
    s.thread("a", owners.give, "a", owners.asks("a", "b", mistaken, work=owners.asks("b", "a")))
    owners.nobody_is_told()


def gave_up(s: Scenario) -> None:
    """A wait with a time limit is over when that is."""
    owners = Owners(s, "ab", workers=2)
    go = _sync.Event()

    async def waits_for_a() -> None:
        go.wait()
        await owners.asks("b", "a")()

    async def first() -> None:
        await owners.asks("a", "b", impatient, work=waits_for_a)()
        go.set()
        s.sleep(1.0)

    s.thread("a", lambda: owners.give("a", first).result())
    owners.nobody_is_told()


def told_to_stop(s: Scenario) -> None:
    """A wait that is interrupted is over, also when the handler goes on with something else."""
    owners = Owners(s, "ab", workers=2)
    go = _sync.Event()

    async def waits_for_a() -> None:
        go.wait()
        await owners.asks("b", "a")()

    async def first() -> None:
        with contextlib.suppress(Cancelled):
            await owners.give("b", waits_for_a)
        go.set()
        s.sleep(1.0)

    def cancel() -> None:
        turn = owners.give("a", first)
        s.sleep(1.0)
        turn.cancel()
        turn.result()

    s.thread("a", cancel)
    owners.nobody_is_told()


def test_no_circle() -> None:
    run_random(over_at_that_instant)
    run_exhaustive(over_at_that_instant, preemptions=1, switches=0, lines=WAITS[:1])
    run_random(told_if_first)
    run_random(gave_up)
    run_random(told_to_stop)


def test_no_circle_with_what_was_given_back() -> None:
    run_random(gave_it_back)
    run_exhaustive(gave_it_back, preemptions=1, switches=0, lines=WAITS[:1])
    run_random(gave_the_gate_back)
    run_exhaustive(gave_the_gate_back, preemptions=1, switches=0)
    run_random(had_nothing_to_give)


def itself(s: Scenario) -> None:
    """Its own queue, its own gate; with a gate that is given back only what is kept."""
    owners = Owners(s, "saob", a="s", o="s", shared="s")
    wrong = [("a", "a", keeping), ("a", "a", giving_back), ("a", "s", keeping), ("a", "o", keeping), ("s", "a", keeping)]
    right = [("a", "s", giving_back), ("a", "o", giving_back), ("s", "a", giving_back), ("b", "s", keeping)]

    def each() -> None:
        for me, other, way in (*wrong, *right, ("b", "b", blocking)):
            owners.give(me, owners.asks(me, other, way)).result()

    s.thread("caller", each)
    s.check("these are told", lambda: owners.told == [*(me for me, _, _ in wrong), "b"])


def its_own_coordinator(s: Scenario) -> None:
    """Blocking for work of the same coordinator, which may need the pool's last thread; awaiting it is fine."""
    owners = Owners(s, "abc", workers=1)
    owners.queues["a"].group = owners.queues["b"].group = object()
    ways = [("a", "b", blocking), ("a", "b", keeping), ("c", "b", blocking)]

    def each() -> None:
        for me, other, way in ways:
            owners.give(me, owners.asks(me, other, way)).result()

    s.thread("caller", each)
    s.check("this is told", lambda: owners.told == ["a"] and owners.ended == ["a", "a", "c"])


def test_itself() -> None:
    run_random(itself, 20)
    run_random(its_own_coordinator, 20)
