"""`from_asyncio`: asyncio coroutines for tasks and handlers, on one loop in a thread of its own (seed 001; design 2.4).

Guarantees
    The coroutine runs on the process's one asyncio loop; its outcome is the `Completion`'s, exceptions as they are. A
    cancel is an asyncio cancel: the completion ends when the asyncio task does, as that decides. Who gives up awaiting it
    cancels it, and waits for its end. The loop survives what its tasks raise. At interpreter exit the tasks are cancelled
    and the loop is closed; one that does not end in time is left to the daemon thread. A forked child has a loop of its own.

Assumes
    The coroutine does not block the loop, and does not close it.

Ownership
    `_loop`, `_thread`, `_closed`           under `_lock`; `_thread` and `_loop` are set once
    `_stopping`, `AsyncioWork._task`        the loop's thread
"""

from __future__ import annotations

import atexit
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import InvalidOperation, ShuttingDown
from zlink_nogil.scheduler.completion import Completion
from zlink_nogil.scheduler.per_process import PerProcess
from zlink_nogil.scheduler.spawning import current_pool
from zlink_nogil.scheduler.suspension import Wait

if TYPE_CHECKING:
    import asyncio

__all__ = ["AsyncioThread", "default_bridge", "from_asyncio"]

LONGEST_END: Final = 5.0
"""Seconds that cancelled asyncio tasks have to end at interpreter exit."""

_log = logging.getLogger("zlink_nogil.scheduler")


class AsyncioWork[T](Completion[T]):
    """The outcome of one asyncio task."""

    __slots__ = ("_bridge", "_task")

    def __init__(self, bridge: AsyncioThread) -> None:
        super().__init__(current_pool(), canceller=self._ask_to_cancel, on_wait=bridge.check_elsewhere)
        self._bridge = bridge
        self._task: asyncio.Task[T] | None = None

    def __await__(self) -> Generator[Completion[Any], None, T]:
        if not self.done():
            self._bridge.check_elsewhere(self, Wait.KEEP)
            try:
                yield self
            except GeneratorExit:
                self._ask_to_cancel()
                raise
            except BaseException:
                if not self.done() and self._ask_to_cancel():
                    yield self  # a second interruption waits no more
                raise
        return self.outcome()

    def _ask_to_cancel(self) -> bool:
        return self._bridge.call(self._cancel)

    # -- on the loop's thread ---------------------------------------------------------------------------------------

    def begin(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        """asyncio calls this in a copy of the caller's context, which the task copies."""
        self._task = loop.create_task(coroutine)
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if task.cancelled():
            self.abandon()
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self.succeed(task.result())


class AsyncioThread:
    """An asyncio loop in a daemon thread, started by the first work. All members are thread-safe."""

    def __init__(self, name: str = "zlink-asyncio") -> None:
        self.name = name
        self._lock = _sync.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: _sync.Thread | None = None
        self._closed = False
        self._stopping = False
        self._fork = _sync.ForkGuard()

    def submit[T](self, coroutine: Coroutine[Any, Any, T]) -> Completion[T]:
        """Run `coroutine`. `ShuttingDown` when it is closed; raises what starting the thread raises. Then it is closed."""
        try:
            if self.inherited():
                raise InvalidOperation("the asyncio loop was started before a fork and cannot be used in the child")
            work = AsyncioWork[T](self)
            with self._lock:
                if self._closed:
                    raise ShuttingDown("the asyncio loop is closed")
                loop = self._loop or self._start()
                loop.call_soon_threadsafe(work.begin, coroutine, loop)
        except BaseException:
            coroutine.close()
            raise
        return work

    def call(self, callback: Callable[[], object]) -> bool:
        """Call it on the loop's thread, if there still is one; False after a fork."""
        if self.inherited():
            return False
        with self._lock:
            if self._loop is not None and not self._closed:  # who closes cancels everything
                self._loop.call_soon_threadsafe(callback)
        return True

    def check_elsewhere(self, completion: Completion[Any], how: Wait) -> None:  # noqa: ARG002 - what `Completion` tells
        """`InvalidOperation` on the loop's own thread: it would wait for itself."""
        if _sync.current_thread() is self._thread:
            raise InvalidOperation("the asyncio loop cannot wait for what runs on it: there, await the coroutine itself")

    def close(self, timeout: float | None = None) -> bool:
        """Cancel the tasks, wait for their end within `timeout` seconds, and end the thread. False: it is still busy."""
        with self._lock:
            if self._thread is None:
                self._closed = True
                return True
            if not self._closed:
                assert self._loop is not None
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def inherited(self) -> bool:
        return self._fork.inherited()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _start(self) -> asyncio.AbstractEventLoop:
        """Under the lock."""
        import asyncio

        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()
        thread = _sync.Thread(target=self._run, args=(runner,), name=self.name, daemon=True)
        try:
            thread.start()
        except BaseException:
            runner.close()
            raise
        self._loop, self._thread = loop, thread
        return loop

    def _run(self, runner: asyncio.Runner) -> None:
        while not self._stopping:
            try:
                runner.get_loop().run_forever()
            except BaseException as error:  # SystemExit and KeyboardInterrupt, which are their task's outcome by now
                _log.debug("an asyncio task raised %r", error)
        try:
            runner.close()
        except BaseException:  # at the end of a thread nobody hears it
            _log.exception("the asyncio loop did not close in good order")

    def _stop(self) -> None:
        assert self._loop is not None
        self._stopping = True
        self._loop.stop()


# -- the process's loop ---------------------------------------------------------------------------------------------


def default_bridge() -> AsyncioThread:
    """The process's asyncio thread (a new one in a forked child), closed at interpreter exit."""
    return _bridge.get()


def _make() -> AsyncioThread:
    bridge = AsyncioThread()
    atexit.register(_close_at_exit, bridge)
    return bridge


def _close_at_exit(bridge: AsyncioThread) -> None:
    if not bridge.inherited() and not bridge.close(LONGEST_END):
        _log.warning("at exit: asyncio tasks did not end within %s s of being cancelled", LONGEST_END)


_bridge = PerProcess(_make)


def from_asyncio[T](work: Coroutine[Any, Any, T] | Callable[[], Awaitable[T]]) -> Completion[T]:
    """Run an asyncio coroutine, or what a function called there returns, on the process's asyncio loop. Thread-safe.

    The `Completion` is awaited in tasks and handlers; `result(timeout)` elsewhere. The coroutine sees the caller's context
    variables. It raises there what it raises here; when it is cancelled, by `Completion.cancel`, by the cancel of who
    awaits it, or by itself, that is `Cancelled` here and `asyncio.CancelledError` there. Inside it, asyncio's rules hold:
    it awaits completions of this runtime by `asyncio.wrap_future(completion.as_future())`.

    Raises `TypeError` for anything else, `InvalidOperation` for a coroutine that runs already, `ShuttingDown` at
    interpreter exit.
    """
    if isinstance(work, Coroutine):
        if isinstance(work, types.CoroutineType) and (work.cr_running or work.cr_suspended):
            raise InvalidOperation(f"somebody runs this coroutine already: {work!r}")
        return default_bridge().submit(work)
    if not callable(work):
        raise TypeError(f"a coroutine, or a function that returns an awaitable, is needed, not {type(work).__name__!r}")
    return default_bridge().submit(_made_by(work))


async def _made_by[T](make: Callable[[], Awaitable[T]]) -> T:
    made = make()
    if not inspect.isawaitable(made):
        raise TypeError(f"{make!r} should have returned an awaitable, not {type(made).__name__!r}")
    return await made
