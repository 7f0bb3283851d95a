"""`Ingress`: the receive rotation of a host's data sockets - I0 to I4 and M (design 4.3; seed 004 section 4).

Guarantees
    No application record is claimed without a permit; with none to be had the data sockets leave the wait set, and the first
    permit returned brings them back. The limits are those of the whole rotation, and the next one starts at the port after
    the one where this one stopped. A claim stopped by a limit is looked at again before anybody sleeps. Bad input of any
    kind is counted and survived. Management runs at most once per rotation, when something but data may have come or it is
    time, for as many ports as there is time for; the others come first in the next one, which follows at once.

Ownership
    `_ports`, `_role`   under `_changing`; the ports are replaced while nobody leads
    `_due`              set by anybody before the leader is woken, taken back by the one that leads before it looks
    the rest belongs to the thread that leads; `wake` and `look` are thread-safe
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from zlink_nogil import _sync
from zlink_nogil.binding import Record
from zlink_nogil.messaging.answer import Answer
from zlink_nogil.messaging.delivery import Delivery
from zlink_nogil.messaging.inbox import Inbox, Owner
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.tracing import Mark, Tracer
from zlink_nogil.messaging.wire import Header, Kind, Malformed, unpack
from zlink_nogil.scheduler import Role, StandBy, WorkerPool

__all__ = ["Ingress", "Port"]

MOST_RECORDS: Final = 64
MOST_BYTES: Final = 1024 * 1024
MOST_SECONDS: Final = 0.002

_log = logging.getLogger("zlink_nogil.messaging")


class Port(Protocol):
    """A data socket, and what comes through it. Called by the thread that leads; nothing here may raise, but `control`."""

    inbox: Inbox

    def data(self) -> int:
        """The descriptor that waits for permits, too."""
        ...

    def descriptors(self) -> Collection[int]:
        """Those that are always waited for."""
        ...

    def claim(self, most: int, most_bytes: int, until: float, now: Callable[[], float]) -> tuple[list[Record], bool]:
        """See `InSocket.claim`."""
        ...

    def answer(self, routing_id: bytes) -> Answer | None:
        """The way back to who is behind it; None for who has not said hello."""
        ...

    def control(self, routing_id: bytes, header: Header, record: bytes) -> None:
        """A record of the runtime's own; `ValueError` when it cannot be used."""
        ...

    def manage(self, now: float) -> float | None:
        """M: returns when to look again (monotonic), None for never."""
        ...


class Ingress:
    """A `Driver`, led by a worker with nothing to run or by the stand-by, as long as it has a port."""

    def __init__(self, permits: Permits, standby: StandBy, pool: WorkerPool, tracer: Tracer) -> None:
        self._permits = permits
        self._standby = standby
        self._roles = pool.ready.roles
        self._role: Role | None = None
        self._changing = _sync.Lock()
        self._ports: tuple[Port, ...] = ()
        self._data: frozenset[int] = frozenset()
        self._due = True
        self._look_at: float | None = None
        self._wakeup = _sync.EventFd()
        self._now = _sync.monotonic
        self._reading = True
        self._tracer = tracer
        self._marked: list[Mark] = []  # in this batch
        self._cursor = 0
        self._managing = 0

    def add(self, port: Port) -> None:
        """From now on its records are received."""
        self._change(lambda ports: (*ports, port))

    def remove(self, port: Port) -> None:
        """Nobody touches it any more when this returns. Harmless for one that is not there."""
        self._change(lambda ports: tuple(known for known in ports if known is not port))

    def _change(self, change: Callable[[tuple[Port, ...]], tuple[Port, ...]]) -> None:
        with self._changing:
            if self._role is not None:
                self._roles.remove(self._role)
                self._standby.remove(self)
                self._role = None
            self._ports = change(self._ports)
            self._data = frozenset((self._wakeup.fileno(), *(port.data() for port in self._ports)))
            self._due = True
            if self._ports:
                self._role = self._standby.add(self)
                self._roles.add(self._role)
            else:
                self._permits.forget(self.look)

    def close(self) -> None:
        """After the last port was removed."""
        self._wakeup.close()

    # -- the driver -------------------------------------------------------------------------------------------------

    def descriptors(self) -> Collection[int]:
        fds = [self._wakeup.fileno()]
        for port in self._ports:
            fds += port.descriptors()
            if self._reading:
                fds.append(port.data())
        return fds

    def wake(self) -> None:
        """Receive and manage."""
        self._due = True
        self._wakeup.set()

    def look(self) -> None:
        """Receive."""
        self._wakeup.set()

    def rotate(self, ready: Collection[int] | None = None, /) -> float | None:
        if ready is None or self._wakeup.fileno() in ready:
            self._wakeup.clear()
        hot = self._receive()
        if self._due or ready is None or not self._data.issuperset(ready) or self._is_time():
            self._due = False
            self._look_at = self._manage()
        return self._now() if hot else self._look_at

    def _is_time(self) -> bool:
        return self._look_at is not None and self._look_at <= self._now()

    def _manage(self) -> float | None:
        """M, of one port at least; returns when to look again (monotonic)."""
        now = self._now()
        until, times, ports = now + MOST_SECONDS, list[float | None](), self._ports
        for index in range(len(ports)):
            at = (self._managing + index) % len(ports)
            times.append(ports[at].manage(now))
            if index + 1 < len(ports) and self._now() >= until:
                self._managing = at + 1
                return now
        return min((time for time in times if time is not None), default=None)

    def _receive(self) -> bool:
        """One budget of permits, spent port by port; True when there may be more."""
        recorder = self._tracer.recorder
        if recorder is not None:
            recorder.rotation()
        budget = self._permits.take(MOST_RECORDS, self.look)
        self._reading = budget > 0
        if not self._reading:
            return False
        if recorder is not None:
            recorder.budget()
        until, room, hot = self._now() + MOST_SECONDS, MOST_BYTES, False
        ports = self._ports
        for index in range(len(ports)):
            at = (self._cursor + index) % len(ports)
            records, more = ports[at].claim(budget, room, until, self._now)
            hot = hot or more
            if recorder is not None:
                recorder.claim()
            if records:
                budget -= len(records)
                room -= sum(len(record or b"") for _, record in records)
                self._take(ports[at], records)
            if budget <= 0 or room <= 0 or self._now() >= until:
                hot = hot or index + 1 < len(ports)
                self._cursor = at + 1
                break
        if budget > 0:
            self._permits.give_back(budget)
        return hot

    def _take(self, port: Port, records: list[Record]) -> None:
        batch: dict[Owner, list[Delivery]] = {}
        for routing_id, record in records:
            self._classify(port, routing_id, record, batch)
        port.inbox.commit(batch)
        while self._marked:
            self._marked.pop(0).note("I4")

    def _classify(self, port: Port, routing_id: bytes, record: bytes | None, batch: dict[Owner, list[Delivery]]) -> None:
        answer = port.answer(routing_id)
        try:
            if record is None:
                raise Malformed("a message with a wrong number of frames")
            header = unpack(record)
            if header.kind not in (Kind.SEND, Kind.REQUEST):
                self._due = True
                try:
                    port.control(routing_id, header, record)
                except ValueError as error:  # an unreadable introduction, or an endpoint nothing can connect to
                    raise Malformed(str(error)) from None
                self._permits.give_back()
                return
            if answer is None:
                raise Malformed("a record from a node that has not said hello")
        except Malformed as error:
            port.inbox.malformed(error, answer)
            return
        accepted = port.inbox.accept(record, header, answer)
        if accepted is not None:
            owner, delivery = accepted
            if header.traced and (recorder := self._tracer.recorder) is not None:
                delivery.mark = mark = recorder.received(header)
                self._marked.append(mark)
            batch.setdefault(owner, []).append(delivery)
