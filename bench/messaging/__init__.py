"""Requests over a mesh: who waits in the sockets, and what that costs."""

from __future__ import annotations

from bench.messaging.leading import CELLS

__all__ = ["CELLS"]
