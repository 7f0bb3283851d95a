"""`Turn`: one piece of work on its way through a serial queue (seed 000 section 6.6-6.7).

Guarantees
    A turn's coroutine is only ever stepped by the thread that drains its queue, and never again once it has finished: it
    is claimed as long as it runs (decision 14). `succeed` or `fail` is called exactly once, on the turn. Each turn has a
    `contextvars.Context` of its own.

Ownership
    `waker`, `deferred`, `_coroutine`, `_context`  the draining thread
    `waits_for`                                    under the wait graph's lock (`_waits.py`); the draining thread clears it
    the rest                                       see `_item.py`
"""

from __future__ import annotations

import contextvars
from abc import abstractmethod
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.execution._item import Item, TurnState
from zlink_nogil.scheduler import Suspension, Waker, claims
from zlink_nogil.scheduler.suspension import GivenBack, hint_at_bridge, not_awaitable

if TYPE_CHECKING:
    from zlink_nogil.execution._loop import Loop
    from zlink_nogil.scheduler import Completion

__all__ = ["Turn", "TurnState"]


class _OnTurn(_sync.local):
    turn: Turn | None = None


_on = _OnTurn()


class _Current:
    """`Turn.current`, read through the class: the turn this thread is on, or None."""

    def __get__(self, instance: object, owner: type) -> Turn | None:
        return _on.turn


class Turn(Item):
    """Base class. A subclass says what the work is (`begin`) and where its outcome goes (`succeed`, `fail`).

    `payload_bytes` is what the work holds in memory besides the policy's fixed cost.
    """

    __slots__ = (
        "_context",
        "_coroutine",
        "deferred",
        "waits_for",
        "waker",
    )

    current = _Current()

    def __init__(self, payload_bytes: int = 0, context: contextvars.Context | None = None) -> None:
        if not isinstance(payload_bytes, int) or payload_bytes < 0:
            raise ValueError(f"payload_bytes must be an integer and not negative, not {payload_bytes!r}")
        super().__init__(payload_bytes)
        self.waker: tuple[Suspension, Waker] | None = None
        self.waits_for: tuple[Completion[Any], Loop, list[Loop], Turn | None] | None = None
        self.deferred: list[Item] | None = None
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

    def describe(self) -> str:
        """What the work is, for people."""
        coroutine = self._coroutine
        return type(self).__name__ if coroutine is None else coroutine.__qualname__

    def turn(self) -> Turn:
        return self

    def advance(self, interruption: BaseException | None) -> Suspension | None:
        self.waits_for = None
        if interruption is not None:
            self._forget_waker()
        previous, _on.turn = _on.turn, self
        try:
            try:
                awaited, value = self._context.run(self._step, interruption)
            except BaseException as error:  # the outcome of user code, whatever it is
                hint_at_bridge(error)
                self._settle(ended_normally=False)
                self.fail(error)
                return None
            if awaited is not None:
                return awaited
            self._settle(ended_normally=True)
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

    def wait_for(self, awaited: Suspension, waker: Waker) -> None:
        self.waker = (awaited, waker)
        if not awaited.add_waker(waker):
            waker(awaited)

    def _settle(self, *, ended_normally: bool) -> None:
        """The work is over: its reservation is returned before anybody can see the outcome."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            claims.release(coroutine)
        deferred, self.deferred = self.deferred, None
        if deferred is not None:
            self.queue.end_deferring(deferred, ended_normally)
        self.queue.note_finished(self)

    def _step(self, interruption: BaseException | None) -> tuple[Suspension | None, Any]:
        coroutine = self._coroutine
        if coroutine is None:
            value = self.begin()
            if not isinstance(value, CoroutineType):
                return None, value
            if value.cr_running or value.cr_suspended:
                raise claims.taken(value)
            claims.claim(value, self)
            coroutine = self._coroutine = value
        try:
            while True:
                awaited = coroutine.send(None) if interruption is None else coroutine.throw(interruption)
                if isinstance(awaited, Suspension):
                    self.gives_back = False
                    return awaited, None
                if type(awaited) is GivenBack and self.queue.may_yield:
                    interruption = None
                    if not awaited.awaited.done():
                        self.gives_back = True
                        return awaited.awaited, None
                else:
                    interruption = not_awaitable(f"a handler of {self.queue.name!r}", awaited)
        except StopIteration as end:
            return None, end.value
