"""Messages between processes, next to the same sockets used by hand."""

from __future__ import annotations

from bench.messaging.rows import CELLS, LEADING

__all__ = ["CELLS", "LEADING"]
