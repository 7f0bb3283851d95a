"""`Answer`: the way back to whoever sent a request (W4)."""

from __future__ import annotations

from typing import Protocol

from zlink_nogil.errors import ZLinkError
from zlink_nogil.messaging.wire import Kind, pack, pack_error

__all__ = ["Answer", "send_error", "send_reply"]


class Answer(Protocol):
    """Leads to one node: this one, or another over its completion connection. Thread-safe."""

    @property
    def source(self) -> str:
        """The asking node's id."""
        ...

    @property
    def generation(self) -> int:
        """The asking node's life."""
        ...

    @property
    def max_record_bytes(self) -> int:
        """What the asking node takes at most."""
        ...

    def send(self, record: bytes) -> None:
        """Start sending; never blocks, never raises."""
        ...


def send_reply(answer: Answer, operation: tuple[int, int], reply_route: int, route: bytes, payload: bytes) -> None:
    _send(answer, Kind.REPLY, operation, reply_route, route, payload)


def send_error(answer: Answer, operation: tuple[int, int], reply_route: int, error: ZLinkError) -> None:
    _send(answer, Kind.ERROR, operation, reply_route, b"", pack_error(error))


def _send(answer: Answer, kind: Kind, operation: tuple[int, int], reply_route: int, route: bytes, payload: bytes) -> None:
    generation = answer.generation
    answer.send(pack(kind, route, b"", payload, generation=generation, operation=operation, reply_route=reply_route))
