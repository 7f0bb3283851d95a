"""The wait graph of lanes, kept in debug builds only: a cycle raises where it would have deadlocked (design 3.1).

Guarantees
    Of the threads of a cycle, the last one to begin waiting gets `InvalidOperation` naming the lanes; the others go on.

Ownership
    `_waiting` (thread id -> lanes held, lane awaited) is read and written under `_graph` only. An entry exists only while
    its thread waits, so an edge is never stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation

if TYPE_CHECKING:
    from zlink_nogil.state.lane import StateLane

_graph = _sync.Lock()
_waiting: dict[int, tuple[list[StateLane], StateLane]] = {}


@contextmanager
def waiting(innermost: StateLane, target: StateLane) -> Iterator[None]:
    """Record that this thread, which holds `innermost` and the lanes around it, waits for `target`."""
    held = _chain(innermost)
    me = _sync.get_ident()
    with _graph:
        cycle = _find_cycle(held, target)
        if cycle:
            names = " -> ".join(repr(lane.name) for lane in cycle)
            raise InvalidOperation(f"waiting for state lanes in a cycle: {names}")
        _waiting[me] = (held, target)
    try:
        yield
    finally:
        with _graph:
            del _waiting[me]


def _chain(lane: StateLane | None) -> list[StateLane]:
    held = []
    while lane is not None:
        held.append(lane)
        lane = lane._outer
    return held


def _find_cycle(held: list[StateLane], target: StateLane) -> list[StateLane]:
    """Lanes from `target` back to one in `held`, following holders that are themselves waiting; [] if there is none."""
    path = [held[0]]
    while target not in path:
        path.append(target)
        if target in held:
            return path
        awaited = next((lane for lanes, lane in _waiting.values() if target in lanes), None)
        if awaited is None:
            return []
        target = awaited
    return path if target in held else []
