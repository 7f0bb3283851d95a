"""`Container`: what may be asked for by type, and how long it lives (design 4.7).

Guarantees
    Whatever cannot be made is refused when the plan is made, not when a record comes: a type nobody registered, a circle, a
    singleton that would keep something of one scope. Singletons are made once, whoever asks first.

Ownership
    `_factories`, `_providers`   before the host starts, on one thread; read-only afterwards
    the root scope               appended to by singletons being made (a list: atomic), closed by the host
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.dependencies.plan import Lifetime, Plan, Provider
from zlink_nogil.dependencies.scope import Scope
from zlink_nogil.errors import AlreadyExists, InvalidOperation, NotConfigured

__all__ = ["Container"]


class Container:
    """`host.container`. Registration belongs to the time before `Host.start`.

    A factory is a class or a function; its annotated parameters are made from the container, too. A generator function gives
    the value it yields, and cleans up afterwards. `factory` defaults to the type itself.
    """

    def __init__(self) -> None:
        self._factories: dict[Any, tuple[Lifetime, Callable[..., Any]]] = {}
        self._providers: dict[Any, Provider] = {}
        self._root = Scope()
        self._sealed = False

    def singleton(self, asked: Any, factory: Callable[..., Any] | None = None) -> None:
        """One for the host, made when it is first needed and cleaned up when the host has closed."""
        self._register(Lifetime.SINGLETON, asked, factory)

    def scoped(self, asked: Any, factory: Callable[..., Any] | None = None) -> None:
        """One per dispatch of a channel's message (its filters share it), or per activation of a Spot or an Actor.

        The filters around one message to a Spot or an Actor share one of their own.
        """
        self._register(Lifetime.SCOPED, asked, factory)

    def transient(self, asked: Any, factory: Callable[..., Any] | None = None) -> None:
        """A new one for each parameter."""
        self._register(Lifetime.TRANSIENT, asked, factory)

    def _register(self, lifetime: Lifetime, asked: Any, factory: Callable[..., Any] | None) -> None:
        if self._sealed:
            raise InvalidOperation("dependencies are registered before the host starts")
        if asked in self._factories:
            raise AlreadyExists(f"{_name(asked)} is registered already")
        factory = asked if factory is None else factory
        if not callable(factory) or inspect.iscoroutinefunction(factory) or inspect.isasyncgenfunction(factory):
            raise TypeError(f"the factory of {_name(asked)} must be a class or a plain function, not {factory!r}")
        self._factories[asked] = lifetime, factory

    def plan(self, function: Callable[..., Any], skip: int = 0) -> Plan:
        """How to call `function`, all but its first `skip` parameters by type; `NotConfigured` when it cannot be done."""
        return self._plan(function, skip, (), keeps=Lifetime.TRANSIENT)

    def _plan(self, function: Callable[..., Any], skip: int, chain: tuple[Any, ...], keeps: Lifetime) -> Plan:
        label = " -> ".join(_name(part) for part in (*chain, function) if part is not None)
        try:
            signature = inspect.signature(function)
        except ValueError:  # of a built-in type: called without arguments
            return Plan(function, {})
        try:
            asking: Any = function
            hints = typing.get_type_hints(asking.__init__ if isinstance(function, type) else asking)
        except (NameError, TypeError, ValueError) as error:
            raise NotConfigured(f"{label}: its annotations cannot be read: {error}") from None
        parts: dict[str, Provider] = {}
        for parameter in list(signature.parameters.values())[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            asked = hints.get(parameter.name)
            if asked in self._factories:
                parts[parameter.name] = self._provider(asked, (*chain, function), keeps)
            elif parameter.default is parameter.empty:
                raise NotConfigured(f"{label}: nobody registered what {parameter.name!r} is: {_name(asked)}")
        return Plan(function, parts)

    def _provider(self, asked: Any, chain: tuple[Any, ...], keeps: Lifetime) -> Provider:
        lifetime, factory = self._factories[asked]
        if lifetime is Lifetime.SCOPED and keeps is Lifetime.SINGLETON:
            raise NotConfigured(f"{_chain(chain, asked)}: a singleton cannot keep what lives in one scope")
        if factory in chain:
            raise NotConfigured(f"{_chain(chain, asked)}: a circle")
        provider = _sync.look_up(self._providers, asked)
        if provider is None or keeps is Lifetime.SINGLETON:
            inner = Lifetime.SINGLETON if Lifetime.SINGLETON in (lifetime, keeps) else lifetime
            plan = self._plan(factory, 0, chain, inner)
            if provider is None:
                provider = self._providers[asked] = Provider(lifetime, plan, self._root)
        return provider

    def seal(self) -> None:
        """By the host, when it starts: every registration can be made."""
        self._sealed = True
        for asked in list(self._factories):
            self._provider(asked, (), Lifetime.TRANSIENT)

    def close(self) -> None:
        """By the host, at its end: clean singletons up, the latest first."""
        self._root.close()


def _name(asked: Any) -> str:
    return getattr(asked, "__qualname__", None) or repr(asked)


def _chain(chain: tuple[Any, ...], asked: Any) -> str:
    return " -> ".join(_name(part) for part in (*chain, asked))
