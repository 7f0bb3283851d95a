"""`Plan`: how something is made from a container, decided once.

Guarantees
    A plan holds providers, no scope and nothing that was made for one. Making something looks nothing up by annotation, and
    happens on the calling thread, without waiting, but for a singleton that another thread is making.

Ownership
    read-only, but for a singleton's `_value`: set once, under its `_lock`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.dependencies.scope import Scope

__all__ = ["Lifetime", "Plan", "Provider"]

_MISSING: Final = object()


class Lifetime(Enum):
    SINGLETON = auto()
    SCOPED = auto()
    TRANSIENT = auto()


class Plan:
    """`function`, and what its parameters by name are made of."""

    __slots__ = ("_function", "_is_resource", "_parameters")

    def __init__(self, function: Callable[..., Any], parameters: dict[str, Provider]) -> None:
        self._function = function
        self._parameters = tuple(parameters.items())
        self._is_resource = inspect.isgeneratorfunction(function)

    def make(self, scope: Scope) -> Any:
        made = self._function(**self.arguments(scope))
        return scope.begin(made) if self._is_resource else made

    def arguments(self, scope: Scope) -> dict[str, Any]:
        return {name: provider.get(scope) for name, provider in self._parameters}

    def __bool__(self) -> bool:
        """Is there anything to make it of?"""
        return bool(self._parameters)


class Provider:
    """One registration. `root` is the scope of singletons."""

    def __init__(self, lifetime: Lifetime, plan: Plan, root: Scope) -> None:
        self.lifetime = lifetime
        self._plan = plan
        self._root = root
        self._lock = _sync.Lock()
        self._value: Any = _MISSING

    def get(self, scope: Scope) -> Any:
        if self.lifetime is Lifetime.TRANSIENT:
            return self._plan.make(scope)
        if self.lifetime is Lifetime.SCOPED:
            made = scope.instances.get(self, _MISSING)
            if made is _MISSING:
                made = scope.instances[self] = self._plan.make(scope)
            return made
        if self._value is _MISSING:
            with self._lock:  # its own: a singleton's parts are other singletons, and there are no circles
                if self._value is _MISSING:
                    self._value = self._plan.make(self._root)
        return self._value
