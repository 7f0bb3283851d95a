"""`SpotSerialExecutor` under every schedule: find or make a queue, sweep idle ones away, members that come and go, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded, ShuttingDown
from zlink_nogil.execution import (
    ExecutionLanePolicy,
    PerActor,
    SerialExecutionQueue,
    SpotMode,
    SpotSerialExecutor,
    SpotWide,
    Turn,
)
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler.spawning import spawn

from .gates import in_order
from .harness import Scenario, run_exhaustive, run_kept, run_lines, run_random

SPOT = [f"zlink_nogil.execution.{name}" for name in ("spot", "_queue_map", "_closing", "queue")]


class Watched:
    """A Spot whose idle queues are swept away as soon as there is more than one, and what became of each work."""

    def __init__(self, s: Scenario, mode: SpotMode, workers: int = 2, **policy: Any) -> None:
        self.s = s
        self.mode = mode
        self.pool = WorkerPool(workers)
        limits = ExecutionLanePolicy(**policy)
        self.spot = SpotSerialExecutor("s", mode, policy=limits, pool=self.pool)
        self.spot._actors._first_sweep = self.spot._actors._sweep_at = 1
        self.rooms: dict[str, set[int]] = {}
        self.queues: dict[str, list[SerialExecutionQueue]] = {}
        self.submitted: dict[str, Completion[Any]] = {}
        self.refused: list[str] = []
        self.ran: list[str] = []
        self.over = False
        s.check("an end for each", lambda: all(completion.done() for completion in self.submitted.values()))
        s.check("each in one place", lambda: sorted(self.ran) == sorted(self.ok()))
        s.check("nothing is reserved", lambda: not any(each.reserved_items for each in self.spot.snapshots()))

    def ok(self) -> list[str]:
        return [name for name, completion in self.submitted.items() if completion.exception(0.0) is None]

    def work(self, owner: str, name: str) -> Callable[[], None]:
        def run() -> None:
            room = self.rooms.setdefault("gate" if self.mode.one_gate else owner, set())
            with self.s.alone(room, "one turn at a time"):
                self.s.expect(not self.over, "nothing runs once close has returned")
                self._look_at(owner)
                self.ran.append(name)

        return run

    def _look_at(self, owner: str) -> None:
        turn = Turn.current
        assert turn is not None
        known = self.queues.setdefault(owner, [])
        if turn.queue not in known:
            assert isinstance(turn.queue, SerialExecutionQueue)
            known.append(turn.queue)
        self.s.expect(all(queue.retired for queue in known if queue is not turn.queue), "one open queue per owner")

    def give(self, execute: Callable[..., Completion[Any]], *arguments: Any, name: str) -> None:
        try:
            self.submitted[name] = execute(*arguments)
        except (ShuttingDown, CapacityExceeded):
            self.refused.append(name)

    def actor(self, *names: str) -> None:
        for name in names:
            self.give(self.spot.execute_actor, name[0], self.work(name[0], name), name=name)

    def own(self, *names: str) -> None:
        for name in names:
            self.give(self.spot.execute_spot, self.work("s", name), name=name)

    def timer(self, *names: str) -> None:
        for name in names:
            self.give(self.spot.execute_timer, name[0], self.work(f"timer {name[0]}", name), name=name)

    def close(self, timeout: float = 100.0) -> None:
        self.spot.close(timeout)
        self.over = True


def sweeping(s: Scenario) -> None:
    """Idle queues are dropped while work comes: one open queue per Actor, in order, nothing lost."""
    spot = Watched(s, PerActor)
    s.thread("1", spot.actor, "a1", "b1", "a2")
    s.thread("2", spot.actor, "c1", "a3")
    s.check("nothing is lost", lambda: len(spot.ran) == 5 and in_order(spot.ran, "a1", "a2"))


def sweeping_behind_a_gate(s: Scenario) -> None:
    spot = Watched(s, SpotWide, application_message_capacity=2)
    s.thread("1", spot.actor, "a1", "b1", "a2")
    s.thread("2", spot.actor, "c1", "a3")
    s.thread("3", spot.own, "s1")
    s.check("nothing is lost", lambda: len(spot.ran) + len(spot.refused) == 6 and in_order(spot.ran, "a1", "a2"))
    s.check("what an Actor has accepted is not refused", lambda: spot.refused in ([], ["s1"]))


def a_million_actors(s: Scenario) -> None:
    """A Spot that has seen many Actors keeps those that have work."""
    spot = Watched(s, SpotWide)

    def visit() -> None:
        for name in "abcdefgh":
            spot.actor(f"{name}1")
            s.sleep(1.0)
            s.expect(len(spot.spot._actors) <= 2, "idle ones are dropped")

    s.thread("visitor", visit)


def test_sweeping() -> None:
    run_random(sweeping)
    run_exhaustive(sweeping, preemptions=1, switches=0)
    run_lines(sweeping, SPOT)
    run_random(sweeping_behind_a_gate)
    run_lines(sweeping_behind_a_gate, SPOT)
    run_random(a_million_actors, 20)


def one_gate(s: Scenario) -> None:
    """SpotWide: the Spot's own work, its Actors' and its timers' one at a time."""
    spot = Watched(s, SpotWide)
    s.thread("1", spot.actor, "a1", "b1")
    s.thread("2", spot.own, "s1")
    s.thread("3", spot.timer, "t1", "u1")
    s.thread("4", lambda: spot.give(spot.spot.execute_lifecycle, spot.work("s", "life"), name="life"))
    s.check("nothing is lost", lambda: len(spot.ran) == 6)


def queues_of_their_own(s: Scenario) -> None:
    """PerActor: two handlers that need each other to go on do."""
    spot = Watched(s, PerActor, workers=4)
    here, there = _sync.Event(), _sync.Event()

    def meet(mine: _sync.Event, other: _sync.Event, name: str) -> None:
        mine.set()
        other.wait()
        spot.ran.append(name)

    s.thread("1", lambda: spot.give(spot.spot.execute_actor, "a", lambda: meet(here, there, "a"), name="a"))
    s.thread("2", lambda: spot.give(spot.spot.execute_timer, "t", lambda: meet(there, here, "t"), name="t"))
    s.check("both ran", lambda: sorted(spot.ran) == ["a", "t"])


def test_modes() -> None:
    run_random(one_gate)
    run_exhaustive(one_gate, preemptions=1, switches=0)
    run_random(queues_of_their_own, 50)


def closing(s: Scenario, mode: SpotMode) -> None:
    """What was accepted has ended when `close` returns; the rest is refused, and never runs."""
    spot = Watched(s, mode)
    s.thread("1", spot.actor, "a1", "b1")
    s.thread("2", spot.own, "s1")
    s.thread("3", spot.timer, "t1")
    s.thread("closer", spot.close)
    s.check("run or refused", lambda: len(spot.ran) + len(spot.refused) == 4)


def closing_per_actor(s: Scenario) -> None:
    closing(s, PerActor)


def closing_spot_wide(s: Scenario) -> None:
    closing(s, SpotWide)


def two_closers(s: Scenario) -> None:
    """Each waits for the end; one of them is a handler of the Spot, which only marks it closed."""
    spot = Watched(s, SpotWide)

    def closes() -> None:
        spot.spot.close()
        spot.ran.append("closes")

    s.thread("1", lambda: spot.give(spot.spot.execute_actor, "a", closes, name="closes"))
    s.thread("2", spot.actor, "a1")
    s.thread("closer", spot.close)
    s.check("run or refused", lambda: len(spot.ran) + len(spot.refused) == 2)


def out_of_time(s: Scenario) -> None:
    """Who waits is told when the time is over, with the gate or without; who has not begun is refused."""
    spot = Watched(s, SpotWide, workers=1)
    never: Completion[None] = Completion(spot.pool)

    async def waits() -> None:
        await never

    async def yields() -> None:
        await never.yield_()

    s.thread("1", lambda: spot.give(spot.spot.execute_actor, "a", yields, name="yields"))
    s.thread("2", lambda: spot.give(spot.spot.execute_actor, "b", waits, name="waits"))
    s.thread("3", spot.actor, "a1", "c1")
    s.thread("closer", spot.close, 1.0)


def a_last_word(s: Scenario) -> None:
    """`end` runs its final work when nothing else is left, once."""
    spot = Watched(s, SpotWide)
    s.thread("1", spot.actor, "a1", "b1")
    s.thread("2", spot.own, "s1")

    def end() -> None:
        spot.submitted["final"] = spawn(spot.spot.end(100.0, spot.work("s", "final")), pool=spot.pool)
        spot.submitted["final"].result()
        spot.over = True

    s.thread("ender", end)
    s.check("at the end", lambda: spot.ran[-1] == "final" and len(spot.ran) + len(spot.refused) == 4)


def the_pool_closes(s: Scenario) -> None:
    spot = Watched(s, SpotWide)
    s.thread("1", spot.actor, "a1", "b1")
    s.thread("pool closer", spot.pool.close)
    s.thread("closer", spot.close)
    s.check("an end, or refused", lambda: len(spot.submitted) + len(spot.refused) == 2)


def test_closing() -> None:
    run_random(closing_per_actor)
    run_lines(closing_per_actor, SPOT)
    run_random(closing_spot_wide)
    run_exhaustive(closing_spot_wide, preemptions=1, switches=0)
    run_lines(closing_spot_wide, SPOT)


def test_closing_with_others() -> None:
    run_random(two_closers)
    run_random(out_of_time)
    run_lines(out_of_time, SPOT)
    run_random(a_last_word)
    run_random(the_pool_closes)
    run_lines(the_pool_closes, SPOT)


def test_kept() -> None:
    """A handler that runs as the pool is closed, and then the Spot."""
    run_kept(the_pool_closes, 1562)
