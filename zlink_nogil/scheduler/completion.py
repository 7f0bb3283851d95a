"""`Completion`: the outcome of something that was started (decisions 11-13, design 7).

Guarantees
    Exactly one of `succeed`, `fail` and `cancel` wins; the others return False and change nothing. Every waiter is woken
    exactly once. A callback runs in a new turn of the pool, never on the completing stack. Each waiter gets its own
    exception instance. A `result` that times out leaves the operation alone.

Assumes
    A waker runs on the completing stack, outside `_lock`.

Ownership
    every field below is written under `_lock`; `_state` may be read without it (it is written last, and only once)
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import copy
import logging
from collections.abc import Callable, Generator
from typing import Any, Final, cast

from zlink_nogil import _sync
from zlink_nogil.errors import Cancelled, DeadlineExceeded
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.hand_over import HandOver
from zlink_nogil.scheduler.pool import WorkerPool, default_pool
from zlink_nogil.scheduler.suspension import GivenBack, Suspension, Wait, Waker

__all__ = ["Completion", "OnWait"]

_log = logging.getLogger("zlink_nogil.scheduler")


# Small integers: an enum's members are objects that all threads would count references on (design 1.4).
PENDING: Final = 0
SUCCEEDED: Final = 1
FAILED: Final = 2
CANCELLED: Final = 3
_NAMES: Final = ("pending", "succeeded", "failed", "cancelled")
# The lifecycle is one step: PENDING to one of the other three.

type OnWait = Callable[[Completion[Any], Wait], None]
"""Raises `InvalidOperation` where waiting would be waiting for oneself (decision 11)."""

type _Callback[T] = tuple[contextvars.Context, Callable[[Completion[T]], object]]


class Completion[T](Suspension):
    """Waited for with `result`, `exception`, `await` (inside a task or a handler), or `add_done_callback`.

    All members are thread-safe. The owner of the operation makes it and calls `succeed` or `fail`; what the owner passes:
    `pool` runs callbacks (default: the process's pool), `canceller()` asks the owner to cancel and tells whether it will,
    `on_wait(completion, how)` raises `InvalidOperation` where waiting would be waiting for oneself (decision 11).
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_canceller",
        "_lock",
        "_on_wait",
        "_pool",
        "_state",
        "_value",
        "_wakers",
    )

    def __init__(
        self,
        pool: WorkerPool | None = None,
        canceller: Callable[[], bool] | None = None,
        on_wait: OnWait | None = None,
    ) -> None:
        self._lock = _sync.Lock()
        self._state = PENDING
        self._wakers: list[Waker] | None = None
        self._callbacks: list[_Callback[T]] | None = None
        self._pool = pool or default_pool()
        self._canceller = canceller
        self._on_wait = on_wait

    def __repr__(self) -> str:
        return f"<Completion {_NAMES[self._state]}>"

    # -- for whoever waits ------------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._state != PENDING

    def cancelled(self) -> bool:
        return self._state == CANCELLED

    def result(self, timeout: float | None = None) -> T:
        """Block until the outcome is there; return it or raise it.

        `timeout` in seconds, None for ever. Raises `DeadlineExceeded` when it passes (the operation goes on),
        `InvalidOperation` when this turn would wait for itself, `Cancelled`, or the operation's own error.
        """
        self._wait(timeout)
        return self.outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `result`, but returns the exception, or None for success."""
        self._wait(timeout)
        _, error = self._resolve()
        return error

    def cancel(self) -> bool:
        """Ask for cancellation; True if the operation will end as cancelled or decide so itself, False if it is too late."""
        self._pool.check_fork()
        with self._lock:
            if self.done():
                return False
            canceller = self._canceller
        return canceller() if canceller is not None else self.abandon()

    def add_done_callback(self, callback: Callable[[Completion[T]], object]) -> None:
        """Call `callback(self)` in a new turn of the pool, and a copy of the caller's context, once the outcome is there.

        What it raises is logged.
        """
        self._pool.check_fork()
        entry = (contextvars.copy_context(), callback)
        with self._lock:
            if not self.done():
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(entry)
                return
        self._dispatch([entry])

    def __await__(self) -> Generator[Completion[Any], None, T]:
        if not self.done():
            self.tell(Wait.KEEP)
            yield self
        return self.outcome()

    async def yield_(self) -> T:
        """`await` it in a turn of a shared Spot gate: the turn is given back until the outcome is there.

        The continuation waits for a turn of its own, behind what waits then. With the outcome there already the turn is
        kept. `InvalidOperation` anywhere else, and where what is awaited needs the claim that this turn keeps.
        """
        if not self.done():
            self.tell(Wait.GIVE_BACK)
        await GivenBack(self)  # also when it is done: whether this turn may is for its loop to say
        return self.outcome()

    def as_future(self) -> concurrent.futures.Future[T]:
        """A `concurrent.futures.Future` of the same outcome (asyncio: `asyncio.wrap_future`); cancelling it cancels this."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def settle(completion: Completion[T]) -> None:
            if completion.cancelled():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            error = completion.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(completion.outcome())

        def follow(future: concurrent.futures.Future[T]) -> None:
            if future.cancelled():
                self.cancel()

        future.add_done_callback(follow)
        self.add_done_callback(settle)
        return future

    def outcome(self) -> T:
        """The outcome of a completion that is done: returned or raised, a fresh exception instance each time."""
        value, error = self._resolve()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame: what failed goes with its last user, not with the collector
        return cast(T, value)

    def _resolve(self) -> tuple[T | None, BaseException | None]:
        """(value, None) or (None, error) once done; a subclass may still have to decode the value."""
        if self._state == SUCCEEDED:
            return self._value, None
        if self._state == CANCELLED:
            return None, Cancelled()
        return None, _fresh(self._value)

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        self._pool.check_fork()
        on_wait = self.tell(Wait.BLOCK)
        parker = _sync.Parker()

        def wake(_: Suspension) -> None:
            parker.unpark()

        if not self.add_waker(wake):
            return
        try:
            with HandOver():
                self._park(parker, timeout)
        finally:
            if not self.done():
                self.remove_waker(wake)
            if on_wait is not None:
                on_wait(self, Wait.OVER)
        if not self.done():
            raise DeadlineExceeded(f"no outcome within {timeout} s; the operation goes on")

    def _park(self, parker: _sync.Parker, timeout: float | None) -> None:
        """Sleep until the outcome is there, when `parker` is unparked, or the time is over."""
        interrupts.park(parker, timeout)

    def tell(self, how: Wait) -> OnWait | None:
        """Somebody begins to wait; raises what `on_wait` raises. For whoever waits with a suspension of his own."""
        on_wait = self._on_wait  # read once: the outcome takes it away
        if on_wait is not None:
            on_wait(self, how)
        return on_wait

    # -- for the operation's owner and the runtime ------------------------------------------------------------------

    def succeed(self, value: T) -> bool:
        """End as succeeded; False if it had ended already."""
        return self._finish(SUCCEEDED, value)

    def fail(self, error: BaseException) -> bool:
        """End as failed, or as cancelled when `error` is `Cancelled`; False if it had ended already."""
        if isinstance(error, Cancelled):
            return self.abandon()
        return self._finish(FAILED, error)

    def abandon(self) -> bool:
        """End as cancelled; False if it had ended already."""
        return self._finish(CANCELLED, None)

    def add_waker(self, waker: Waker) -> bool:
        with self._lock:
            if self.done():
                return False
            if self._wakers is None:
                self._wakers = []
            self._wakers.append(waker)
            return True

    def remove_waker(self, waker: Waker) -> None:
        with self._lock:
            if self._wakers and waker in self._wakers:
                self._wakers.remove(waker)

    def settled(self) -> None:
        """Called once when the operation is over and every callback registered before it has returned.

        Without callbacks it is called under the completion's lock: it may take a leaf lock, and nothing else.
        """

    def _finish(self, state: int, value: Any) -> bool:
        with self._lock:
            if self.done():
                return False
            self._value: Any = value
            if not self._callbacks:
                self.settled()  # before anybody can see the end: who waited finds what the operation held free again
            self._state = state
            wakers, self._wakers = self._wakers, None
            callbacks, self._callbacks = self._callbacks, None
            self._canceller = self._on_wait = None  # they hold the owner; nobody needs them any more
        if wakers:
            for waker in wakers:
                waker(self)
        if callbacks:
            self._dispatch(callbacks, then=self.settled)
        return True

    def _dispatch(self, callbacks: list[_Callback[T]], then: Callable[[], None] | None = None) -> None:
        turn = _CallbackTurn(self, callbacks, then)
        if not self._pool.submit(turn):
            self._pool.run_late(turn.run_slice)


class _CallbackTurn[T]:
    """The new turn in which the callbacks of one completion run, in order of registration."""

    __slots__ = ("_callbacks", "_completion", "_then")

    def __init__(self, completion: Completion[T], callbacks: list[_Callback[T]], then: Callable[[], None] | None) -> None:
        self._completion = completion
        self._callbacks = callbacks
        self._then = then

    def run_slice(self) -> bool:
        for context, callback in self._callbacks:
            try:
                context.run(callback, self._completion)
            except BaseException:  # a worker must survive any callback
                _log.exception("a completion callback failed: %r", callback)
        if self._then is not None:
            self._then()
        return False


def _fresh(error: BaseException) -> BaseException:
    """A copy to raise, so that two waiters do not share a traceback; the original where it cannot be copied."""
    try:
        fresh = _copy(error)
    except Exception:  # a class with a layout and a constructor of its own
        return error
    fresh.__cause__, fresh.__context__ = error.__cause__, error.__context__
    fresh.__suppress_context__ = error.__suppress_context__
    return fresh.with_traceback(error.__traceback__)


def _copy(error: BaseException) -> BaseException:
    try:
        fresh = copy.copy(error)
        if type(fresh) is type(error) and fresh.args == error.args:
            return fresh
    except Exception:  # told apart below
        pass
    fresh = BaseException.__new__(type(error), *error.args)  # its constructor takes something else than `args`
    fresh.__dict__.update(error.__dict__)
    return fresh
