"""Actors next to Pykka's: messages to few and many, answers, what an idle one weighs, how many threads there are."""

from __future__ import annotations

from bench.actors.rows import ROWS

__all__ = ["ROWS"]
