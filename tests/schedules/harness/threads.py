"""Stand-in for `threading.Thread` and what tells threads apart.

Ownership: all fields belong to the holder of the baton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .locks import the_world
from .strand import Strand

__all__ = ["Thread", "current_thread", "get_ident", "main_thread", "monotonic"]


class Thread:
    """Started and joined like a real one. An exception it does not catch ends the run."""

    def __init__(
        self,
        group: None = None,  # noqa: ARG002 - the real signature
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._world = the_world()
        self.label = self._world.label("Thread")
        self.name = name if name is not None else self.label.partition(" (")[0].replace(" ", "-")
        self.daemon = self._world.current.daemon if daemon is None else daemon
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._strand: Strand | None = None

    def __repr__(self) -> str:
        return f"<scripted thread {self.name}>"

    @property
    def holder(self) -> Strand | None:
        return self._strand

    @property
    def ident(self) -> int | None:
        return None if self._strand is None else self._strand.number + 1

    native_id = ident

    def start(self) -> None:
        self.launch()
        self._world.offer("has started", self)

    def launch(self) -> None:
        """`start` without giving anybody the chance to run in between."""
        if self._strand is not None:
            raise RuntimeError("threads can only be started once")
        self._strand = self._world.spawn(self.name, self.run, self.daemon, self)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        strand = self._strand
        if strand is None:
            raise RuntimeError("cannot join thread before it is started")
        if strand is self._world.current:
            raise RuntimeError("cannot join current thread")
        self._world.wait("join", self, lambda: strand.ended, timeout)

    def is_alive(self) -> bool:
        self._world.offer("look at", self)
        return self._strand is not None and not self._strand.ended


class _Main:
    """The main thread as seen by the runtime: none of a scenario's threads is it, so none handles signals."""

    name = "MainThread"
    ident = 0
    daemon = False


_main = _Main()


def main_thread() -> object:
    return _main


def current_thread() -> object:
    strand = the_world().current
    return strand.face if strand.face is not None else strand


def get_ident() -> int:
    return the_world().current.number + 1


def monotonic() -> float:
    world = the_world()
    world.offer("read the clock", None)
    return world.now
