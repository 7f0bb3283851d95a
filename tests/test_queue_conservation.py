"""Everything at once, with hardly any room: what was accepted ends exactly once, in order, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from background import Background
from support import PATIENCE, together

from zlink_nogil.errors import Cancelled, CapacityExceeded, DeadlineExceeded, ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.state import StateLane

SUBMITTERS = range(3)
TIMES = 800
POLICY = ExecutionLanePolicy(
    application_message_capacity=4, lifecycle_message_capacity=2, lifecycle_burst_limit=1, owner_time_budget_ms=0.01
)


class Owner:
    """A queue, and the history of what ran on it."""

    def __init__(self, pool: WorkerPool) -> None:
        self.queue = SerialExecutionQueue(POLICY, pool=pool)
        self.inside = self.overlaps = 0
        self.history: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def turn(self, entry: tuple[str, int, int]) -> Any:
        self.inside += 1
        self.overlaps += self.inside != 1
        self.history.append(entry)
        try:
            yield
        finally:
            self.inside -= 1

    def close(self) -> None:
        with contextlib.suppress(DeadlineExceeded):
            self.queue.close(0)
        self.queue.close(PATIENCE)

    def check(self) -> None:
        assert (self.inside, self.overlaps, self.queue.reserved()) == (0, 0, (0, 0))
        for lane in ("application", "lifecycle"):
            for who in SUBMITTERS:
                order = [index for name, submitter, index in self.history if (name, submitter) == (lane, who)]
                assert order == sorted(set(order)), "first in, first out; none ran twice"


class Storm:
    def __init__(self, owners: int) -> None:
        self.pool = WorkerPool(2)
        self.owners = [Owner(self.pool) for _ in range(owners)]
        self.awaited: list[Completion[None]] = []  # what suspended handlers wait for
        self.accepted: list[Completion[Any]] = []
        self.ended: Counter[Completion[Any]] = Counter()
        self._ended_lock = threading.Lock()
        self._over = threading.Event()

    def rage(self) -> None:
        feeder = Background(self._feed)
        seen = together(*[lambda who=who: self._submit(who, random.Random(who)) for who in SUBMITTERS])
        assert seen == [None] * len(SUBMITTERS)
        for owner in self.owners:
            owner.close()
        self._over.set()
        feeder.result()
        self.pool.close()

    def _feed(self) -> None:
        while not self._over.wait(0.0005):
            with contextlib.suppress(IndexError):
                while True:
                    self.awaited.pop(0).succeed(None)

    def _submit(self, who: int, dice: random.Random) -> None:
        for index in range(TIMES):
            if index == TIMES // 2:
                self.owners[who].close()
            owner = dice.choice(self.owners)
            lane = dice.choice(["application"] * 4 + ["lifecycle"])
            enqueue = owner.queue.enqueue if lane == "application" else owner.queue.enqueue_lifecycle
            try:
                completion = enqueue(self._work(owner, (lane, who, index), dice.randrange(4)))
            except CapacityExceeded:
                owner.queue.await_quiescence().result(PATIENCE)
                continue
            except ShuttingDown:
                continue
            self.accepted.append(completion)
            completion.add_done_callback(self._count)
            if dice.random() < 0.2:
                completion.cancel()

    def _count(self, completion: Completion[Any]) -> None:
        with self._ended_lock:
            self.ended[completion] += 1

    def _work(self, owner: Owner, entry: tuple[str, int, int], kind: int) -> Callable[[], Any]:
        def plain() -> None:
            with owner.turn(entry):
                if kind == 1:
                    raise (ValueError(), SystemExit(), Cancelled())[entry[2] % 3]

        async def suspending() -> None:
            with owner.turn(entry):
                for _ in range(kind - 1):
                    awaited = Completion[None](self.pool)
                    self.awaited.append(awaited)
                    await awaited

        return plain if kind < 2 else suspending


def test_accepted_work_ends_exactly_once_in_order_and_nothing_stays_reserved():
    storm = Storm(owners=6)
    storm.rage()
    assert len(storm.accepted) > TIMES
    assert storm.ended == Counter(storm.accepted), "each ended exactly once"
    for owner in storm.owners:
        owner.check()


def test_a_lane_runs_what_it_accepted_exactly_once():
    lanes = [StateLane(str(index), on_error=lambda _: None) for index in range(3)]
    ran: list[tuple[int, int, int]] = []
    at_close: dict[int, int] = {}

    def submit(who: int) -> list[tuple[int, int, int]]:
        dice, accepted = random.Random(who), []
        for index in range(TIMES):
            if index == TIMES // 2:
                lanes[who].close()
                at_close[who] = turns_of(who)
            number = dice.randrange(len(lanes))
            entry = (number, who, index)
            try:
                if dice.random() < 0.5:
                    lanes[number].run(ran.append, entry)
                elif not lanes[number].try_post(lambda entry=entry: (ran.append(entry), 1 // 0)):
                    continue
            except ShuttingDown:
                continue
            accepted.append(entry)
        return accepted

    def turns_of(number: int) -> int:
        return [lane for lane, _, _ in list(ran)].count(number)

    seen = together(*[lambda who=who: submit(who) for who in SUBMITTERS])
    for lane in lanes:
        lane.close()
    assert sorted(ran) == sorted(entry for accepted in seen for entry in accepted)
    assert len(ran) > TIMES
    assert at_close == {who: turns_of(who) for who in SUBMITTERS}, "nothing runs after close has returned"
