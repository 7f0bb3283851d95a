"""`Dispatch`: a channel's handler with what it is made of, and the filters around it (design 4.7; seed 004 section 4.3).

Guarantees
    Decided when the host starts: a record looks nothing up and reads no annotation. Handler and filters of one record share
    its scope, and nobody else does.

Ownership
    read-only; what is made belongs to the record's turn
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zlink_nogil.dependencies import Container, Plan, Scope
from zlink_nogil.dependencies.filters import Filter, Filters

__all__ = ["Dispatch", "plan_dispatch"]


class Dispatch:
    def __init__(self, function: Callable[..., Any], owner: Plan | None, extras: Plan, filters: Filters) -> None:
        self._function = function
        self._owner = owner
        self._extras = extras
        self._filters = filters

    def prepare(self, scope: Scope, ctx: Any) -> Callable[[Any], Any]:
        """Make everything, on the calling thread; returns what the message is given to."""
        function, extras = self._function, self._extras.arguments(scope)
        owner = () if self._owner is None else (self._owner.make(scope),)

        def handle(message: Any) -> Any:
            return function(*owner, message, ctx, **extras)

        return self._filters.around(handle, scope, ctx)


def plan_dispatch(
    container: Container, function: Callable[..., Any], owner: type[Any] | None, filters: Sequence[Filter]
) -> Dispatch | None:
    """None for a handler that needs nothing; `NotConfigured` for one that cannot have what it needs."""
    extras = container.plan(function, skip=2 if owner is None else 3)
    if owner is None and not filters and not extras:
        return None
    plan = None if owner is None else container.plan(owner)
    return Dispatch(function, plan, extras, Filters(container, filters))
