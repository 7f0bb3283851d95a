"""A ready set with a few workers, without a pool around it, and the jobs they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from zlink_nogil import _sync
from zlink_nogil.scheduler.ready import ReadySet
from zlink_nogil.scheduler.worker import Worker

from .harness import Scenario
from .harness.world import World

__all__ = ["Flag", "Floor", "Job"]


class Flag:
    """What a guest works for."""

    def __init__(self) -> None:
        self.up = False

    def done(self) -> bool:
        return self.up


class Stepping(deque[Any]):
    """A queue whose operations are places to switch: what is lock-free meets here."""

    s: Scenario

    def append(self, item: Any) -> None:
        self.s.step("append")
        super().append(item)

    def popleft(self) -> Any:
        self.s.step("popleft")
        return super().popleft()

    def rotate(self, n: int = 1) -> None:
        self.s.step("look")
        super().rotate(n)


def _holds(ready: ReadySet, what: str) -> None:
    world = World.running
    assert world is not None
    if cast(Any, ready)._lock.holder is not world.current:
        world.fail("invariant", f"{what} is under the lock")


def _owned(name: str) -> property:
    slot = vars(ReadySet)[name]

    def write(self: ReadySet, value: object) -> None:
        _holds(self, name)
        slot.__set__(self, value)

    return property(slot.__get__, write)


class Owned(ReadySet):
    """What `ReadySet` says is under its lock is written there: an update that is lost within a line shows nowhere else."""

    __slots__ = ()

    _searching, _closed, staying, workers = map(_owned, ("_searching", "_closed", "staying", "workers"))


class Beds(list[Worker]):
    """Who looks whether anybody sleeps needs no lock; who wants one that does needs it."""

    ready: ReadySet

    def __getitem__(self, index: Any) -> Any:
        _holds(self.ready, "_idle")
        return super().__getitem__(index)

    def append(self, worker: Worker) -> None:
        _holds(self.ready, "_idle")
        super().append(worker)

    def remove(self, worker: Worker) -> None:
        _holds(self.ready, "_idle")
        super().remove(worker)


class Job:
    """Runs `slices` times, never on two threads at once; each slice calls `work(place)` and is noted in `ran`."""

    def __init__(self, floor: Floor, name: str, work: Callable[[Worker], object] | None = None, *, slices: int = 1) -> None:
        self.floor = floor
        self.name = name
        self.work = work
        self.left = slices
        self.inside: set[int] = set()

    def run_at(self, worker: Worker) -> bool:
        s = self.floor.s
        with s.alone(self.inside, "one runnable never runs on two workers at once"):
            self.left -= 1
            self.floor.ran.append(self.name)
            self.floor.places.append(worker.index)
            if self.work is not None:
                self.work(worker)
        return self.left > 0

    def run_slice(self) -> bool:
        raise AssertionError("the floor runs it")


class Floor:
    """`open()`: threads that never end; or `s.thread(name, floor.work, worker)`: until the set is closed."""

    def __init__(self, s: Scenario, workers: int, unfinished: Callable[[], bool] = lambda: False) -> None:
        self.s = s
        self.workers = tuple(Worker(cast(Any, None), index) for index in range(workers))
        self.ready = ReadySet(self.workers, unfinished)
        self.ready._injector = self.queue()
        self.ready._idle = beds = Beds()
        beds.ready = self.ready
        self.ready.__class__ = Owned
        for worker in self.workers:
            self.equip(worker)
        self.given: list[str] = []
        self.ran: list[str] = []
        self.places: list[int] = []
        self.late = 0
        """What was put when everybody had left."""
        s.check("everything given ran, as often as it should", self.is_done)
        s.check("nothing is left, and nobody searches", self.is_empty)

    def queue(self) -> Stepping:
        queue = Stepping()
        queue.s = self.s
        return queue

    def equip(self, worker: Worker) -> Worker:
        worker.local = worker.source = self.queue()
        worker.pinned = self.queue()
        return worker

    def job(self, name: str, work: Callable[[Worker], object] | None = None, *, slices: int = 1) -> Job:
        return Job(self, name, work, slices=slices)

    def add(self, job: Job, home: Worker | None = None) -> None:
        names = [job.name] * job.left
        if self.ready.add(job, home):
            self.given.extend(names)

    def add_all(self, *jobs: Job) -> None:
        for job in jobs:
            self.add(job)

    def put(self, job: Job, worker: Worker | None, home: Worker | None = None) -> None:
        self.given.extend([job.name] * job.left)
        if not self.ready.put(job, worker, home):
            self.late += 1
            while job.run_at(self.workers[0]):
                pass

    def open(self) -> None:
        for worker in self.workers:
            _sync.Thread(target=self.work, args=(worker,), name=f"worker {worker.index}", daemon=True).start()

    def work(self, worker: Worker, until: Flag | None = None) -> None:
        """As the pool's loop."""
        ready = self.ready
        while (job := ready.take(worker, until)) is not None:
            assert isinstance(job, Job)
            again = job.run_at(worker)
            worker.items += 1
            if again:
                ready.put_back(job, worker)
            worker.new_round = True

    def is_done(self) -> bool:
        return sorted(self.ran) == sorted(self.given)

    def is_empty(self) -> bool:
        injected, queued, _, searching = self.ready.counts()
        return (injected, queued, searching) == (0, 0, 0)
