"""`Filters`: code around a handler, outermost first (design 4.7; seed 004 section 4.3).

Guarantees
    Planned when the host starts: a message looks nothing up and reads no annotation. Plain filters stay on the calling
    stack; nothing is awaited that need not be.

Ownership
    read-only; what is made belongs to the message's scope and turn
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any

from zlink_nogil.dependencies.container import Container
from zlink_nogil.dependencies.scope import Scope
from zlink_nogil.errors import InvalidOperation

__all__ = ["Filter", "Filters"]

type Filter = Callable[..., Any]
"""`filter(message, ctx, call_next)`, plain or `async def`; or a class of such, made from the container."""


class _Around:
    """A filter: a function, or a class that is made per message."""

    def __init__(self, container: Container, given: Filter) -> None:
        is_class = isinstance(given, type)
        called: Any = vars(given).get("__call__") if is_class else given
        self._function = None if is_class else given
        self._plan = container.plan(given) if is_class else None
        self.is_async = inspect.iscoroutinefunction(called)

    def make(self, scope: Scope) -> Callable[..., Any]:
        if self._plan is not None:
            made: Callable[..., Any] = self._plan.make(scope)
            return made
        assert self._function is not None, "a filter is a class or a function"
        return self._function


class Filters:
    """`NotConfigured` for one that cannot have what it needs. False when there is none."""

    def __init__(self, container: Container, given: Sequence[Filter]) -> None:
        self._around = tuple(_Around(container, each) for each in given)

    def __bool__(self) -> bool:
        return bool(self._around)

    def around(self, handle: Callable[[Any], Any], scope: Scope, ctx: Any) -> Callable[[Any], Any]:
        """Make every filter, on the calling thread; returns what the message is given to in place of `handle`."""
        if not self._around:
            return handle
        filters = [(around.make(scope), around.is_async) for around in self._around]

        def call(message: Any, index: int = 0) -> Any:
            if index == len(filters):
                return handle(message)
            around, is_async = filters[index]
            return around(message, ctx, (_AwaitedNext if is_async else _Next)(call, index + 1))

        return call


class _Next:
    """What a plain filter calls, once: the value, or the coroutine of an `async def`."""

    def __init__(self, call: Callable[[Any, int], Any], index: int) -> None:
        self._call: Callable[[Any, int], Any] | None = call
        self._index = index

    def __call__(self, message: Any) -> Any:
        call, self._call = self._call, None
        if call is None:
            raise InvalidOperation("call_next is for one call")
        return call(message, self._index)


class _AwaitedNext(_Next):
    """What an `async def` filter awaits."""

    async def __call__(self, message: Any) -> Any:
        outcome = super().__call__(message)
        return await outcome if isinstance(outcome, CoroutineType) else outcome
