"""`Operation`: one send or request that was started, and the slots that bound how many there are (design 4.2 E3, E5).

Ownership
    `Slots._taken`   under its lock
    `Operation`      the `Completion` fields as there; `mark` by whoever starts it; `bucket` and `waiting` are set on the
                     operation lane before the record can be answered; `_decode` under `_decoding`
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded, ProtocolError, ZLinkError
from zlink_nogil.scheduler import Completion, OnWait, Role, WorkerPool

if TYPE_CHECKING:
    from zlink_nogil.binding import Waiting
    from zlink_nogil.messaging.tracing import Mark

__all__ = ["DEFAULT_MAX_PENDING", "Operation", "Slots", "process_slots"]

DEFAULT_MAX_PENDING: Final = 4096


class Slots:
    """At most `most` operations in flight plus callbacks waiting or running. Thread-safe; a leaf lock."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_pending_operations must be at least 1, not {most}")
        self.most = most
        self._lock = _sync.Lock()
        self._taken = 0

    def take(self) -> None:
        with self._lock:
            if self._taken >= self.most:
                raise CapacityExceeded(f"{self._taken} operations are pending already (max_pending_operations)")
            self._taken += 1

    def give_back(self) -> None:
        with self._lock:
            assert self._taken > 0, "a slot was returned twice"
            self._taken -= 1

    def taken(self) -> int:
        with self._lock:
            return self._taken


process_slots: Final = Slots(DEFAULT_MAX_PENDING)
"""Shared by every host of the process that does not ask for its own."""


class Operation(Completion[Any]):
    """A pending send or request. Holds its slot until the outcome is there and the callbacks have returned.

    `decode` turns the reply's record into the value, once, on the thread of whoever asks first; `None` for a send.
    """

    __slots__ = ("_decode", "_decoding", "_role", "_slots", "bucket", "deadline", "mark", "peer", "reply_route", "waiting")

    def __init__(
        self,
        reply_route: int,
        deadline: float,
        peer: object,
        decode: Callable[[bytes], Any] | None,
        slots: Slots,
        pool: WorkerPool,
        canceller: Callable[[Operation], bool],
        on_wait: OnWait | None,
        role: Role | None,
    ) -> None:
        super().__init__(pool, lambda: canceller(self), on_wait)
        self.reply_route = reply_route
        self.deadline = deadline
        self.peer = peer
        self.bucket: dict[int, Operation] = {}
        self.waiting: Waiting | None = None
        self.mark: Mark | None = None
        self._role = role
        self._slots = slots
        self._decode = decode
        self._decoding = _sync.Lock()

    @property
    def is_send(self) -> bool:
        """While it is pending."""
        return self._decode is None

    def _park(self, parker: _sync.Parker, timeout: float | None) -> None:
        """Who waits for another node leads the completion role, if nobody else does (decision 7)."""
        if self._role is None or self.peer is None:
            super()._park(parker, timeout)
        else:
            self._role.wait_for(self, parker, timeout)

    def settled(self) -> None:
        self._slots.give_back()

    def _resolve(self) -> tuple[Any, BaseException | None]:
        value, error = super()._resolve()
        if error is not None or value is None:
            return None, error
        with self._decoding:  # private to this operation: the only user code under it is a message type's constructor
            if self._decode is not None:
                if self.mark is not None:
                    self.mark.copied += 1
                    self.mark.note("R")
                decode, self._decode = self._decode, None
                try:
                    self._value = decode(value)
                except ZLinkError as failure:
                    self._value = failure
                except Exception as failure:  # a reply that is not what the caller asked for
                    self._value = ProtocolError(f"the reply cannot be decoded: {failure}")
            value = self._value
        return (None, copy.copy(value)) if isinstance(value, ZLinkError) else (value, None)
