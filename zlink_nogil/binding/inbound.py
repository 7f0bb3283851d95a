"""`InSocket`: a bound ROUTER that is only read (decisions 3, 18).

Assumes
    Used by the thread that leads its role, and by the closing thread once the role was taken back; but for
    `stop_listening`, which only sets a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zlink_nogil.binding.raw import Context

__all__ = ["InSocket", "Record", "claim_from"]

type Record = tuple[bytes, bytes | None]
"""(routing id, record); the record is None when the message had not exactly two frames."""


class InSocket:
    def __init__(self, context: Context, endpoint: str, max_record_bytes: int) -> None:
        """Bind `endpoint`; `OSError` when that is not possible."""
        self._raw = context.router(max_record_bytes)
        try:
            self.endpoint = self._raw.bind(endpoint)
        except OSError:
            self._raw.close(0)
            raise
        self.fd = self._raw.fd
        self._closed_to_new = False

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        """Take records until `most`, `most_bytes`, the time `until`, or none is left; the first is always taken.

        Returns them and whether a limit stopped the claim: then look again before waiting for the descriptor.
        """
        return claim_from(self._raw, most, most_bytes, until, now)

    def service(self) -> None:
        """What a leader does in every rotation, whether it may claim or not: let nobody in any more, once that was said."""
        if self._closed_to_new:
            self._raw.stop_listening()

    def user_of(self, routing_id: bytes) -> str | None:
        """See `RawSocket.user_of`."""
        return self._raw.user_of(routing_id)

    def stop_listening(self) -> None:
        """Let nobody in any more, from the leader's next rotation on: it has to be woken. Any thread."""
        self._closed_to_new = True

    def close(self) -> None:
        self._raw.close(0)


class _Readable(Protocol):
    def receive(self) -> Record | None: ...
    def readable(self) -> bool: ...


def claim_from(
    raw: _Readable, most: int, most_bytes: int, until: float, now: Callable[[], float]
) -> tuple[list[Record], bool]:
    """See `InSocket.claim`."""
    records: list[Record] = []
    size = 0
    while len(records) < most:
        received = raw.receive()
        if received is None:
            return records, raw.readable()  # re-arms the descriptor; true if one came just now
        records.append(received)
        size += len(received[1] or b"")
        if size >= most_bytes or now() >= until:
            break
        if len(records) == 1 and not raw.readable():  # it came alone: cheaper to ask than to receive nothing
            return records, False
    return records, True
