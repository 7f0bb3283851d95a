"""Waiting for oneself (decision 11): for one's own turn in every build, in a cycle of owners in debug builds.

Guarantees
    A turn that begins to wait for work which needs a queue or gate that the turn keeps gets `InvalidOperation` where it
    waits, and nothing else changes. Of the turns of a cycle the last one to begin waiting gets it, the others go on.

Assumes
    Who holds a queue is read without its gate: it can be stale only for a turn that is just ending, which waits for nothing.

Ownership
    `Turn.waits_for` is written under `_graph`, and taken back by the thread that steps the turn
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution.turn import Turn
from zlink_nogil.scheduler import Completion, Wait

if TYPE_CHECKING:
    from zlink_nogil.execution._loop import Loop

__all__ = ["check", "current_group"]

_graph = _sync.Lock()


def check(target: Loop, completion: Completion[Any] | None, how: Wait) -> None:
    """`InvalidOperation` if the turn of this thread would wait for itself; `completion`, or what will be one, is work of
    `target`."""
    turn = Turn.current
    if turn is None:
        return
    if how is Wait.OVER:
        turn.waits_for = None
        return
    kept = [] if how is Wait.GIVE_BACK and turn.queue.outer is None else [turn.queue]
    if how is not Wait.GIVE_BACK and turn.queue.outer is not None:
        kept.append(turn.queue.outer)
    needed = _needed(target)
    for queue in needed:
        if queue in kept:
            raise InvalidOperation(f"{_who(turn, how)} would wait for itself: that work needs the turn of {queue.name!r}")
    if how is Wait.BLOCK and target.group is not None and target.group is turn.queue.group:
        raise InvalidOperation(f"{_who(turn, how)} would block for work of its own coordinator, at {target.name!r}")
    if __debug__:
        with _graph:
            if completion is not None and completion.done():  # its owner may be waiting for something else by now
                return
            cycle = _cycle(needed, kept)
            if cycle:
                path = " -> ".join(repr(queue.name) for queue in [turn.queue, *cycle])
                raise InvalidOperation(f"{_who(turn, how)} would wait in a cycle of owners: {path}")
            if completion is not None:
                turn.waits_for = (completion, target, kept)


def _who(turn: Turn, how: Wait) -> str:
    return f"{how.value} in {turn.describe()}, on the {turn.lane.name} lane of {turn.queue.name!r},"


def _needed(queue: Loop) -> list[Loop]:
    return [queue] if queue.outer is None else [queue, queue.outer]


def _cycle(needed: list[Loop], kept: list[Loop]) -> list[Loop]:
    """The way from one of `needed` to one of `kept` over turns that wait; empty if there is none. Under `_graph`."""
    paths = [[queue] for queue in needed]
    seen = set(needed)
    while paths:
        path = paths.pop()
        for queue in _awaited_by_holder(path[-1]):
            if queue in kept:
                return [*path, queue]
            if queue not in seen:
                seen.add(queue)
                paths.append([*path, queue])
    return []


def _awaited_by_holder(queue: Loop) -> Iterator[Loop]:
    holder = queue.holder()
    waits_for = None if holder is None else holder.waits_for
    if waits_for is not None:
        completion, target, kept = waits_for
        if queue in kept and not completion.done():  # else it is giving this queue back, and only on its way out
            yield from _needed(target)


def current_group() -> object:
    """The coordinator whose work this thread runs, or None."""
    turn = Turn.current
    return None if turn is None else turn.queue.group
