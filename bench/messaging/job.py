"""`Job`: one run of one row, as its processes are told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """`server`: the endpoint for a client, "" for the server itself."""

    row: str
    api: str
    pattern: str
    size: int
    seconds: float
    workers: int
    server: str = ""
