"""`ExecutionLanePolicy`: the limits of one kind of serial queue (seed 000 section 6.1, design 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["ExecutionLanePolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLanePolicy:
    """Immutable; injected into each queue. A bad value raises `ValueError` naming the field.

    Capacities bound what is admitted and not yet finished: items, and bytes (payload + metadata + `fixed_work_byte_cost`).
    `owner_time_budget_ms` is how long an owner may keep a worker, checked between items.
    """

    application_message_capacity: int = 1024
    application_byte_capacity: int = 64 * 1024 * 1024
    lifecycle_message_capacity: int = 128
    lifecycle_byte_capacity: int = 4 * 1024 * 1024
    fixed_work_byte_cost: int = 256
    lifecycle_burst_limit: int = 8
    owner_time_budget_ms: float = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name != "owner_time_budget_ms"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise ValueError(f"{field.name} must be {'an integer' if whole else 'a number'}, not {value!r}")
            if field.name == "fixed_work_byte_cost":
                if value < 0:
                    raise ValueError(f"{field.name} must not be negative, not {value!r}")
            elif not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field.name} must be greater than 0, not {value!r}")
