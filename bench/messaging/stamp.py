"""The first 29 bytes of every payload: what it is part of (design 6.1)."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["ACTIVE", "PHASE_AT", "WARM_UP", "payload"]

_STAMP: Final = struct.Struct("<4sIBIQQ")
_MAGIC: Final = b"ZLNK"
PHASE_AT: Final = 8
WARM_UP: Final = 0
ACTIVE: Final = 1


def payload(size: int, phase: int) -> bytes:
    """One message; all of a phase are alike, so that making them costs no row anything."""
    return _STAMP.pack(_MAGIC, 1, phase, size, 0, 0).ljust(size, b"x")
