"""Puts the stand-ins behind `zlink_nogil._sync` for the time of one run.

Guarantees
    After a run the seam and the globals of every loaded module of the product are what they were. While it lasts, locks
    that a module made when it was imported are scripted too, and its thread-local values are new.

Assumes
    A module of the product is loaded before the first run that uses it (checked); its global containers are empty again
    when a scenario is over, and what it made at import - locks, thread-local values - is reached through the
    global only, and is made by a constructor without arguments.
"""

from __future__ import annotations

import _thread
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.scheduler.per_process import PerProcess

from . import descriptors, locks, threads
from .world import World

__all__ = ["scripted"]

PRODUCT: Final = "zlink_nogil"
STAND_INS: Final[dict[str, Any]] = {
    "Condition": locks.Condition,
    "Epoll": descriptors.Epoll,
    "Event": locks.Event,
    "EventFd": descriptors.EventFd,
    "Lock": locks.Lock,
    "Parker": locks.Parker,
    "Thread": threads.Thread,
    "current_thread": threads.current_thread,
    "get_ident": threads.get_ident,
    "main_thread": threads.main_thread,
    "monotonic": threads.monotonic,
}
_CONSTANT: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, str)


@contextmanager
def scripted(world: World) -> Iterator[None]:
    modules = _modules()
    saved = [(namespace, name, namespace[name]) for namespace, name in _variables(modules)]
    World.running = world
    for name, stand_in in STAND_INS.items():
        setattr(_sync, name, stand_in)
    _renew(saved)
    try:
        yield
    finally:
        for namespace, name, value in saved:
            namespace[name] = value
        for name, real in REAL.items():
            setattr(_sync, name, real)
        World.running = None
        if _modules() != modules:
            raise RuntimeError(f"import every module of {PRODUCT} that the scenario uses before it runs")


def _renew(globals_: list[tuple[dict[str, Any], str, Any]]) -> None:
    """Thread-local values start empty, as the threads of a run are new, and so does what a process has one of; locks are
    scripted."""
    fresh: dict[int, threading.local] = {}
    for namespace, name, value in globals_:
        if isinstance(value, threading.local):
            namespace[name] = fresh.setdefault(id(value), type(value)())
        elif isinstance(value, PerProcess):
            namespace[name] = PerProcess(value.make)
        elif type(value) is _thread.LockType:
            namespace[name] = locks.Lock(f"{namespace['__name__']}.{name}")


# What is here is the real seam: this module is loaded outside any run.
REAL: Final = {name: getattr(_sync, name) for name in STAND_INS}


def _modules() -> tuple[str, ...]:
    return tuple(name for name in sys.modules if name.partition(".")[0] == PRODUCT)


@lru_cache(maxsize=1)
def _variables(modules: tuple[str, ...]) -> list[tuple[dict[str, Any], str]]:
    """Every global of the product that a run could change: namespace and name."""
    return [
        (vars(module), name)
        for module in map(sys.modules.__getitem__, modules)
        for name, value in vars(module).items()
        if not name.startswith("__") and not isinstance(value, _CONSTANT)
    ]
