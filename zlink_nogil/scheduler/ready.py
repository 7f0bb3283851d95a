"""The ready set: where runnables wait, who gives them out, who sleeps for lack of one (design 2.2; seed 001 section 2-4).

Guarantees
    Nothing is lost or given out twice. No worker sleeps while something it may take is ready: who gives wakes at most one
    sleeper, unless somebody is searching already; a searcher that finds work wakes the next sleeper if there is more.
    Oldest first, for the owner of a queue and for thieves. A worker whose own queue never gets empty looks at the injector
    every `ROUND` items. After `close` everything accepted is still given out, and workers leave when nothing is left.
    Timers keep firing while anybody sleeps: the longest sleeper keeps the time.

Why no wake-up is lost
    A worker announces itself (`asleep`, `_idle`, under `_lock`), then looks once more, then sleeps. Who gives, appends
    and then looks for sleepers. Outside threads do both under `_lock`. A worker appends to its own deque without it: the
    look of the other one goes through the same deque's internal lock (`_seen`), so either the append came first and is
    seen, or it came later and then so did the look for sleepers, after the announcement.

Ownership
    `_injector`, `_idle`, `_searching`, `_closed`, `staying`, `Worker.asleep`, `Worker.left`  under `_lock`
    `Worker.local`   appended by the thread at that place; taken by anybody, one atomic operation at a time
    `Worker.pinned`  appended under `_lock`, or by the thread at that place
    `workers`        replaced under `_lock`, never changed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.leading import Roles
from zlink_nogil.scheduler.role import Role
from zlink_nogil.scheduler.timers import Timers
from zlink_nogil.scheduler.worker import Runnable, Worker

__all__ = ["ReadySet"]

ROUND: Final = 32
"""Items a worker runs between two looks at the injector and the timers."""

BATCH: Final = 32
"""The most that is taken from the injector, or stolen, at a time."""

SPINS: Final = 30
"""How often the only searcher looks before it lies down (about 30 us): waking it again costs both sides more."""


class _Ends(Protocol):
    def done(self) -> bool: ...


def _seen(queue: deque[Runnable]) -> bool:
    """Is anything in it? Takes the deque's own lock: an append that came before is seen, on any memory model."""
    queue.rotate(0)
    return bool(queue)


class ReadySet:
    """`unfinished()`: will something accepted still become ready (asked under the lock; takes none)? Thread-safe."""

    __slots__ = (
        "_closed",
        "_idle",
        "_injector",
        "_lock",
        "_searching",
        "_unfinished",
        "deferred",
        "roles",
        "staying",
        "stirred",
        "timers",
        "workers",
    )

    def __init__(self, workers: tuple[Worker, ...], unfinished: Callable[[], bool]) -> None:
        self._lock = _sync.Lock()
        self._injector: deque[Runnable] = deque()
        self._idle: list[Worker] = []
        self._searching = 0
        self._closed = False
        self._unfinished = unfinished
        self.deferred: deque[Runnable] = deque()
        self.roles = Roles()
        self.workers = workers
        self.staying = len(workers)
        self.stirred: Callable[[], None] | None = None
        self.timers = Timers(self._earlier)

    # -- giving -----------------------------------------------------------------------------------------------------

    def add(self, runnable: Runnable, home: Worker | None = None) -> bool:
        """Give something new, from any thread, to everybody or to one place; False (nothing done) after `close`."""
        return self._inject(runnable, home, new=True)

    def put(self, runnable: Runnable, worker: Worker | None, home: Worker | None = None) -> bool:
        """Give something accepted that is ready again, by the thread at `worker` (None: at no place).

        False when every worker has left: the caller must run it.
        """
        if worker is None or (home is not None and home is not worker):
            return self._inject(runnable, home, new=False)
        (worker.local if home is None else worker.pinned).append(runnable)
        if self._idle and not self._searching:
            self._wake_one()
        return True

    def put_back(self, runnable: Runnable, worker: Worker) -> None:
        """By the thread at `worker`, whose present runnable wants another slice: to the back of where it came from."""
        worker.source.append(runnable)
        if self._idle and not self._searching:
            self._wake_one()

    def _inject(self, runnable: Runnable, home: Worker | None, *, new: bool) -> bool:
        sleeper = heir = None
        with self._lock:
            if self._closed if new else not self.staying:
                return False
            if home is None or home.left:
                self._injector.append(runnable)
                if self._idle and not self._searching:
                    sleeper = self._rouse(self._idle[-1])
            else:
                home.pinned.append(runnable)
                if home.asleep:
                    heir = self._heir(home)
                    sleeper = self._rouse(home)
        if sleeper is not None:
            self._unpark(sleeper)
            self._pass_on_the_time(heir)
        return True

    def defer(self, runnable: Runnable) -> None:
        """As `put`, for a finalizer, which may run under any lock: takes none. Runs soon, or when a worker wakes next."""
        self.deferred.append(runnable)
        self.workers[0].parker.unpark()

    # -- taking -----------------------------------------------------------------------------------------------------

    def take(self, worker: Worker, until: _Ends | None = None) -> Runnable | None:
        """What the thread at `worker` runs next; sleeps until there is something.

        None when the set is closed and nothing is left, or (for a guest) when `until` is done.
        """
        if until is not None and until.done():
            return None
        if worker.new_round:
            worker.new_round = False
            if self._injector and (runnable := self._from_injector(worker)) is not None:
                if self._idle and not self._searching:
                    self._wake_one()  # who looked while the others were on their way to this place saw them nowhere
                return runnable
        return self._own(worker) or self._search(worker, until)

    def _own(self, worker: Worker) -> Runnable | None:
        """The oldest of its own; those that are pinned and those that are not take turns."""
        pinned, local = worker.pinned, worker.local
        places = (local, pinned) if worker.items & 1 else (pinned, local)
        for place in places:
            if place:
                try:
                    runnable = place.popleft()
                except IndexError:  # a thief was faster
                    continue
                worker.source = place
                return runnable
        return None

    def _search(self, worker: Worker, until: _Ends | None) -> Runnable | None:
        """Look everywhere, lie down, look once more, sleep; until there is something. Counted in `_searching` meanwhile."""
        with self._lock:
            self._searching += 1
        try:
            return self._search_and_sleep(worker, until)
        finally:
            stirred = self.stirred
            if self.roles.leave(worker) and stirred is not None:
                stirred()  # nobody has woken it

    def _search_and_sleep(self, worker: Worker, until: _Ends | None) -> Runnable | None:
        while True:
            runnable, ended = self._find(worker), False
            spins = SPINS if runnable is None and self.roles.take(worker) is None else 0  # who leads is woken cheaply
            while runnable is None and spins and self._searching == 1:
                spins -= 1
                runnable = self._find(worker)
            if runnable is None:
                if not self._lie_down(worker):
                    return None
                led = None
                try:
                    runnable = self._find(worker)
                    if runnable is None:
                        led = self._sleep(worker, until)
                except BaseException:  # Ctrl-C in the main thread
                    self._get_up(worker)
                    self._stop_searching()
                    raise
                self._get_up(worker)
                if led is not None:
                    led.rotate()  # what that makes ready is found here, and wakes no other worker for it
                ended = until is not None and until.done()
            if runnable is not None or ended:
                self._stop_searching()
                return runnable

    def _find(self, worker: Worker) -> Runnable | None:
        if self.deferred:
            self.look_round(worker)
        if (_seen(worker.pinned) or _seen(worker.local)) and (runnable := self._own(worker)) is not None:
            return runnable
        if _seen(self._injector) and (runnable := self._from_injector(worker)) is not None:
            return runnable
        return self._steal(worker)

    def look_round(self, worker: Worker) -> None:
        """Now and then, by the thread at `worker`: fire what is due, take in what finalizers left."""
        self.timers.fire()
        while self.deferred:
            try:
                self.put(self.deferred.popleft(), worker)
            except IndexError:  # another worker was faster
                return

    def _from_injector(self, worker: Worker) -> Runnable | None:
        """A fair share: the first is returned, the rest is where others can steal it."""
        share = min(len(self._injector) // len(self.workers) + 1, BATCH)
        return self._move(self._injector, worker, share)

    def _steal(self, worker: Worker) -> Runnable | None:
        """Half of somebody's queue: one attempt each, from a random start."""
        workers = self.workers
        start = worker.random(len(workers))
        for victim in workers[start:] + workers[:start]:
            if victim is not worker and _seen(victim.local):
                share = min((len(victim.local) + 1) // 2, BATCH)
                if (runnable := self._move(victim.local, worker, share)) is not None:
                    worker.steals += 1
                    return runnable
        return None

    @staticmethod
    def _move(source: deque[Runnable], worker: Worker, count: int) -> Runnable | None:
        """Take up to `count`, one atomic operation each: the first to run, the others to the worker's own queue."""
        first = None
        try:
            first = source.popleft()
            for _ in range(count - 1):
                worker.local.append(source.popleft())
        except IndexError:  # others took them
            pass
        worker.source = worker.local
        return first

    # -- sleeping and waking ----------------------------------------------------------------------------------------

    def _lie_down(self, worker: Worker) -> bool:
        """Announce the worker idle; False when it must leave for good.

        At the end nobody would wake it, if another one took what it sees here: then it stays up and looks again.
        """
        with self._lock:
            if self._closed and not worker.guest and not self._unfinished():
                if worker.pinned or self.deferred or self._anything():
                    return True
                self._searching -= 1
                self.staying -= 1
                worker.left = True
                return False
            self._searching -= 1
            worker.asleep = True
            self._idle.append(worker)
            return True

    def _sleep(self, worker: Worker, until: _Ends | None) -> Role | None:
        """Until somebody rouses it, a timer is due, or it is wanted for something else; leads meanwhile if a role is free.

        Returns a role that it leads and that is to be rotated.
        """
        worker.parks += 1
        while worker.asleep and not (until is not None and until.done()):
            left = self._time_left(worker)
            if left is not None and left <= 0.0:
                return None
            role = self.roles.take(worker)
            if role is None:
                interrupts.park(worker.parker, left)
            elif role.wait(worker.parker, left):
                return role
            if self.deferred:
                return None
        return None

    def _time_left(self, worker: Worker) -> float | None:
        """Seconds to the nearest timer for the one who keeps the time, None for the others."""
        with self._lock:
            if not self._idle or self._idle[0] is not worker:
                return None
        deadline = self.timers.earliest()
        return None if deadline is None else deadline - _sync.monotonic()

    def _get_up(self, worker: Worker) -> None:
        """From the bed, or after somebody has taken it out of it: it is searching now. Fires what is due."""
        heir = None
        with self._lock:
            if worker.asleep:
                heir = self._heir(worker)
                self._rouse(worker)
        self.timers.fire()
        self._pass_on_the_time(heir)

    def _heir(self, worker: Worker) -> Worker | None:
        """Under the lock: who keeps the time when `worker` gets up, if that one did."""
        return self._idle[1] if self._idle[0] is worker and len(self._idle) > 1 else None

    def _pass_on_the_time(self, heir: Worker | None) -> None:
        if heir is not None and self.timers.earliest() is not None:
            heir.parker.unpark()  # to look at the clock

    def _stop_searching(self) -> None:
        """It has found work, or goes: the next one is woken if there is more."""
        with self._lock:
            self._searching -= 1
            more = self._idle and not self._searching and self._anything()
            sleeper = self._rouse(self._idle[-1]) if more else None
        self._unpark(sleeper)

    def _anything(self) -> bool:
        """Under the lock: does anything wait that any worker may take?"""
        return bool(self._injector) or any(_seen(worker.local) for worker in self.workers)

    def _rouse(self, worker: Worker) -> Worker:
        """Under the lock: take it out of its bed. It counts as searching from now on."""
        self._idle.remove(worker)
        worker.asleep = False
        self._searching += 1
        return worker

    def _wake_one(self) -> None:
        with self._lock:
            sleeper = self._rouse(self._idle[-1]) if self._idle and not self._searching else None
        self._unpark(sleeper)

    def _unpark(self, sleeper: Worker | None) -> None:
        if sleeper is not None:
            sleeper.parker.unpark()
            stirred = self.stirred
            if stirred is not None:
                stirred()

    def _earlier(self) -> None:
        """A timer is due before all others: who keeps the time looks at the clock again."""
        with self._lock:
            keeper = self._idle[0] if self._idle else None
        if keeper is not None:
            keeper.parker.unpark()

    # -- coming, leaving, closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept nothing new, and let every sleeper look whether it may leave. Harmless again, and needed again when
        the last of what was unfinished is over."""
        with self._lock:
            self._closed = True
            sleepers = [self._rouse(worker) for worker in self._idle.copy()]
        for sleeper in sleepers:
            self._unpark(sleeper)

    @property
    def closed(self) -> bool:
        return self._closed

    def join(self, guest: Worker) -> None:
        """A guest takes a place."""
        with self._lock:
            self.workers = (*self.workers, guest)

    def leave(self, guest: Worker) -> list[Runnable]:
        """By the guest's thread: what is left at its place goes to everybody, or when every worker has left, to the caller,
        who must run it."""
        left = []
        with self._lock:
            self.workers = tuple(worker for worker in self.workers if worker is not guest)
            while (runnable := self._move(guest.local, guest, 1)) is not None:
                left.append(runnable)
            if not self.staying:
                return left
            self._injector.extend(left)
            more = self._idle and not self._searching and self._injector
            sleeper = self._rouse(self._idle[-1]) if more else None
        self._unpark(sleeper)
        return []

    def counts(self) -> tuple[int, int, int, int]:
        """(injected, in the workers' queues, idle, searching) at one moment."""
        with self._lock:
            queued = sum(len(worker.local) + len(worker.pinned) for worker in self.workers)
            return len(self._injector), queued, len(self._idle), self._searching

    def snapshot(self) -> tuple[tuple[Worker, ...], int, int, int, int]:
        """(places, injected, idle, searching, vacant) at one moment."""
        with self._lock:
            vacant = sum(worker.left or not worker.filled for worker in self.workers)
            return self.workers, len(self._injector), len(self._idle), self._searching, vacant
