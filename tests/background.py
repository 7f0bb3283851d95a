"""A call on a thread of its own, and work that can be held: for tests that force one order of events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from support import PATIENCE

from zlink_nogil.execution import ExecutionLanePolicy, SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool

type Enqueue = Callable[[Callable[[], Any]], Completion[Any]]


class Background:
    """`work(*args)` on a thread that was just started."""

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self.thread = threading.Thread(target=self._run, args=(work, *args), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[..., Any], *args: Any) -> None:
        try:
            self._outcome = work(*args), None
        except BaseException as error:
            self._outcome = None, error

    def result(self) -> Any:
        """Wait for the end; return what the work returned, or raise what it raised."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "a thread hangs"
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def running(self) -> bool:
        return self.thread.is_alive()


class Gate:
    """Work that says when it has begun, and ends when it is opened: with `value`, or by raising it."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> Any:
        self.thread = threading.current_thread()
        self._begun.set()
        assert self._opened.wait(PATIENCE), "nobody opened the gate"
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def wait_begun(self) -> None:
        assert self._begun.wait(PATIENCE), "the work has not begun"

    def begun(self) -> bool:
        return self._begun.is_set()

    def open(self) -> None:
        self._opened.set()


class Busy:
    """A queue whose first work is held until `let_go`; what is put behind it notes its name when it runs."""

    def __init__(self, pool: WorkerPool, **policy: Any) -> None:
        self.queue = SerialExecutionQueue(ExecutionLanePolicy(**policy), pool=pool, name="busy")
        self.ran: list[str] = []
        self.gate = Gate("held")
        self.held = self.queue.enqueue(self.gate)
        self.gate.wait_begun()

    def note(self, name: str, enqueue: Enqueue | None = None, then: Callable[[], Any] = lambda: None) -> Completion[Any]:
        return (enqueue or self.queue.enqueue)(lambda: (self.ran.append(name), then(), name)[2])

    def application(self, *names: str) -> list[Completion[Any]]:
        return [self.note(name) for name in names]

    def lifecycle(self, *names: str) -> list[Completion[Any]]:
        return [self.note(name, self.queue.enqueue_lifecycle) for name in names]

    def barrier(self, *names: str) -> list[Completion[Any]]:
        return [self.note(name, self.queue.enqueue_barrier_next) for name in names]

    def let_go(self) -> list[str]:
        """Let everything run; returns the names in the order they ran."""
        self.gate.open()
        self.queue.await_quiescence().result(PATIENCE)
        assert self.queue.reserved() == (0, 0)
        return self.ran
