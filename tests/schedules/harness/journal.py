"""The schedule of one run as a readable list: thread, operation, source line, and where the baton went.

Ownership: written by the thread that holds the baton. Kept only for runs that are reported: walking frames is slow.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from types import FrameType

from zlink_nogil import _sync

from .strand import Strand

__all__ = ["Entry", "Journal", "is_inside", "place"]

_INSIDE = (os.path.dirname(__file__) + os.sep, _sync.__file__, contextlib.__file__, "<frozen ")


def is_inside(frame: FrameType) -> bool:
    """Is this a frame of the harness or of the seam, that is: not what the reader wants to see?"""
    return frame.f_code.co_filename.startswith(_INSIDE)


def place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


@dataclass(slots=True)
class Entry:
    thread: str
    does: str
    where: str
    now: float
    then: str = ""

    def __str__(self) -> str:
        return f"{self.thread:<12} {self.does:<42} {self.where:<32}{self.then}".rstrip()


class Journal:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def step(self, strand: Strand, now: float) -> None:
        where = "" if strand.ended else self.caller()
        self.entries.append(Entry(strand.name, strand.waits_for, where, now))

    def switch(self, chosen: Strand, preempted: bool) -> None:
        self.entries[-1].then = f" -> {chosen.name}{' (preempted)' if preempted else ''}"

    @staticmethod
    def caller() -> str:
        """The innermost place that is not ours."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_inside(frame):
            frame = frame.f_back
        return place(frame) if frame is not None else ""
