"""Switching inside an operation: at every source line of named modules, and before every store that others can see.

Guarantees
    `x.n += 1` is one line and can lose an update: the thread may be changed between its read and its write.

Assumes
    The traced modules are unchanged on disk since they were loaded (lines are only for the reader).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from .carriers import Tracer
from .world import World

__all__ = ["Lines"]

STORES: Final = frozenset({"STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR"})
_stores: dict[CodeType, frozenset[int]] = {}


def _store_offsets(code: CodeType) -> frozenset[int]:
    offsets = _stores.get(code)
    if offsets is None:
        offsets = frozenset(step.offset for step in dis.get_instructions(code) if step.opname in STORES)
        _stores[code] = offsets
    return offsets


class Lines:
    """Makes the trace functions of a run. `modules`: modules or their names."""

    def __init__(self, modules: Iterable[ModuleType | str]) -> None:
        found = [sys.modules[module] if isinstance(module, str) else module for module in modules]
        self._files = frozenset(module.__file__ for module in found)

    def __call__(self, world: World) -> Tracer:
        files = self._files

        def enter(frame: FrameType, event: str, arg: Any) -> Tracer | None:  # noqa: ARG001 - as sys.settrace wants it
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = True
            return step

        def step(frame: FrameType, event: str, arg: Any) -> Tracer | None:  # noqa: ARG001
            if event == "line" or (event == "opcode" and frame.f_lasti in _store_offsets(frame.f_code)):
                world.offer("line", None)
            return step

        return enter
