"""What a Spot's or an Actor's class says about itself: its handlers and timers, read once, at registration (design 4.7, 7).

A handler is a method `(self, message, ctx)`, plain or `async def`: marked with `@handler`, or named `on_...`. The message
name is the annotated type's, unless `name=` is given.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.dependencies import Container, Plan, Scope
from zlink_nogil.dependencies.filters import Filters
from zlink_nogil.errors import AlreadyExists
from zlink_nogil.spots.annotations import message_name, read_annotations
from zlink_nogil.spots.names import check_id

__all__ = ["Handling", "OwnerType", "handler", "read_class", "timer"]

_MARK: Final = "_zlink_nogil"
LEAST_PERIOD: Final = 1e-6
"""A grid that is finer than the clock cannot be kept to, nor what was missed be counted."""
HOOKS: Final = frozenset({"on_create", "on_close", "on_join", "on_leave"})


@dataclass(frozen=True, slots=True)
class _HandlerMark:
    name: str | None


@dataclass(frozen=True, slots=True)
class _TimerMark:
    seconds: float
    name: str | None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Handling:
    """One kind of message: `function(owner, message, ctx)`. `filters` None where there is nothing around it."""

    message_name: str
    message_type: Any
    reply_type: Any
    function: Callable[[Any, Any, Any], Any]
    filters: Filters | None = None

    def prepare(self, scope: Scope, owner: Any, ctx: Any) -> Callable[[Any], Any]:
        """Where there are filters: make them; returns what the message is given to."""
        assert self.filters is not None, "asked where there are filters"
        return self.filters.around(lambda message: self.function(owner, message, ctx), scope, ctx)


@dataclass(frozen=True, slots=True, eq=False)
class OwnerType:
    """A registered class. `timers` is (name, seconds, name of the method), `on_demand` how ids that it makes begin."""

    type_name: str
    owner_class: type[Any]
    factory: Callable[..., Any]
    handlers: Mapping[str, Handling]
    timers: tuple[tuple[str, float, str], ...]
    on_demand: str | None
    plan: Plan

    def planned(self, container: Container, filters: Filters) -> OwnerType:
        """How its objects are made, and what is around its handlers; `NotConfigured` for an object that cannot be made."""
        handlers = self.handlers
        if filters:
            handlers = {name: _sync.read_by_many(replace(known, filters=filters)) for name, known in handlers.items()}
        return replace(self, handlers=handlers, plan=container.plan(self.factory))


def handler(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Mark a method as a handler. `name`: the message name, if it is not the annotated type's."""
    if function is None:
        return functools.partial(handler, name=name)
    setattr(function, _MARK, _HandlerMark(name))
    return function


def timer[F: Callable[..., Any]](seconds: float, *, name: str | None = None) -> Callable[[F], F]:
    """Mark a Spot's method `(self)`, plain or `async def`, to be called every `seconds` while the Spot is open.

    `name`: the timer's, if it is not the method's. `ValueError` unless finite and at least a microsecond.
    """
    check_period(seconds)

    def mark(function: F) -> F:
        setattr(function, _MARK, _TimerMark(seconds, name))
        return function

    return mark


def check_period(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not LEAST_PERIOD <= seconds < math.inf:
        raise ValueError(f"a timer's period is a finite number of seconds, at least {LEAST_PERIOD}, not {seconds!r}")
    return float(seconds)


def _mark_of(owner_class: type[Any], attribute: str) -> _HandlerMark | _TimerMark | None:
    """A method that overrides a marked one is marked as that is, unless it says otherwise."""
    marks = (getattr(base.__dict__.get(attribute), _MARK, None) for base in owner_class.__mro__)
    return next((mark for mark in marks if mark is not None), None)


def marked_handlers(owner_class: type[Any]) -> Iterator[tuple[Callable[..., Any], str | None]]:
    """(function, name) of every method that `handler` marks."""
    for attribute in dir(owner_class):
        mark = _mark_of(owner_class, attribute)
        if isinstance(mark, _HandlerMark):
            yield getattr(owner_class, attribute), mark.name


def read_class(
    type_name: str, owner_class: type[Any], factory: Callable[..., Any] | None, on_demand: str | None
) -> OwnerType:
    """`TypeError` for a handler that is none, `AlreadyExists` for two of one message, or two timers of one name."""
    handlers: dict[str, Handling] = {}
    timers: list[tuple[str, float, str]] = []
    for attribute in dir(owner_class):
        function = getattr(owner_class, attribute)
        mark = _mark_of(owner_class, attribute)
        if isinstance(mark, _TimerMark):
            name = check_id("a timer's name", attribute if mark.name is None else mark.name)
            if any(name == known for known, _, _ in timers):
                raise AlreadyExists(f"{owner_class.__qualname__} has two timers {name!r}")
            timers.append((name, mark.seconds, attribute))
        elif isinstance(mark, _HandlerMark) or (attribute.startswith("on_") and attribute not in HOOKS):
            message_type, reply_type = read_annotations(function, method=True)
            name = (mark.name if mark is not None else None) or message_name(message_type)
            if name in handlers:
                raise AlreadyExists(f"{owner_class.__qualname__} has two handlers for {name!r}")
            handlers[sys.intern(name)] = _sync.read_by_many(Handling(name, message_type, reply_type, function))
    made = factory or owner_class
    return OwnerType(type_name, owner_class, made, handlers, tuple(timers), on_demand, Plan(made, {}))
