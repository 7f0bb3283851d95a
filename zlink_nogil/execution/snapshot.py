"""What can be told about a queue at one moment (design 3.6)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueueStateSnapshot"]


@dataclass(frozen=True, slots=True)
class QueueStateSnapshot:
    """`waiting` items stand in line; `reserved_*` are admitted and not finished. `holder` has had the turn for
    `held_seconds`; `suspended` handlers wait for something, with the turn or without."""

    name: str
    waiting: int
    reserved_items: int
    reserved_bytes: int
    holder: str | None
    held_seconds: float | None
    suspended: tuple[str, ...]
