"""Fork-join on the pool: `par.for_each`, `par.map`, `par.scope` (seed 001 section 5; design 2.4).

Guarantees
    The caller helps: nothing waits for a worker that has no time. When a scope is left, every piece has ended or was
    dropped; the first exception drops the pieces that have not begun and is raised. Pieces may fork and join themselves.

Ownership
    `_pieces`  a deque of atomic operations: who takes a piece runs it
    `_open`, `_error`  under `_lock`
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler import interrupts
from zlink_nogil.scheduler.hand_over import HandOver
from zlink_nogil.scheduler.pool import WorkerPool
from zlink_nogil.scheduler.spawning import current_pool

__all__ = ["Scope", "for_each", "map", "scope"]

PIECES_PER_WORKER: Final = 32
"""So that a slow piece at the end does not keep the others waiting long."""


class Scope:
    """`with par.scope() as s: s.spawn(f, x)`; all have ended after the block. `spawn` is thread-safe while it is open."""

    def __init__(self, pool: WorkerPool | None = None) -> None:
        self._pool = pool or current_pool()
        self._pool.start()
        self._lock = _sync.Lock()
        self._pieces: deque[Callable[[], object]] = deque()
        self._open = 0  # pieces that have not ended
        self._helpers = 0
        self._left = False
        self._error: BaseException | None = None
        self._parker = _sync.Parker()  # of who leaves

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._drop(error)
        try:
            self._wait()
        except BaseException as interrupt:  # Ctrl-C in the main thread
            self._drop(interrupt)
            self._wait()
        finally:
            with self._lock:
                self._left = True
        if self._error is not None and self._error is not error:
            raise self._error

    def spawn(self, function: Callable[..., object], /, *args: Any) -> None:
        """Run `function(*args)` in a copy of the caller's context. Dropped when a piece has failed."""
        context = contextvars.copy_context()
        with self._lock:
            if self._left:
                raise InvalidOperation("the scope has been left")
            if self._error is not None:
                return
            self._open += 1
            self._pieces.append(lambda: context.run(function, *args))
            helper = self._helpers < self._pool.workers
            self._helpers += helper
        if helper and not self._pool.submit(_Helper(self)):
            with self._lock:
                self._helpers -= 1  # the pool is closed: the caller does it all

    def _help(self) -> bool:
        """Run one piece that has not begun; False when there is none."""
        try:
            piece = self._pieces.popleft()
        except IndexError:
            return False
        try:
            piece()
        except BaseException as error:  # raised where the scope is left
            self._drop(error)
        self._ended(1)
        return True

    def _drop(self, error: BaseException) -> None:
        """The first error: what has not begun will not."""
        with self._lock:
            if self._error is None:
                self._error = error
        dropped = 0
        while True:
            try:
                self._pieces.popleft()
            except IndexError:
                break
            dropped += 1
        self._ended(dropped)

    def _ended(self, count: int) -> None:
        with self._lock:
            self._open -= count
            last = self._open == 0
        if last:
            self._parker.unpark()

    def _wait(self) -> None:
        """Help, and wait for the pieces others have begun, and those they add meanwhile."""
        while True:
            while self._help():
                pass
            with self._lock:
                if self._open == 0:
                    return
                more = bool(self._pieces)
            if not more:
                with HandOver(or_stay=True):
                    interrupts.park(self._parker)

    def help_out(self) -> bool:
        """A helper's slice: one piece. False when it leaves; that, and that nothing is left, is one decision."""
        if self._help():
            return True
        with self._lock:
            if self._pieces:
                return True
            self._helpers -= 1
            return False

    def failed(self) -> bool:
        return self._error is not None


class _Helper:
    """A runnable: a worker that helps one scope, a piece a slice, until nothing is left to begin."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def run_slice(self) -> bool:
        return self._scope.help_out()


scope = Scope


def for_each[T](items: Iterable[T], function: Callable[[T], object]) -> None:
    """Call `function(item)` for each, several at a time; blocks until all are done.

    The first exception is raised; items that had not begun then are left out.
    """

    def run(piece: list[T]) -> None:
        for item in piece:
            if whole.failed():
                return
            function(item)

    with Scope() as whole:
        for piece in _pieces(items):
            whole.spawn(run, piece)


def map[T, U](items: Iterable[T], function: Callable[[T], U]) -> list[U]:
    """As `for_each`; the results, in the order of the items."""
    pieces = _pieces(items)
    results: list[list[U]] = [[] for _ in pieces]

    def run(index: int) -> None:
        result = []
        for item in pieces[index]:
            if whole.failed():
                return
            result.append(function(item))
        results[index] = result

    with Scope() as whole:
        for index in range(len(pieces)):
            whole.spawn(run, index)
    return [value for result in results for value in result]


def _pieces[T](items: Iterable[T]) -> list[list[T]]:
    everything = list(items)
    size = max(1, len(everything) // (current_pool().workers * PIECES_PER_WORKER))
    return [everything[start : start + size] for start in range(0, len(everything), size)]
