"""`Tracer`: what happens to sampled messages, stage by stage, on which thread (design 4.8; seed 004, the inner conditions).

    E1 encoded   E2 target chosen   E3 registered   E4 submitted   E5 ended   R read by whoever waited
    I0 woken     I1 permits taken   I2 claimed      I3 header read I4 committed
    W1 on turn   W2 decoded         W3 handler      W4 answered    W5 over

The sender decides which messages are sampled; a flag in the header tells the target, which traces it if it traces at all. A
line of the file is one stage of one message. Besides the time it holds what its thread has done so far: `lanes` entered,
runnables `given` to workers, tasks, completions and jobs of spare threads `made`; and how often the payload was `copied` on
this side. Differences between two stages on one thread are what lies between them.

Guarantees
    Off, it costs a look at one attribute per message and stage. On, an event is one append to a deque: no lock of ours, no
    system call but the clock. The file is written by threads that are about to begin a message or have just ended one, when
    some thousand events are waiting, and by `close`.

Ownership
    `Tracer.recorder`    written under its `_lock`
    `Recorder._events`   a deque with atomic single operations; the file under `_writing`
    `Mark.copied`        whoever has the message
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.messaging.wire import Header
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler.threads import ThreadCache
from zlink_nogil.state import StateLane

__all__ = ["Mark", "Tracer", "Tracing"]

MOST_BUFFERED: Final = 4096
"""Events."""

type _Event = tuple[Mark, str, int, float, int, int, int, int]


_files = itertools.count(1)


class _Tally(_sync.local):
    """What one thread has done while anybody traced, and when it last came from the sockets."""

    lanes = 0
    given = 0
    made = 0
    woken = budgeted = claimed = 0.0


_tally = _Tally()


class Recorder:
    """One file. Every `sample`-th message of this process, and those that others have sampled."""

    def __init__(self, path: Path, sample: int) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._writing = _sync.Lock()
        self._events: deque[_Event] = deque()
        self._sample = sample
        self._turns = itertools.count()
        self.now = _sync.monotonic

    def begin(self, api: str, high: int, low: int) -> Mark | None:
        """By whoever sends, before E1, with the message's operation id; None for a message that is not sampled."""
        if next(self._turns) % self._sample:
            return None
        self.drain()
        return Mark(self, api, high, low)

    def rotation(self) -> None:
        """I0."""
        _tally.woken = self.now()

    def budget(self) -> None:
        """I1."""
        _tally.budgeted = self.now()

    def claim(self) -> None:
        """I2."""
        _tally.claimed = self.now()

    def received(self, header: Header) -> Mark:
        """I0 to I3 of a record that its sender has sampled."""
        mark = Mark(self, "", header.operation_high, header.operation_low)
        for stage, at in (("I0", _tally.woken), ("I1", _tally.budgeted), ("I2", _tally.claimed)):
            mark.note(stage, at)
        mark.note("I3")
        return mark

    def add(self, event: _Event) -> None:
        self._events.append(event)

    def drain(self) -> None:
        """On a thread that holds nothing: write, if there is much and nobody else does."""
        if len(self._events) >= MOST_BUFFERED and self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self) -> None:
        lines = []
        for _ in range(len(self._events)):
            mark, stage, thread, at, lanes, given, made, copied = self._events.popleft()
            line: dict[str, Any] = {"id": f"{mark.high:x}-{mark.low:x}", "stage": stage, "thread": thread, "at": at}
            line |= {"lanes": lanes, "given": given, "made": made, "copied": copied}
            if mark.api:
                line["api"] = mark.api
            lines.append(json.dumps(line) + "\n")
        if not self._file.closed:  # a message that outlived the trace
            self._file.writelines(lines)

    def close(self) -> None:
        with self._writing:
            self._write()
            self._file.close()


class Mark:
    """A sampled message on one side, and its operation id."""

    __slots__ = ("_recorder", "api", "copied", "high", "low")

    def __init__(self, recorder: Recorder, api: str, high: int, low: int) -> None:
        self._recorder = recorder
        self.api = api
        self.high = high
        self.low = low
        self.copied = 0

    def note(self, stage: str, at: float | None = None) -> None:
        recorder, tally = self._recorder, _tally
        at = recorder.now() if at is None else at
        thread = _sync.get_ident()
        recorder.add((self, stage, thread, at, tally.lanes, tally.given, tally.made, self.copied))

    def end(self, stage: str) -> None:
        """As `note`, where the thread holds nothing."""
        self.note(stage)
        self._recorder.drain()


class Tracer:
    """Of a host. `recorder` is None while nobody traces."""

    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self.recorder: Recorder | None = None

    def start(self, path: Path, sample: int) -> Tracing:
        """`InvalidOperation` while there is a trace, `ValueError` for a bad `sample`, `OSError` for a bad path."""
        if sample < 1:
            raise ValueError(f"every how manieth message is a number from 1 on, not {sample!r}")
        with self._lock:
            if self.recorder is not None:
                raise InvalidOperation("the host is being traced already")
            recorder = Recorder(path, sample)
            _count(+1)
            self.recorder = recorder
        return Tracing(self, recorder)

    def start_if_asked(self) -> None:
        """By the environment. Raises as `start` does, and for a `ZLINK_TRACE_SAMPLE` that is no number."""
        path = os.environ.get("ZLINK_TRACE", "")
        if path:
            sample = int(os.environ.get("ZLINK_TRACE_SAMPLE", "1"))
            self.start(Path(f"{path}-{os.getpid()}-{next(_files)}.jsonl"), sample)

    def stop(self, recorder: Recorder | None) -> None:
        """Nothing when that one is over."""
        with self._lock:
            if recorder is None or self.recorder is not recorder:
                return
            self.recorder = None
            _count(-1)
        recorder.close()

    def close(self) -> None:
        """With the host."""
        self.stop(self.recorder)


class Tracing:
    """A trace that goes on until `close`, or the end of its `with` block, or of its host."""

    def __init__(self, tracer: Tracer, recorder: Recorder) -> None:
        self._tracer = tracer
        self._recorder = recorder

    def close(self) -> None:
        """Write what is left, and stop. Again: harmless."""
        self._tracer.stop(self._recorder)

    def __enter__(self) -> Tracing:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


# -- counting -------------------------------------------------------------------------------------------------------

# Replaced on their classes while anybody traces: what is not there costs nothing.
_COUNTED: Final[tuple[tuple[type[Any], str, str], ...]] = (
    (StateLane, "run", "lanes"),
    (WorkerPool, "submit", "given"),
    (WorkerPool, "resume", "given"),
    (Completion, "__init__", "made"),
    (ThreadCache, "run", "made"),
    (_sync.Thread, "start", "made"),
)
_real: dict[tuple[type[Any], str], Callable[..., Any]] = {}
_users = 0
_users_lock = _sync.Lock()


def _count(change: int) -> None:
    global _users
    with _users_lock:
        _users += change
        if _users == 1 and change > 0:
            for owner, method, count in _COUNTED:
                _real[owner, method] = getattr(owner, method)
                setattr(owner, method, _counting(getattr(owner, method), count))
        elif _users == 0:
            for (owner, method), real in _real.items():
                setattr(owner, method, real)
            _real.clear()


def _counting(method: Callable[..., Any], count: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(*args: Any, **options: Any) -> Any:
        setattr(_tally, count, getattr(_tally, count) + 1)
        return method(*args, **options)

    return counted
