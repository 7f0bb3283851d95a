"""`Operations`: the owner of what is pending and of the data-out socket (design 4.2 E3-E5; decision 8).

Guarantees
    Registering and starting to send are one turn of the operation lane. Taking an entry out of `_pending`, one atomic
    `dict.pop`, decides who ends it: reply, error, deadline, cancel, loss of the peer, shutdown. A late answer finds no
    entry and is counted. After `close` nothing is pending and nothing can be registered.

Ownership
    on the lane          `_closed`, `_deadlines`, `_watched`, the data-out socket; adding to `_pending`
    any thread           taking out of `_pending` (and of a bucket of `_deadlines`): single dict operations
    under `_late_lock`   `_late`
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.binding import Lost, OutSocket
from zlink_nogil.errors import DeadlineExceeded, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.messaging.deadlines import Deadlines
from zlink_nogil.messaging.operation import Operation, Slots
from zlink_nogil.messaging.wire import NotHere
from zlink_nogil.scheduler import OnWait, Role, WorkerPool
from zlink_nogil.state import StateLane, debug_assert_on_lane

__all__ = ["Operations"]

_NEVER: Final = math.inf


class Operations:
    """`wake` makes the thread that expires deadlines look again."""

    def __init__(self, lane: StateLane, out: OutSocket, slots: Slots, pool: WorkerPool, wake: Callable[[], None]) -> None:
        self.lane = lane
        self.out = out
        self._slots = slots
        self._pool = pool
        self.wake = wake
        self._now = _sync.monotonic
        self._ids = itertools.count(1)
        self._pending: dict[int, Operation] = {}
        self._deadlines = Deadlines()
        self._watched = _NEVER
        self._closed = False
        self._late = 0
        self._late_lock = _sync.Lock()
        self.role: Role | None = None
        """Brings the answers; set at the start, before anybody can ask."""
        self.refused: Callable[[Operation | None, NotHere], bool] = _nobody_looks_again
        """Called with what is pending, if it is, when a node says that it has no such owner; True: it goes on.

        Set before the start."""

    # -- E3, E4 -----------------------------------------------------------------------------------------------------

    def new[O: Operation](
        self,
        make: type[O],
        timeout: float,
        peer: object,
        decode: Callable[[bytes], Any] | None,
        on_wait: OnWait | None = None,
        reply_route: int | None = None,
    ) -> O:
        """An operation that is not registered yet; with a fresh reply route, if it has none (`fresh_route`)."""
        deadline = self._now() + timeout
        return make(
            reply_route or next(self._ids), deadline, peer, decode, self._slots, self._pool, self._cancel, on_wait, self.role
        )

    def fresh_route(self) -> int:
        """Not zero, and nobody else's."""
        return next(self._ids)

    def submit(self, operation: Operation, start: Callable[[Operation], bool]) -> bool:
        """Register `operation` and `start` it, in one turn; True.

        `start(operation)`, on the lane, begins to send and tells whether that was all there was to do (an admitted send).
        Raises, having registered nothing: `ShuttingDown`, `CapacityExceeded`, or what `start` raises.
        """
        self.lane.run(self._submit, operation, start)
        return True

    def _submit(self, operation: Operation, start: Callable[[Operation], bool]) -> None:
        debug_assert_on_lane(self.lane)
        if self._closed:
            raise ShuttingDown("the host is shutting down")
        self._slots.take()
        self._deadlines.add(operation)
        self._pending[operation.reply_route] = operation  # last: from here on anybody may take it out of everything
        if operation.mark is not None:
            operation.mark.note("E3")
        try:
            over = start(operation)
        except BaseException:
            if self._take(operation.reply_route) is None:
                return  # the loss of the peer was faster and has ended it: that outcome stands
            self._slots.give_back()
            raise
        if over:
            self._take_and(operation.reply_route, operation.succeed, None)
        elif operation.deadline < self._watched:
            self._watched = operation.deadline
            self.wake()

    def resubmit(self, operation: Operation, peer: object, start: Callable[[Operation], bool]) -> bool:
        """`start` an operation that is registered, now that its peer is known; False, and nothing done, when it has ended.

        Raises what `start` raises; the operation is still pending then.
        """
        return self.lane.run(self._resubmit, operation, peer, start)

    def _resubmit(self, operation: Operation, peer: object, start: Callable[[Operation], bool]) -> bool:
        debug_assert_on_lane(self.lane)
        if operation.reply_route not in self._pending:
            return False
        operation.peer = peer
        try:
            over = start(operation)
        except BaseException:
            operation.peer = None  # not accepted there: its loss is not this one's
            raise
        if over:
            self._take_and(operation.reply_route, operation.succeed, None)
        return True

    def send(self, alias: bytes, record: bytes, is_request: bool, operation: Operation) -> bool:
        """A `start` for `submit`: send on the data connection `alias`."""
        done = functools.partial(self._admitted, operation, is_request)
        operation.waiting = self.out.send(alias, record, done)
        if operation.mark is not None:
            operation.mark.note("E4")
        return operation.waiting is None and not is_request

    def _admitted(self, operation: Operation, is_request: bool, error: ZLinkError | None) -> None:
        """A send that had waited for room, on the lane."""
        debug_assert_on_lane(self.lane)
        operation.waiting = None
        if error is not None:
            self._take_and(operation.reply_route, operation.fail, error)
        elif not is_request:
            self._take_and(operation.reply_route, operation.succeed, None)

    # -- E5: who takes the entry ends the operation -----------------------------------------------------------------

    def may_answer(self, peer: object, reply_route: int) -> bool:
        """Was the operation sent to `peer`, the last time? Anybody may answer what has ended: that is late."""
        operation = _sync.look_up(self._pending, reply_route)
        return operation is None or operation.peer == peer

    def reply(self, reply_route: int, record: bytes) -> None:
        operation = self._take(reply_route)
        if operation is None:
            self.count_late()
            return
        operation.succeed(record)

    def error(self, reply_route: int, error: ZLinkError) -> None:
        if isinstance(error, NotHere) and self.refused(_sync.look_up(self._pending, reply_route), error):
            return
        operation = self._take(reply_route)
        if operation is None:
            self.count_late()
            return
        operation.fail(error)

    def count_late(self) -> None:
        """An answer nobody waits for any more."""
        with self._late_lock:
            self._late += 1

    def _cancel(self, operation: Operation) -> bool:
        taken = self._take(operation.reply_route)
        return taken is not None and taken.abandon()

    def peer_lost(self, peer: object) -> None:
        """The peer's pending operations end as `Unavailable`."""
        for operation in list(self._pending.values()):
            if operation.peer == peer:
                accepted = operation.waiting is None
                lost = Unavailable("the peer is gone", accepted=accepted)
                self._take_and(operation.reply_route, operation.fail, lost)

    def expire(self) -> float | None:
        """End what is due; returns the next deadline (monotonic), None when there is none."""
        due, upcoming = self.lane.run(self._due)
        for operation in due:
            late = DeadlineExceeded("no answer before the deadline")
            self._take_and(operation.reply_route, operation.fail, late)
        return upcoming

    def _due(self) -> tuple[list[Operation], float | None]:
        debug_assert_on_lane(self.lane)
        due = self._deadlines.due(self._now())
        upcoming = self._deadlines.next()
        self._watched = _NEVER if upcoming is None else upcoming
        return due, upcoming

    def service(self) -> list[Lost]:
        """What the leader does for the data-out socket; returns the connections that went down."""
        return self.lane.run(self.out.service)

    def close(self) -> None:
        """Refuse new operations and end the pending ones as `ShuttingDown`."""
        self.lane.run(self._close)
        for operation in list(self._pending.values()):
            self._take_and(operation.reply_route, operation.fail, ShuttingDown("the host is shutting down"))

    def _close(self) -> None:
        debug_assert_on_lane(self.lane)
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def counts(self) -> dict[str, int]:
        return {"pending": len(self._pending), "late": self._late, "deadlines": self.lane.run(self._deadlines.__len__)}

    def _take(self, reply_route: int) -> Operation | None:
        """Take the entry out and let go of everything it held; None when somebody else has it."""
        operation = self._pending.pop(reply_route, None)
        if operation is not None:
            if operation.mark is not None:
                operation.mark.note("E5")
            operation.bucket.pop(reply_route, None)
            waiting = operation.waiting
            if waiting is not None:
                waiting.abandon()
        return operation

    def _take_and[V](self, reply_route: int, end: Callable[[V], bool], outcome: V) -> None:
        if self._take(reply_route) is not None:
            end(outcome)


def _nobody_looks_again(operation: Operation | None, error: NotHere) -> bool:  # noqa: ARG001 - in place of one who does
    return False
