"""`Turn`: one piece of work on its way through a serial queue (seed 000 section 6.6-6.7).

Guarantees
    A turn's coroutine is only ever stepped by the thread that drains its queue, and never again once it has finished: it
    is claimed as long as it runs (decision 14). `succeed` or `fail` is called exactly once, on the turn. Each turn has a
    `contextvars.Context` of its own.

Ownership
    `state`, `interruption`, `awaiting`  under the queue's gate
    `waker`, `_coroutine`, `_context`    the draining thread
    `cost`, `lane`, `queue`              set at admission, read-only afterwards
"""

from __future__ import annotations

import contextvars
import types
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import Suspension, Waker, claims
from zlink_nogil.scheduler.suspension import hint_at_bridge, not_awaitable

if TYPE_CHECKING:
    from zlink_nogil.execution._lane import Lane
    from zlink_nogil.execution.queue import SerialExecutionQueue

__all__ = ["Turn", "TurnState"]


class TurnState(Enum):
    QUEUED = auto()
    RUNNING = auto()
    SUSPENDED = auto()  # awaits a completion, its queue waits with it
    NOTIFIED = auto()  # what it awaited is there, or it was interrupted: goes on at its queue's next slice
    FINISHED = auto()


_TRANSITIONS = frozenset(
    {
        (TurnState.QUEUED, TurnState.RUNNING),
        (TurnState.QUEUED, TurnState.FINISHED),  # cancelled or shut down before it began
        (TurnState.RUNNING, TurnState.SUSPENDED),
        (TurnState.RUNNING, TurnState.FINISHED),
        (TurnState.SUSPENDED, TurnState.NOTIFIED),
        (TurnState.NOTIFIED, TurnState.RUNNING),
    }
)


class _OnTurn(_sync.local):
    turn: Turn | None = None


_on = _OnTurn()


class _Current:
    """`Turn.current`, read through the class: the turn this thread is on, or None."""

    def __get__(self, instance: object, owner: type) -> Turn | None:
        return _on.turn


class Turn(ABC):
    """Base class. A subclass says what the work is (`begin`) and where its outcome goes (`succeed`, `fail`).

    `payload_bytes` is what the work holds in memory besides the policy's fixed cost.
    """

    __slots__ = (
        "_context",
        "_coroutine",
        "awaiting",
        "cost",
        "interruption",
        "lane",
        "payload_bytes",
        "queue",
        "state",
        "waker",
    )

    current = _Current()
    queue: SerialExecutionQueue
    lane: Lane

    def __init__(self, payload_bytes: int = 0, context: contextvars.Context | None = None) -> None:
        if not isinstance(payload_bytes, int) or payload_bytes < 0:
            raise ValueError(f"payload_bytes must be an integer and not negative, not {payload_bytes!r}")
        self.payload_bytes = payload_bytes
        self.cost = 0
        self.state = TurnState.QUEUED
        self.awaiting: Suspension | None = None
        self.interruption: BaseException | None = None
        self.waker: tuple[Suspension, Waker] | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._context = context or contextvars.Context()

    @abstractmethod
    def begin(self) -> Any:
        """Start the work: its value, or the coroutine to step. Called once, on the turn."""

    @abstractmethod
    def succeed(self, value: Any) -> None:
        """The work returned `value`. Called on the turn, or never; what it raises goes to `fail`."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """The work raised `error`, or will never run. In the second case it is called off the turn."""

    def move(self, state: TurnState) -> None:
        """Take one step of the lifecycle; an illegal one raises and changes nothing."""
        if (self.state, state) not in _TRANSITIONS:
            raise InvalidOperation(f"a turn cannot go from {self.state.name} to {state.name}")
        self.state = state

    def advance(self, interruption: BaseException | None) -> Suspension | None:
        """Run up to the next wait. Returns what to wait for, or None when the work is over."""
        if interruption is not None:
            self._forget_waker()
        previous, _on.turn = _on.turn, self
        try:
            try:
                awaited, value = self._context.run(self._step, interruption)
            except BaseException as error:  # the outcome of user code, whatever it is
                hint_at_bridge(error)
                self._settle()
                self.fail(error)
                return None
            if awaited is not None:
                return awaited
            self._settle()
            try:
                self.succeed(value)
            except BaseException as error:  # a value that cannot be delivered is a failure of the work
                self.fail(error)
            return None
        finally:
            _on.turn = previous

    def _forget_waker(self) -> None:
        """Interrupted: what was awaited must not hold the turn until it ends itself."""
        if self.waker is not None:
            awaited, waker = self.waker
            awaited.remove_waker(waker)
            self.waker = None

    def _settle(self) -> None:
        """The work is over: its reservation is returned before anybody can see the outcome."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            claims.release(coroutine)
        self.queue.note_finished(self)

    def _step(self, interruption: BaseException | None) -> tuple[Suspension | None, Any]:
        coroutine = self._coroutine
        if coroutine is None:
            value = self.begin()
            if not isinstance(value, types.CoroutineType):
                return None, value
            if value.cr_running or value.cr_suspended:
                raise claims.taken(value)
            claims.claim(value, self)
            coroutine = self._coroutine = value
        try:
            while True:
                awaited = coroutine.send(None) if interruption is None else coroutine.throw(interruption)
                if isinstance(awaited, Suspension):
                    return awaited, None
                interruption = not_awaitable("a handler", awaited)
        except StopIteration as end:
            return None, end.value
