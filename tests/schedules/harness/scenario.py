"""`Scenario`: what a scenario function gets, and `play`, which runs it once.

A scenario builds the objects under test, names its threads and its checks, and returns; then the threads run. It must
do the same whenever it is run: no randomness, no real time, no order that depends on addresses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .descriptors import Descriptor
from .lines import Lines
from .outcome import CheckFailed, Outcome
from .seam import PRODUCT, scripted
from .strategies import Strategy
from .threads import Thread
from .world import World

__all__ = ["Scenario", "ScenarioFunction", "play"]

type ScenarioFunction = Callable[[Scenario], None]


class Scenario:
    def __init__(self, world: World) -> None:
        self._world = world
        self._threads: list[Thread] = []
        self._checks: list[tuple[str, Callable[[], object]]] = []

    def thread(self, name: str, body: Callable[..., object], *args: object) -> None:
        """A thread that runs `body(*args)` once the scenario function has returned. Who begins is a choice."""
        self._threads.append(Thread(target=body, name=name, args=args))

    def thread_now(self, name: str, body: Callable[..., object], *args: object) -> None:
        """As `thread`, started here by a thread of the scenario; nobody runs in between."""
        Thread(target=body, name=name, args=args).launch()

    def check(self, invariant: str, holds: Callable[[], object]) -> None:
        """`holds()` must be true after every thread has ended and every daemon has come to rest."""
        self._checks.append((invariant, holds))

    def expect(self, condition: object, invariant: str) -> None:
        """Must be true here and now. Ends the run at once, even where the code around would swallow an exception."""
        if not condition:
            self._world.fail("invariant", invariant)

    @contextmanager
    def alone(self, room: set[int], invariant: str) -> Iterator[None]:
        """Only one thread may be in `room` at a time. Others get a chance to run, and to come in, while it is there."""
        me = self._world.current.number
        self.expect(not room, f"{invariant}: thread {me} came in while {sorted(room)} was there")
        room.add(me)
        try:
            self.step("is inside")
            yield
        finally:
            room.discard(me)

    def step(self, label: str = "step") -> None:
        """A place where others may run, in code that uses no part of the seam."""
        self._world.offer(label, None)

    def sleep(self, seconds: float) -> None:
        self._world.wait("sleep", None, lambda: False, seconds)

    def interrupt(self, name: str) -> bool:
        """Ctrl-C in the wait of the thread called `name`; False if it does not wait just now."""
        return self._world.interrupt(name, KeyboardInterrupt())

    @property
    def now(self) -> float:
        """The virtual time."""
        return self._world.now

    @property
    def world(self) -> World:
        return self._world

    def descriptor(self, number: int | None = None) -> Descriptor:
        """Something to poll with `_sync.Epoll`; `number` is that of one that was closed, to be used again."""
        return Descriptor(number=number)

    def timeouts_race(self, within: float = 10.0) -> None:
        """Timed waits of up to that many seconds may run out although others could run, as with slow threads.

        Each time is a preemption.
        """
        self._world.early_timeouts = within

    def run(self, scenario: ScenarioFunction) -> None:
        scenario(self)
        for thread in self._threads:
            thread.launch()
        self._world.wait("join all", None, self._world.all_done)
        for invariant, holds in self._checks:
            if not holds():
                raise CheckFailed(invariant)


class _LoggedErrors(logging.Handler):
    """What the runtime reports at ERROR or above is a failure: its workers survive exceptions and go on."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def handle(self, record: logging.LogRecord) -> bool:
        if not self._world.closing:
            error = record.exc_info[1] if record.exc_info else None
            self._world.fail("logged error", f"{record.getMessage()}: {error!r}")
        return True


def play(
    scenario: ScenarioFunction,
    strategy: Strategy,
    *,
    lines: Lines | None = None,
    journal: bool = False,
    limit: int | None = None,
    patience: float = 10.0,
) -> Outcome:
    """One run of `scenario`. Operations up to `limit`; with `lines`, lines count as well."""
    limit = limit or (200_000 if lines else 20_000)
    world = World(strategy, journal=journal, limit=limit, patience=patience, tracer=lines)
    log = logging.getLogger(PRODUCT)
    handler = _LoggedErrors(world)
    with scripted(world):
        propagate, log.propagate = log.propagate, False
        log.addHandler(handler)
        try:
            return world.run(lambda: Scenario(world).run(scenario))
        finally:
            log.removeHandler(handler)
            log.propagate = propagate
