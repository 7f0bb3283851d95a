"""Who runs a coroutine: one task or turn at a time in the whole process (decision 14).

Two threads in one coroutine abort the interpreter, and the marks it carries itself come too late: somebody else may have
taken it and not begun.

Guarantees
    Of those who claim a coroutine at once exactly one gets it, and keeps it until it is released. Who has a claim is kept
    alive by it, as long as the coroutine may go on.

Ownership
    `claimed`     dicts by the coroutine's id; single atomic operations. Several, so that threads seldom meet in one.
                  `TaskTable` writes them itself: a call more shows in the price of a spawn.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from zlink_nogil.errors import InvalidOperation

__all__ = ["claim", "claimed", "count", "release", "taken"]

claimed: Final[tuple[dict[int, object], ...]] = tuple({} for _ in range(16))


def claim(coroutine: Coroutine[Any, Any, Any], who: object) -> None:
    """`InvalidOperation` if somebody else has it."""
    key = id(coroutine)
    if claimed[key >> 6 & 15].setdefault(key, who) is not who:
        raise taken(coroutine)


def release(coroutine: Coroutine[Any, Any, Any]) -> None:
    """By who has claimed it: it is over, or will not begin."""
    key = id(coroutine)
    claimed[key >> 6 & 15].pop(key, None)


def taken(coroutine: Coroutine[Any, Any, Any]) -> InvalidOperation:
    return InvalidOperation(f"somebody runs this coroutine already: {coroutine!r}")


def count() -> int:
    return sum(map(len, claimed))
