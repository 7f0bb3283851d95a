"""`Senders`: who is behind the connections others have made to us, by routing id: as they introduced themselves there.

Guarantees
    Of one node only the latest connections are known, so that reconnecting piles nothing up.

Ownership
    changed on the topology's lane; single look-ups by the threads that lead
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from zlink_nogil.messaging.peers import Link, Source

__all__ = ["UNKNOWN", "Senders"]

UNKNOWN: Final = b""
"""No alias of a connection."""
KEPT: Final = 4
"""Connections of one node from which records may still be read."""


class Senders:
    def __init__(self) -> None:
        self.asking: dict[bytes, Source] = {}
        """Of the data-in socket: who said hello there."""
        self.answering: dict[bytes, bytes] = {}
        """Of the completion-in socket: the alias of the data connection that is answered there."""

    def asks(self, routing_id: bytes, source: Source) -> None:
        """A node says hello here."""
        self.asking[routing_id] = source
        former = [rid for rid, other in self.asking.items() if other.link is source.link]
        for rid in former[:-KEPT]:
            del self.asking[rid]

    def asks_no_more(self, link: Link) -> None:
        """The node that this link led to is given up."""
        self.asking = {rid: source for rid, source in self.asking.items() if source.link is not link}

    def answers(self, routing_id: bytes, alias: bytes) -> None:
        """The node at our data connection `alias` answers here."""
        self.answering.pop(routing_id, None)
        self.answering[routing_id] = alias
        former = [rid for rid, other in self.answering.items() if other == alias]
        for rid in former[:-KEPT]:
            del self.answering[rid]

    def answers_only(self, aliases: Collection[bytes]) -> None:
        """There are no other data connections of ours that anything could be answered of."""
        for rid, alias in list(self.answering.items()):
            if alias not in aliases:
                del self.answering[rid]
