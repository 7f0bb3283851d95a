"""OS threads that carry scripted threads, used again and again: starting one costs as much as a run.

Guarantees
    A job starts when the carrier's gate is first opened, with a context and asyncgen hooks as on a new thread.
    (Thread-local values are the seam's business: each run gets new ones.)
    Carriers for traced jobs are a kind of their own and stay traced: `sys.settrace` stops all threads for 0.7 ms.

Ownership
    `gate`     opened by whoever passes the baton (`World`), taken by the carrier only
    `job`, `tracer`  written by whoever borrowed the carrier, before the gate is first opened
    `_idle`    carriers whose job is over; appended to by the controller after the run, popped by who starts a thread
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Carrier", "Tracer", "borrow", "frames", "give_back", "interrupt"]

type Tracer = Callable[[FrameType, str, Any], Tracer | None]


class Carrier:
    """Lets its thread go with `gate.release()`; the thread stops itself with `gate.acquire()`."""

    __slots__ = ("gate", "ident", "job", "tracer")

    def __init__(self, job: Callable[[], None], tracer: Tracer | None) -> None:
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.job = job
        self.tracer = tracer
        self.ident = _thread.start_new_thread(self._carry, ())

    def _carry(self) -> None:
        while True:
            self.gate.acquire()
            if self.tracer is not None and sys.gettrace() is None:  # new, or an exception in a tracer ended it
                sys.settrace(self._enter)
            sys.set_asyncgen_hooks(None, None)
            contextvars.Context().run(self.job)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Tracer | None:
        tracer = self.tracer
        return tracer(frame, event, arg) if tracer is not None else None


def _nothing() -> None:
    """The job of an idle carrier."""


_idle: dict[bool, list[Carrier]] = {False: [], True: []}


def borrow(job: Callable[[], None], tracer: Tracer | None) -> Carrier:
    """`tracer` is the job's trace function, as for `sys.settrace`."""
    idle = _idle[tracer is not None]
    if not idle:
        return Carrier(job, tracer)
    carrier = idle.pop()
    carrier.job, carrier.tracer = job, tracer
    return carrier


def give_back(carrier: Carrier) -> None:
    carrier.job = _nothing
    _idle[carrier.tracer is not None].append(carrier)


def frames() -> dict[int, FrameType]:
    """The innermost frame of every OS thread, by ident."""
    return sys._current_frames()


def interrupt(carrier: Carrier, error: type[BaseException]) -> None:
    """Raise `error` in the carrier's thread at its next bytecode: for a loop that does nothing the seam can see."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(carrier.ident), ctypes.py_object(error))
