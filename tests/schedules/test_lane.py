"""`StateLane` under every schedule: run, post, park, close, and lanes inside lanes."""

from __future__ import annotations

from collections.abc import Callable

from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.state import StateLane
from zlink_nogil.state.lane import PARK_BOUND

from .harness import Scenario, run_exhaustive, run_lines, run_random

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
            self.refused.append(name)
        else:
            self.accepted.append(name)
        self.s.expect(StateLane.current is None, "the mark goes with the turn")

    def post(self, name: str, long: float = 0.0) -> None:
        accepted = self.lane.try_post(lambda: self.turn(name, long))
        (self.accepted if accepted else self.refused).append(name)

    def close(self) -> None:
        self.lane.close()
        self.s.expect(set(self.posted(self.accepted)) <= set(self.ran), "close returns after accepted posted work")
        self.over = True

    @staticmethod
    def posted(names: list[str]) -> list[str]:
        return [name for name in names if name.startswith("post")]

    def check(self) -> None:
        self.s.check("what was accepted ran, once; nothing else did", lambda: sorted(self.ran) == sorted(self.accepted))
        self.s.check("the lane is free in the end", self.is_free)

    def is_free(self) -> bool:
        """Ask by a turn: it would wait for ever behind a lock that nobody gives back."""
        try:
            self.lane.run(self.s.step)
        except ShuttingDown:
            return True
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
    run_exhaustive(runs_and_posts, preemptions=2)
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
    run_exhaustive(run_post_close, preemptions=2)
    run_lines(run_post_close, MODULES)


def two_closes(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("a", lane.post, "post a", 2 * PARK_BOUND)
    s.thread("b", lane.close)
    s.thread("c", lane.close)
    lane.check()


def test_two_closes() -> None:
    run_random(two_closes)
    run_exhaustive(two_closes, preemptions=2)


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
    run_exhaustive(parked_callers, preemptions=2)
    run_lines(parked_callers, MODULES)


def closing_with_parked_callers(s: Scenario) -> None:
    lane = Watched(s)
    s.thread("long", lane.run, "run long", 3 * PARK_BOUND)
    s.thread("b", lane.run, "run b")
    s.thread("c", lane.close)
    lane.check()


def test_closing_with_parked_callers() -> None:
    run_random(closing_with_parked_callers)
    run_exhaustive(closing_with_parked_callers, preemptions=2)
    run_lines(closing_with_parked_callers, MODULES)


def close_from_a_turn(s: Scenario) -> None:
    lane = Watched(s)

    def close_inside() -> None:
        lane.lane.run(lane.lane.close)

    s.thread("a", close_inside)
    s.thread("b", lane.post, "post b")
    s.thread("c", lane.run, "run c")
    lane.check()


def test_close_from_a_turn() -> None:
    run_random(close_from_a_turn)
    run_exhaustive(close_from_a_turn, preemptions=2)


def crossing_lanes(s: Scenario) -> None:
    """Two callers, each on one lane, want the other's: one is told, the other goes on."""
    first, second = StateLane("first"), StateLane("second")
    outcomes: list[str] = []

    def cross(outer: StateLane, inner: StateLane) -> Callable[[], None]:
        def inside() -> None:
            try:
                outer.run(inner.run, s.step)
            except InvalidOperation as error:
                s.expect("first" in str(error) and "second" in str(error), "both lanes are named")
                outcomes.append("told")
            else:
                outcomes.append("went on")

        return inside

    s.thread("a", cross(first, second))
    s.thread("b", cross(second, first))
    s.check("both ended, and at most one was told", lambda: len(outcomes) == 2 and outcomes.count("told") <= 1)


def test_crossing_lanes() -> None:
    run_random(crossing_lanes)
    run_exhaustive(crossing_lanes, preemptions=2)
    run_lines(crossing_lanes, MODULES)
