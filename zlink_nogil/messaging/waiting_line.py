"""`WaitingLine`: a client's calls while no server is ready (design 4.4).

Guarantees
    Calls go out in the order in which they came, also those that come while others still wait. A call waits at most
    `MOST_WAIT` seconds, and never beyond its deadline. One thread sends at a time; whoever comes meanwhile leaves it to that
    one, which looks again before it goes.

Ownership
    everything under `_lock`, a leaf; `empty` may be read without it by whoever only fears to overtake somebody
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.errors import Unavailable, ZLinkError
from zlink_nogil.messaging.outbox import Routed
from zlink_nogil.messaging.peers import Peer

__all__ = ["WaitingLine"]

MOST_WAIT: Final = 5.0


class WaitingLine:
    """`choose()` finds a server, None when none is ready; `dispatch` sends to it; `wake` makes `expire` be called again."""

    def __init__(
        self, choose: Callable[[], Peer | None], dispatch: Callable[[Routed, Peer], None], wake: Callable[[], None]
    ) -> None:
        self._choose = choose
        self._dispatch = dispatch
        self._wake = wake
        self._lock = _sync.Lock()
        self._line: deque[tuple[Routed, float]] = deque()
        self._sending = False
        self._again = False
        self.empty = True

    def enter(self, operation: Routed) -> None:
        """Wait at the end of the line; `flush` has to follow."""
        until = _sync.monotonic() + MOST_WAIT
        with self._lock:
            self._line.append((operation, until))
            self.empty = False
        self._wake()

    def flush(self) -> None:
        """Send what waits, as far as there are servers."""
        with self._lock:
            self._again = True
            if self._sending:
                return
            self._sending = True
        while self._next():
            while (operation := self._head()) is not None:
                peer = self._choose()
                if peer is None:
                    break
                try:
                    self._dispatch(operation, peer)
                except Unavailable:  # it has just gone; not accepted
                    break
                except ZLinkError:  # the client is closing, which ends what is pending
                    pass
                self._leave(operation)

    def _next(self) -> bool:
        """Is there another round? If not, the next `flush` begins one."""
        with self._lock:
            again, self._again = self._again, False
            self._sending = again
            return again

    def _head(self) -> Routed | None:
        with self._lock:
            while self._line and self._line[0][0].done():
                self._line.popleft()
            self.empty = not self._line
            return self._line[0][0] if self._line else None

    def _leave(self, operation: Routed) -> None:
        with self._lock:
            if self._line and self._line[0][0] is operation:
                self._line.popleft()
            self.empty = not self._line

    def expire(self, now: float) -> tuple[list[Routed], float | None]:
        """Take out who has waited long enough; returns them, and when to look again (monotonic).

        Nobody while somebody sends: the first in the line may be on its way.
        """
        with self._lock:
            if self._sending:
                return [], now
            over = [operation for operation, until in self._line if until <= now]
            while self._line and self._line[0][1] <= now:
                self._line.popleft()
            self.empty = not self._line
            return over, (self._line[0][1] if self._line else None)
