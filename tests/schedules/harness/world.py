"""`World`: one run of a scenario. Its threads run one at a time and it decides who goes next.

Guarantees
    Exactly one scripted thread holds the baton and runs. It may lose it at each operation (`wait`, `offer`) and nowhere
    else, so a run is a function of the strategy's answers. Time is virtual: it stands still while anybody can run and
    jumps to the next deadline when everybody waits; a timed wait ends a microsecond after its deadline, never before.
    A run ends: when all is done, when a failure is found, after `limit` operations, or after `patience` seconds of real
    time. Then every thread is unwound by an `Unwind` at its next operation; one that cannot be is reported.

Assumes
    Threads meet only through the stand-ins of the seam. A thread that blocks elsewhere ends the run by `patience`.

Ownership
    Everything is read and written by the holder of the baton; once `closing` is set, by the controller (the thread that
    called `run`) and the one thread it unwinds. The baton is passed by opening the carrier's gate.
"""

from __future__ import annotations

import _thread
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from .carriers import Tracer, borrow, give_back, interrupt
from .journal import Journal
from .outcome import CheckFailed, Failure, Outcome, diagnose, states
from .strand import Strand, Target
from .strategies import NotDeterministic, Strategy

__all__ = ["Unwind", "World"]

START: Final = 1000.0
LATE: Final = 1e-6
"""How much later than its deadline a timed wait ends: the clock has moved on, as a real one has."""
SPIN: Final = 500
"""Operations one thread may do in a row while others could run: after that they get a turn, free of charge."""
REFUSALS: Final = 1000
"""Operations a thread may try while it is being unwound."""


def _always() -> bool:
    return True


class Unwind(BaseException):
    """Raised at a thread's next operation to end it when its run is over."""


class World:
    running: World | None = None
    """The world that the stand-ins made now belong to. Set by the seam."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        journal: bool = False,
        limit: int = 20_000,
        patience: float = 10.0,
        tracer: Callable[[World], Tracer] | None = None,
    ) -> None:
        self.now = START
        self.current = Strand(0, "main", False, None)
        self.main = self.current
        self.strands: list[Strand] = []
        self.closing = False
        self.over = False
        self.early_timeouts = 0.0
        """Seconds: timed waits that end within this time may end although others could run."""
        self.descriptors: dict[int, Any] = {}
        """By number: what the stand-in of epoll can poll."""
        self.failure: Failure | None = None
        self.choices: list[int] = []
        self.steps = 0
        self.journal = Journal() if journal else None
        self._strategy = strategy
        self._limit = limit
        self._patience = patience
        self._tracer = tracer(self) if tracer is not None else None
        self._alive: list[Strand] = []
        self._launched: list[Strand] = []
        self._busy = 0  # threads that must end before the main one goes on
        self._interrupted: list[Strand] = []
        self._streak = 0
        self._labels: Counter[str] = Counter()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    # -- operations, called by the thread that holds the baton ------------------------------------------------------

    def wait(self, op: str, target: Target | None, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Go on when `ready()`; False when `timeout` seconds passed and it is not. Nobody runs between the two."""
        me = self.current
        if self.closing:
            return self._refuse(me, True)
        me.op, me.target, me.ready = op, target, ready
        if timeout is not None:
            me.deadline = self.now + max(timeout, LATE) if timeout > 0 else self.now
        self._switch(me)
        me.ready, me.deadline = None, None
        interruption, me.interruption = me.interruption, None
        if ready():
            return True
        if interruption is not None:
            self.offer("is interrupted:", target)  # as below
            raise interruption
        self.offer("times out:", target)  # the waiter has given up, but nobody knows yet
        return False

    def offer(self, op: str, target: Target | None) -> None:
        """Somebody else may run now. Does nothing while the run is being closed, so that clean-up code can finish."""
        me = self.current
        if self.closing:
            self._refuse(me, False)
            return
        me.op, me.target = op, target
        self._switch(me)

    def spawn(self, name: str, body: Callable[[], object], daemon: bool, face: object) -> Strand:
        """A new thread that may run from now on."""
        strand = Strand(len(self.strands), name, daemon, face)
        self.strands.append(strand)
        if self.closing:
            strand.ended = True
        else:
            self._launch(strand, body)
        return strand

    def interrupt(self, name: str, error: BaseException) -> bool:
        """As a signal does: the wait of the thread called `name` raises `error`; False if it is not waiting."""
        for strand in self._alive:
            if strand.name == name and strand.ready is not None and not strand.ready():
                strand.ready, strand.interruption = _always, error
                return True
        return False

    def fail(self, kind: str, message: str) -> NoReturn:
        """End the run with a failure, whatever the code around would make of an exception."""
        me = self.current
        if not self.closing:
            self._stop(kind, message)
            me.carrier.gate.acquire()
        raise Unwind

    def label(self, kind: str) -> str:
        """A name for a new target: kind and number, and in a journal the line that made it."""
        self._labels[kind] += 1
        label = f"{kind} {self._labels[kind]}"
        return f"{label} ({self.journal.caller()})" if self.journal is not None else label

    def all_done(self) -> bool:
        """Has every thread but the main one ended, and every daemon nothing left to do now?"""
        return self._busy == 0 and not any(s.enabled(self.now) for s in self._alive if s is not self.main)

    # -- the baton --------------------------------------------------------------------------------------------------

    def _switch(self, me: Strand) -> None:
        chosen = self._choose(me)
        if chosen is me:
            return
        if chosen is not None:
            self.current = chosen
            chosen.carrier.gate.release()
        me.carrier.gate.acquire()
        if self.closing:
            raise Unwind

    def _choose(self, me: Strand) -> Strand | None:
        """Who goes on; None when nobody does: the run was stopped."""
        self.steps += 1
        if self.journal is not None:
            self.journal.step(me, self.now)
        if self.steps > self._limit:
            self._stop("never ends", f"{self._limit} operations; {me.name} is still at it")
            return None
        options = self._enabled() or self._let_time_pass()
        if not options:
            self._stop(*diagnose(self.main, self._alive))
            return None
        free = len(options)
        if me in options:
            free = 1
            self._put_first(me, options)
        if self.early_timeouts:
            limit = self.now + self.early_timeouts
            options += [s for s in self._alive if s.deadline is not None and s.deadline < limit and s not in options]
        index = self._ask(len(options), free) if len(options) > 1 else 0
        if index < 0:
            return None
        chosen = options[index]
        if chosen.deadline is not None and not chosen.enabled(self.now):
            self.now = chosen.deadline + LATE
        if chosen is not me:
            self._streak = 0
            if self.journal is not None:
                self.journal.switch(chosen, preempted=index >= free)
        return chosen

    def _enabled(self) -> list[Strand]:
        now = self.now
        return [  # as `Strand.enabled`, which would cost a call
            s for s in self._alive if s.ready is None or s.ready() or (s.deadline is not None and s.deadline <= now)
        ]

    def _let_time_pass(self) -> list[Strand]:
        deadlines = [s.deadline for s in self._alive if s.deadline is not None]
        if not deadlines:
            return []
        self.now = max(self.now, min(deadlines)) + LATE
        return self._enabled()

    def _put_first(self, me: Strand, options: list[Strand]) -> None:
        """The thread that runs goes on, unless it has been spinning: then it is as if it had slept for a moment."""
        self._streak += 1
        if self._streak < SPIN or me.op == "line":
            if options[0] is not me:
                options.remove(me)
                options.insert(0, me)
            return
        self._streak = 0
        options.remove(me)
        if not options:
            options.extend(s for s in self._let_time_pass() if s is not me)
        options.append(me)

    def _ask(self, count: int, free: int) -> int:
        try:
            index = self._strategy.choose(count, free)
        except NotDeterministic as error:
            self._stop("not deterministic", str(error))
            return -1
        self.choices.append(index)
        return index

    # -- a thread's life --------------------------------------------------------------------------------------------

    def _launch(self, strand: Strand, body: Callable[[], object]) -> None:
        strand.carrier = borrow(lambda: self._live(strand, body), self._tracer)
        self._alive.append(strand)
        self._launched.append(strand)
        self._busy += strand is not self.main and not strand.daemon

    def _live(self, strand: Strand, body: Callable[[], object]) -> None:
        error: BaseException | None = None
        try:
            if not self.closing:
                body()
        except (Unwind, SystemExit):
            pass
        except BaseException as raised:
            error = raised
        try:
            self._end(strand, error)
        finally:
            strand.finished.release()

    def _end(self, me: Strand, error: BaseException | None) -> None:
        me.ended = True
        if me.abandoned:
            return
        self._busy -= me is not self.main and not me.daemon
        me.op, me.target = "ends", None
        if self.closing:
            self._alive.remove(me)
        elif error is not None:
            self._alive.remove(me)
            if isinstance(error, CheckFailed):
                self._stop("check", str(error))
            else:
                self._stop("exception", f"in {me.name}: {type(error).__name__}: {error}", error)
        else:
            self._alive.remove(me)
            if me is self.main:
                self.closing = True
                self._ended.release()
            elif (chosen := self._choose(me)) is not None:
                self.current = chosen
                chosen.carrier.gate.release()

    # -- the end of a run -------------------------------------------------------------------------------------------

    def run(self, body: Callable[[], object]) -> Outcome:
        """Run `body` in the main scripted thread, and everything it starts, to the end."""
        self.strands.append(self.main)
        self._launch(self.main, body)
        self.main.carrier.gate.release()
        lost = None
        # In parts: a process that was stopped for a while gets the rest of its time when it goes on.
        if not any(self._ended.acquire(timeout=self._patience / 10) for _ in range(10)):
            lost = self.current
            self._stop("outside the seam", f"{lost.name} did nothing for {self._patience:g} s that the seam can see")
        stuck = [strand for strand in tuple(self._alive) if not self._unwind(strand, lost)]
        self.over = True
        for strand in self._launched:
            if strand.ended and strand not in self._interrupted:
                give_back(strand.carrier)
        if stuck and self.failure is None:
            names = ", ".join(strand.name for strand in stuck)
            self.failure = Failure("not unwound", f"could not be ended: {names}", states(stuck), None, self.steps)
        return Outcome(self.failure, tuple(self.choices), self.steps, self.now, self.journal, len(stuck))

    def _stop(self, kind: str, message: str, error: BaseException | None = None) -> None:
        """Note the failure and wake the controller; the calling thread then waits to be unwound."""
        self.failure = Failure(kind, message, states(self._alive), error, self.steps)
        self.closing = True
        with suppress(RuntimeError):  # the controller's own call
            self._ended.release()

    def _unwind(self, strand: Strand, lost: Strand | None) -> bool:
        self.current = strand
        if strand is lost:
            self._interrupt(strand)
        else:
            strand.carrier.gate.release()
        bound = min(1.0, self._patience)
        if not strand.finished.acquire(timeout=bound):
            self._interrupt(strand)
            if not strand.finished.acquire(timeout=bound):
                strand.abandoned = True
        return not strand.abandoned

    def _interrupt(self, strand: Strand) -> None:
        self._interrupted.append(strand)
        interrupt(strand.carrier, Unwind)

    def _refuse(self, me: Strand, blocking: bool) -> bool:
        if self.over:
            return True  # a finalizer, long after
        me.refusals += 1
        if me.refusals > REFUSALS:
            me.abandoned = True
            me.finished.release()
            me.carrier.gate.acquire()  # for ever
        if blocking or me.refusals > REFUSALS // 10:
            raise Unwind
        return False
