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

from typing import TYPE_CHECKING, Any

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.execution.turn import Turn, TurnState
from zlink_nogil.scheduler import Completion, Wait

if TYPE_CHECKING:
    from zlink_nogil.execution._loop import Loop

__all__ = ["check", "current_group"]

_graph = _sync.Lock()


def check(target: Loop, awaited: Turn | None, completion: Completion[Any] | None, how: Wait) -> None:
    """`InvalidOperation` if the turn of this thread would wait for itself; `completion`, or what will be one, is work of
    `target`: the outcome of `awaited`, if that is known."""
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
            cycle = _cycle(turn, kept, target, awaited)
            if cycle:
                path = " -> ".join(repr(queue.name) for queue in [turn.queue, *cycle])
                raise InvalidOperation(f"{_who(turn, how)} would wait in a cycle of owners: {path}")
            if completion is not None:
                turn.waits_for = (completion, target, kept, awaited)


def _who(turn: Turn, how: Wait) -> str:
    return f"{how.value} in {turn.describe()}, on the {turn.lane.name} lane of {turn.queue.name!r},"


def _needed(queue: Loop) -> list[Loop]:
    return [queue] if queue.outer is None else [queue, queue.outer]


def _cycle(turn: Turn, kept: list[Loop], target: Loop, awaited: Turn | None) -> list[Loop]:
    """The way from `target` back to `turn`, or to a queue that it keeps, over turns that wait. Empty if there is none.

    Work waits for what keeps a queue that it needs and, when it has begun, for what it awaits itself. Under `_graph`.
    """
    todo: list[tuple[list[Loop], Turn | None]] = [([target], awaited)]
    seen: set[Turn] = set()
    while todo:
        path, work = todo.pop()
        if work is turn:
            return path
        blocking = [] if work is None else [(path, work)]
        for queue in _needed(path[-1]):
            way = path if queue is path[-1] else [*path, queue]
            if queue in kept:
                return way
            holder = queue.holder()
            waits_for = None if holder is None else holder.waits_for  # read once: its thread may take it back
            if holder is not None and waits_for is not None and queue in waits_for[2]:
                blocking.append((way, holder))  # else it is giving this queue back, and only on its way out
        for way, blocker in blocking:
            waits_for = blocker.waits_for
            if blocker in seen or waits_for is None or blocker.state is TurnState.NOTIFIED or waits_for[0].done():
                continue
            seen.add(blocker)
            todo.append(([*way, waits_for[1]], waits_for[3]))
    return []


def current_group() -> object:
    """The coordinator whose work this thread runs, or None."""
    turn = Turn.current
    return None if turn is None else turn.queue.group
