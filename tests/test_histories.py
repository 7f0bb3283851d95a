"""Recorded histories of coordinators under random load, with hardly any room (design 3.7).

Each round has its seed: a few Spots of any kind and Actors that move between them, on a pool of two, and threads that
submit, cancel and close. `ZLINK_HISTORY_SECONDS=30` goes on for so long, `ZLINK_HISTORY_SEED` begins with another seed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from background import Background
from spots import KINDS, Stage, policy
from support import PATIENCE, eventually, together

from zlink_nogil.errors import (
    AlreadyExists,
    Cancelled,
    CapacityExceeded,
    DeadlineExceeded,
    InvalidOperation,
    ShuttingDown,
    ZLinkError,
)
from zlink_nogil.execution import ActorSerialExecutor
from zlink_nogil.scheduler import Completion, WorkerPool

SECONDS = float(os.environ.get("ZLINK_HISTORY_SECONDS", "3"))
SEED = int(os.environ.get("ZLINK_HISTORY_SEED", "0"))
SUBMITTERS = 3
SUBMISSIONS = 60

type Owner = tuple[Any, ...]
"""What keeps an order: (coordinator, queue, lane)."""


class History:
    """Who was on which gate when, and what began in which order. Each list is appended to by many threads."""

    def __init__(self, stages: list[Stage]) -> None:
        self._stages = stages
        self._ids = itertools.count()
        self._inside: Counter[Any] = Counter()  # of a gate: changed by who is on it, so by one thread at a time
        self.overlaps: list[str] = []
        self.begun: list[tuple[Owner, int, int]] = []
        self.ran: list[int] = []
        self.refused: list[int] = []
        self.accepted: list[Completion[Any]] = []
        self.ended: Counter[Completion[Any]] = Counter()
        self._ended_lock = threading.Lock()

    def new(self) -> int:
        return next(self._ids)

    def gates(self) -> list[Any]:
        """The shared gates this thread is on now."""
        return [id(stage) for stage in self._stages if stage.spot.mode.one_gate and stage.spot.is_current()]

    @contextlib.contextmanager
    def on(self, *keys: Any) -> Iterator[None]:
        for key in keys:
            self._inside[key] += 1
            if self._inside[key] != 1:
                self.overlaps.append(f"two at once on {key}")
        try:
            yield
        finally:
            for key in keys:
                self._inside[key] -= 1

    def accept(self, completion: Completion[Any]) -> None:
        self.accepted.append(completion)
        completion.add_done_callback(self._count)

    def _count(self, completion: Completion[Any]) -> None:
        with self._ended_lock:
            self.ended[completion] += 1

    def check(self) -> None:
        for completion in list(self.accepted):
            with contextlib.suppress(DeadlineExceeded):
                completion.exception(PATIENCE)
            assert completion.done(), f"hangs: {[each for stage in self._stages for each in stage.spot.snapshots()]}"
        eventually(lambda: len(self.ended) == len(self.accepted), "every callback")
        assert self.ended == Counter(self.accepted), "accepted work ends exactly once"
        assert self.overlaps == []
        assert not set(self.ran) & set(self.refused), "refused work never runs"
        assert len(set(self.ran)) == len(self.ran), "nothing begins twice"
        orders: dict[tuple[Owner, int], list[int]] = defaultdict(list)
        for owner, who, index in self.begun:
            orders[owner, who].append(index)
        for (owner, who), order in orders.items():
            assert order == sorted(order), f"{owner} began the work of {who} in the order {order}"


class Round:
    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.seed = seed
        self.pool = WorkerPool(2)
        self.stages = [
            Stage(
                self.pool, dice.choice(KINDS), name=f"spot{index}",
                items=dice.randint(1, 4), lifecycle_items=dice.randint(1, 3), burst=dice.randint(1, 2), budget=0.01,
                actor_items=dice.randint(1, 4), actor_burst=dice.randint(1, 2), actor_budget=0.01,
            )
            for index in range(3)
        ]  # fmt: skip
        self.movers = [
            ActorSerialExecutor(f"m{index}", policy=policy(items=3, lifecycle_items=2, budget=0.01), pool=self.pool)
            for index in range(2)
        ]
        self.homes: dict[ActorSerialExecutor, Stage | None] = dict.fromkeys(self.movers)
        self.history = History(self.stages)
        self.awaited: list[Completion[None]] = []
        self._over = threading.Event()

    def run(self) -> None:
        feeder = Background(self._feed)
        seen = together(*[lambda who=who: self._submit(who) for who in range(SUBMITTERS)])
        assert seen == [None] * SUBMITTERS
        self.history.check()
        for stage in self.stages:
            stage.at_rest()
        for mover in self.movers:
            eventually(lambda mover=mover: mover.snapshot().reserved_items == 0, f"rest of {mover}")
        for coordinator in (*(stage.spot for stage in self.stages), *self.movers):
            coordinator.close(PATIENCE)
        self._over.set()
        feeder.result()
        self.pool.close()

    def _feed(self) -> None:
        """Ends what handlers wait for; with another thread that does so at the same time now and then."""
        while not self._over.wait(0.0005):
            with contextlib.suppress(IndexError):
                while True:
                    self.awaited.pop(0).succeed(None)

    # -- submitting -------------------------------------------------------------------------------------------------

    def _submit(self, who: int) -> None:
        dice = random.Random(f"{self.seed} {who}")
        for index in range(SUBMISSIONS):
            if index == SUBMISSIONS // 2 and dice.random() < 0.3:
                self._close(self.stages[who], dice)
            self._one(dice, who, index)

    @staticmethod
    def _close(stage: Stage, dice: random.Random) -> None:
        with contextlib.suppress(DeadlineExceeded):
            stage.spot.close(dice.choice((0, 0.005, 0.05)))

    def _one(self, dice: random.Random, who: int, index: int, movers: bool = True) -> Completion[Any] | None:
        """Submit something somewhere; None if it was refused."""
        number = self.history.new()
        execute, owner, claim = self._target(dice, movers)
        try:
            completion = execute(self._work(dice.randrange(2**30), owner, claim, number, who, index))
        except (CapacityExceeded, ShuttingDown):
            self.history.refused.append(number)
            return None
        self.history.accept(completion)
        if dice.random() < 0.15:
            completion.cancel()
        return completion

    def _target(self, dice: random.Random, movers: bool) -> tuple[Callable[[Any], Completion[Any]], Owner, Any]:
        """(entry, what keeps the order, what is not given back while it waits)"""
        if movers and dice.random() < 0.3:
            mover = dice.choice(self.movers)
            if dice.random() < 0.3:
                return mover.execute_lifecycle, (mover.name, "lifecycle"), mover.name
            return mover.execute_actor, (mover.name, "application"), mover.name
        stage = dice.choice(self.stages)
        spot, name = stage.spot, stage.spot.name
        kind = dice.choice(("spot", "actor", "actor", "timer", "lifecycle"))
        if kind == "actor" and spot.mode.has_actors:
            actor = dice.choice("ab")
            return (lambda work: spot.execute_actor(actor, work)), (name, actor), (name, actor)
        one_gate = spot.mode.one_gate
        if kind == "timer":
            timer = dice.choice(("tick", "beat"))
            owner = (name, "spot") if one_gate else (name, timer)
            return (lambda work: spot.execute_timer(timer, work)), owner, None if one_gate else owner
        claim = None if one_gate else (name, "spot")
        if kind == "lifecycle":
            return spot.execute_lifecycle, (name, "lifecycle"), claim
        return spot.execute_spot, (name, "spot"), claim

    # -- work -------------------------------------------------------------------------------------------------------

    def _work(self, seed: int, owner: Owner, claim: Any, number: int, who: int, index: int) -> Callable[[], Any]:
        history, dice = self.history, random.Random(seed)

        def begins() -> None:
            history.ran.append(number)
            history.begun.append((owner, who, index))

        def plain() -> None:
            with history.on(*([claim] if claim else []), *history.gates()):
                begins()
                self._move(dice, claim)
                if dice.random() < 0.3:
                    raise dice.choice((ValueError(), SystemExit(), Cancelled(), KeyError()))

        async def suspending() -> None:
            with history.on(*([claim] if claim else [])):
                with history.on(*history.gates()):
                    begins()
                    self._move(dice, claim)
                for _ in range(dice.randint(1, 3)):
                    await self._wait(dice, number)
                if dice.random() < 0.2:
                    raise ValueError

        return plain if dice.random() < 0.4 else suspending

    async def _wait(self, dice: random.Random, number: int) -> None:
        """One wait of a handler: with the turn or without it, for the feeder or for work of an owner."""
        history = self.history
        awaited = self._something(dice, number)
        catches = dice.random() < 0.3
        try:
            if dice.random() < 0.6:
                await awaited.yield_()
            else:
                with history.on(*history.gates()):
                    await awaited
        except InvalidOperation:  # no gate here, or it would wait for itself
            pass
        except (Cancelled, ShuttingDown):
            if not catches:
                raise
        except (ZLinkError, ValueError, KeyError, SystemExit):
            pass
        with history.on(*history.gates()):
            pass

    def _something(self, dice: random.Random, number: int) -> Completion[Any]:
        """Nobody waits for a mover: it may come to need the gate of who waits only later, when it joins that Spot."""
        if dice.random() < 0.2:
            submitted = self._one(dice, -1 - number, 0, movers=False)  # an order of its own
            if submitted is not None:
                return submitted
        awaited = Completion[None](self.pool)
        if dice.random() < 0.1:
            awaited.succeed(None)
        else:
            self.awaited.append(awaited)
        return awaited

    def _move(self, dice: random.Random, claim: Any) -> None:
        """In a turn of a mover: join, leave, or go from one Spot to another."""
        mover = next((mover for mover in self.movers if mover.name == claim), None)
        if mover is None or dice.random() < 0.5:
            return
        home, there = self.homes[mover], dice.choice(self.stages)
        if home is not None:
            home.spot.release_member(mover.name)
            self.homes[mover] = None
        if dice.random() < 0.7:
            with contextlib.suppress(InvalidOperation, AlreadyExists, ShuttingDown):
                there.spot.admit_member(mover.name, mover)
                self.homes[mover] = there


def test_every_history_is_one_of_serial_owners():
    seed, until = SEED, time.monotonic() + SECONDS
    while True:
        try:
            Round(seed).run()
        except BaseException as error:
            error.add_note(f"ZLINK_HISTORY_SEED={seed}")
            raise
        seed += 1
        if time.monotonic() > until:
            break
    print(f"{seed - SEED} histories")
