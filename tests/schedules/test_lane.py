"""`StateLane` under every schedule: run, post, park, close, and lanes inside lanes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.state import StateLane
from zlink_nogil.state.lane import PARK_BOUND

from .harness import Scenario, ScenarioFunction, run_exhaustive, run_lines, run_random

MODULES = ["zlink_nogil.state.lane", "zlink_nogil.state._waits"]


class Watched:
    """A lane and what is known about its turns, checked as they run."""

    def __init__(self, s: Scenario, name: str = "x") -> None:
        self.s = s
        self.lane = StateLane(name)
        self.inside: set[int] = set()
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.ran: list[str] = []
        self.closing = False
        self.over = False

    def turn(self, name: str, long: float = 0.0) -> None:
        with self.s.alone(self.inside, "one turn at a time"):
            self.s.expect(not self.over, "nothing runs once close has returned")
            self.s.expect(StateLane.current is self.lane, "a turn is on its lane")
            if long:
                self.s.sleep(long)
            self.ran.append(name)

    def run(self, name: str, long: float = 0.0) -> None:
        try:
            self.lane.run(self.turn, name, long)
        except ShuttingDown:
            self.refuse(name)
        else:
            self.accepted.append(name)
        self.s.expect(StateLane.current is None, "the mark goes with the turn")

    def post(self, name: str, long: float = 0.0) -> None:
        before = StateLane.current
        if self.lane.try_post(lambda: self.turn(name, long)):
            self.accepted.append(name)
        else:
            self.refuse(name)
        self.s.expect(StateLane.current is before, "the mark goes with the turn")

    def refuse(self, name: str) -> None:
        self.s.expect(self.closing, "nothing is refused before a close")
        self.refused.append(name)

    def close(self) -> None:
        self.closing = True
        self.lane.close()
        self.s.expect(not self.inside, "no turn is under way when close returns")
        self.s.expect(set(self.posted(self.accepted)) <= set(self.ran), "close returns after accepted posted work")
        self.over = True

    @staticmethod
    def posted(names: list[str]) -> list[str]:
        return [name for name in names if name.startswith("post")]

    def check(self) -> None:
        self.s.check("what was accepted ran, once; nothing else did", lambda: sorted(self.ran) == sorted(self.accepted))
        self.s.check("the lane is free in the end", self.is_free)

    def is_free(self) -> bool:
        """Ask by a close: it would wait for ever behind a lock that nobody gives back."""
        self.lane.close()
        return True


def runs_and_posts(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("a", lane.run, "run a")
    s.thread("b", lane.run, "run b")

    def post() -> None:
        lane.post("post 1")
        lane.post("post 2")

    s.thread("c", post)
    lane.check()
    s.check("posted work in posting order", lambda: lane.posted(lane.ran) == ["post 1", "post 2"])


def test_runs_and_posts() -> None:
    run_random(runs_and_posts)
    run_exhaustive(runs_and_posts, preemptions=1)
    run_lines(runs_and_posts, MODULES)


def one_caller_keeps_its_order(s: Scenario) -> None:
    lane = Watched(s)

    def both(name: str) -> None:
        lane.run(f"{name} 1")
        lane.run(f"{name} 2")

    s.thread("a", both, "a")
    s.thread("b", both, "b")
    lane.check()
    s.check("a caller's turns in its order", lambda: all(lane.ran.index(f"{x} 1") < lane.ran.index(f"{x} 2") for x in "ab"))


def test_one_caller_keeps_its_order() -> None:
    run_random(one_caller_keeps_its_order)
    run_exhaustive(one_caller_keeps_its_order, preemptions=2)


def run_post_close(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("a", lane.run, "run a")
    s.thread("b", lane.post, "post b")
    s.thread("c", lane.close)
    lane.check()


def test_run_post_close() -> None:
    run_random(run_post_close)
    run_exhaustive(run_post_close, preemptions=1)
    run_lines(run_post_close, MODULES)


def post_and_close(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("a", lane.post, "post a")
    s.thread("b", lane.close)
    lane.check()


def test_post_and_close() -> None:
    run_exhaustive(post_and_close, preemptions=1, lines=MODULES)


def two_closes(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("a", lane.post, "post a", 2 * PARK_BOUND)
    s.thread("b", lane.close)
    s.thread("c", lane.close)
    lane.check()


def test_two_closes() -> None:
    run_random(two_closes)
    run_exhaustive(two_closes, preemptions=1)


def parked_callers(s: Scenario) -> None:
    """A turn that is longer than the bound: the others join the line and get the lane handed to them."""
    lane = Watched(s)
    s.timeouts_race()
    s.thread("long", lane.run, "run long", 3 * PARK_BOUND)
    s.thread("b", lane.run, "run b")
    s.thread("c", lane.post, "post c")
    lane.check()


def test_parked_callers() -> None:
    run_random(parked_callers)
    run_exhaustive(parked_callers, preemptions=1)
    run_lines(parked_callers, MODULES)


def closing_with_parked_callers(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("long", lane.run, "run long", 3 * PARK_BOUND)
    s.thread("b", lane.run, "run b")
    s.thread("c", lane.close)
    lane.check()


def test_closing_with_parked_callers() -> None:
    run_random(closing_with_parked_callers)
    run_exhaustive(closing_with_parked_callers, preemptions=1)
    run_lines(closing_with_parked_callers, MODULES)


def close_from_a_turn(s: Scenario) -> None:
    lane = Watched(s)

    def close() -> None:
        lane.closing = True
        lane.lane.close()
        lane.post("post late")
        s.expect(lane.refused[-1:] == ["post late"], "closed is closed, also while the turn lasts")

    def close_inside() -> None:
        lane.lane.run(close)

    s.thread("a", close_inside)
    s.thread("b", lane.post, "post b")
    s.thread("c", lane.run, "run c")
    lane.check()


def test_close_from_a_turn() -> None:
    run_random(close_from_a_turn)
    run_exhaustive(close_from_a_turn, preemptions=1)


def who_waits_is_not_passed(s: Scenario) -> None:
    """Who has waited for longer than the bound gets the lane before anybody who comes later."""
    lane = Watched(s)

    def late() -> None:
        s.sleep(2 * PARK_BOUND)
        lane.run("run late")

    s.thread("long", lane.run, "run long", 3 * PARK_BOUND)
    s.thread("b", lane.run, "run b")
    s.thread("late", late)
    lane.check()
    s.check("in this order", lambda: lane.ran.index("run b") < lane.ran.index("run late"))


def an_interrupted_caller(s: Scenario, arrives: float = 0.5 * PARK_BOUND) -> None:
    """It gives its place up, or the lane if it got it just now: then to who waits behind it."""
    lane = Watched(s)

    def later(long: float, body: Callable[[str], object], name: str) -> None:
        s.sleep(long)
        with suppress(KeyboardInterrupt):
            body(name)

    s.thread("b", later, arrives, lane.run, "run b")
    s.thread("c", later, PARK_BOUND, lane.run, "run c")
    s.thread("signal", later, 4 * PARK_BOUND, s.interrupt, "b")
    s.thread("long", lane.run, "run long", 4 * PARK_BOUND)
    s.thread("late", later, 4 * PARK_BOUND, lane.run, "run late")
    lane.check()
    s.check("nobody is passed", lambda: lane.ran.index("run c") < lane.ran.index("run late"))


def an_interrupted_caller_in_the_middle(s: Scenario) -> None:
    an_interrupted_caller(s, 1.5 * PARK_BOUND)


def test_who_waits_is_not_passed() -> None:
    run_exhaustive(who_waits_is_not_passed, preemptions=1, switches=1)
    run_random(an_interrupted_caller)
    run_exhaustive(an_interrupted_caller, preemptions=2, switches=0)
    run_exhaustive(an_interrupted_caller_in_the_middle, preemptions=2, switches=0)


def lanes_inside_lanes(s: Scenario) -> None:
    """A thread is on the lanes it holds, and on no other, also where it runs what somebody else posted."""
    outer, inner = StateLane("outer", rank=1), StateLane("inner", rank=2)
    on_outer: set[int] = set()

    def known() -> None:
        around = s.world.current.number in on_outer
        s.expect(StateLane.current is inner and inner.is_on_lane, "on the inner lane")
        s.expect(outer.is_on_lane == around, "on the outer lane, or not")
        s.expect(told(inner, inner.throw_if_reentrant) and told(inner, inner.run), "re-entry is told")
        s.expect(told(outer, outer.run), "re-entry, or the lock order, is told")

    def told(lane: StateLane, enter: Callable[..., object]) -> bool:
        try:
            enter(*[s.step] * (enter == lane.run))
        except InvalidOperation as error:
            return lane.name in str(error)
        return False

    def both(then: Callable[[Callable[[], None]], object]) -> None:
        with s.alone(on_outer, "one turn at a time"):
            then(known)

    s.thread("a", outer.run, both, inner.run)
    s.thread("b", inner.run, known)
    s.thread("c", outer.run, both, inner.try_post)
    s.thread("d", inner.try_post, known)


def test_lanes_inside_lanes() -> None:
    run_random(lanes_inside_lanes)


def after_a_fork(s: Scenario) -> None:
    """In the child the locks are in an unknown state: what would wait for one is refused."""
    lane = StateLane("x")

    def refused(call: Callable[..., object], *args: object) -> bool:
        try:
            call(*args)
        except InvalidOperation:
            return True
        return False

    def child() -> None:
        _sync._count_fork()
        s.expect(refused(lane.try_post, s.step) and refused(lane.close), "refused")
        s.expect(refused(lane.run, s.step), "refused while another thread of the parent had it")

    def hold() -> None:
        s.thread_now("child", child)
        s.sleep(1.0)

    lane.run(hold)


def test_after_a_fork() -> None:
    run_exhaustive(after_a_fork, preemptions=1)


def crossing(s: Scenario, names: str, *paths: str, long: float = 0.0) -> None:
    """A thread per path, which enters those lanes: where they are in each other's way, one is told."""
    lanes = {name: StateLane(name) for name in names}
    outcomes: list[str] = []

    def enter(path: str) -> None:
        if long and len(path) == 1:
            s.sleep(long)
        if path:
            lanes[path[0]].run(enter, path[1:])

    def thread(path: str) -> None:
        try:
            enter(path)
        except InvalidOperation as error:
            s.expect(all(f"'{path[-1]}'" in str(error) for path in paths), "the lanes that are waited for are named")
            outcomes.append("told")
        else:
            outcomes.append("went on")

    for path in paths:
        s.thread(path, thread, path)
    s.check("all ended, and at most one was told", lambda: outcomes.count("told") <= 1 and len(outcomes) == len(paths))


def crossing_lanes(s: Scenario) -> None:
    crossing(s, "ab", "ab", "ba")


def crossing_at_the_same_time(s: Scenario) -> None:
    crossing(s, "ab", "ab", "ba", long=1.0)


def crossing_the_outer_one(s: Scenario) -> None:
    crossing(s, "abc", "abc", "ca")


def test_crossing_lanes() -> None:
    run_random(crossing_lanes)
    run_exhaustive(crossing_lanes, preemptions=2)
    run_exhaustive(crossing_at_the_same_time, preemptions=1, lines=MODULES)
    run_exhaustive(crossing_the_outer_one, preemptions=2)


def one_wait_ends_as_another_begins(s: Scenario) -> None:
    lanes = {name: StateLane(name) for name in "abcd"}

    def through(outer: str, inner: str, at: float) -> None:
        s.sleep(at)
        lanes[outer].run(lanes[inner].run, s.step)

    s.thread("first", through, "a", "b", PARK_BOUND)
    s.thread("second", through, "c", "d", 3 * PARK_BOUND)
    s.thread("holds b", lanes["b"].run, s.sleep, 3 * PARK_BOUND)
    s.thread("holds d", lanes["d"].run, s.sleep, 4 * PARK_BOUND)


def test_one_wait_ends_as_another_begins() -> None:
    run_exhaustive(one_wait_ends_as_another_begins, preemptions=1, switches=0, lines=MODULES[1:])


KEPT = {
    "a second close returns early": (two_closes, 0),
    "work is accepted behind a close": (post_and_close, 4),
}
"""Bugs that were there, and the first seed that saw them: `mutants/lane.toml` says whether it still does."""


@pytest.mark.parametrize(("scenario", "seed"), KEPT.values(), ids=KEPT)
def test_kept(scenario: ScenarioFunction, seed: int) -> None:
    run_random(scenario, [seed])
