"""The ZeroMQ calls the runtime uses, and nothing else of ZeroMQ. Tests put an in-memory stand-in in place of `RawSocket`.

Costs decide the form: the backend class's `send` / `recv` with plain-int flags and a known number of frames are several
times faster on 3.13t than pyzmq's public methods (design 6.2).

Assumes
    One thread at a time uses a socket, with a lock (or the role's hand-over) between two of them: ZeroMQ asks for the
    memory barrier. Nobody polls the descriptor of a socket that is being closed.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Callable, Collection
from typing import Any, Final, cast

import zmq
from zmq.backend import Socket as _Backend

from zlink_nogil.binding.authenticator import ZAP_DOMAIN, Authenticator
from zlink_nogil.binding.keys import Keys

__all__ = ["Connected", "Context", "DealerSet", "Disconnected", "RawSocket"]

HIGH_WATER_MARK: Final = 1000
"""Messages a peer's pipe holds in either direction (decision 4)."""
MOST_USERS: Final = 65_536
"""Connections whose keys are remembered."""
RECONNECT_FIRST_MS: Final = 100
RECONNECT_MOST_MS: Final = 2000

_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_RCVMORE = int(zmq.RCVMORE)
_POLLIN = int(zmq.POLLIN)
_Again = zmq.Again
_send = _Backend.send
_receive = _Backend.recv
_get = _Backend.get

_EVENT = struct.Struct("=Hi")
_monitor_ids = itertools.count()


class Context:
    """One ZeroMQ context. `end` after every socket of it is closed."""

    def __init__(self, keys: Keys | None = None) -> None:
        self._context = zmq.Context()
        self._keys = keys

    def router(self, max_record_bytes: int) -> RawSocket:
        return RawSocket(self._context, zmq.ROUTER, max_record_bytes, self._keys)

    def dealers(self, max_record_bytes: int) -> DealerSet:
        return DealerSet(lambda: RawSocket(self._context, zmq.DEALER, max_record_bytes, self._keys))

    def authenticator(self) -> Authenticator | None:
        """To be made before a socket is bound, and led as long as one is; None without keys."""
        return None if self._keys is None else Authenticator(self._context, self._keys)

    def end(self) -> None:
        """Wait for lingering messages, at most the sockets' LINGER, and end the context."""
        self._context.term()


class Connected:
    """A monitor event: the connection to `endpoint` is up; `fd` names it until it is `Disconnected`."""

    __slots__ = ("endpoint", "fd")

    def __init__(self, endpoint: str, fd: int) -> None:
        self.endpoint = endpoint
        self.fd = fd


class Disconnected:
    """A monitor event: the connection that `fd` named is gone."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd


class RawSocket:
    """A ROUTER, or a DEALER's bare socket. Not thread-safe.

    ROUTER_MANDATORY always, HANDOVER off, high-water marks set before bind and connect.
    """

    def __init__(self, context: zmq.Context[Any], kind: int, max_record_bytes: int, keys: Keys | None) -> None:
        socket = context.socket(kind)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, max_record_bytes)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_FIRST_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
        if keys is not None:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        self._keys = keys
        self._users: dict[bytes, str] = {}
        self._endpoint: str | None = None
        self._socket = socket
        self._monitor: zmq.Socket[bytes] | None = None
        self.fd = cast(int, socket.getsockopt(zmq.FD))

    # -- connections ------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> str:
        """Bind and return the endpoint with its real port. `OSError` subclass `zmq.ZMQError` is turned into `OSError`."""
        if self._keys is not None:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody is let in when there is no authenticator
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot bind {endpoint}: {error.strerror}") from None
        self._endpoint = cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        return self._endpoint

    def stop_listening(self) -> None:
        """Let nobody in any more; who came in there is cut off, too: so does ZeroMQ."""
        if self._endpoint is not None:
            self._socket.unbind(self._endpoint)
            self._endpoint = None

    def user_of(self, routing_id: bytes) -> str | None:
        """The public key of who is behind a connection that something was received from; None without keys."""
        return self._users.get(routing_id)

    def connect(self, endpoint: str, alias: bytes | None, routing_id: bytes, key: str | None) -> None:
        """Connect; send to it as `alias`; the other side sees `routing_id`, and must have the secret of `key`.

        `ValueError` for an unusable endpoint.
        """
        if self._keys is not None:
            if key is None:
                raise ValueError(f"the key of whoever is at {endpoint!r} is not known")
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        self._socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if alias is not None:
            self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, alias)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ValueError(f"cannot connect to {endpoint!r}: {error.strerror}") from None

    def disconnect(self, endpoint: str) -> None:
        """Drop the connection and what waits in it."""
        try:
            self._socket.disconnect(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise

    # -- messages of two frames: routing id, record -----------------------------------------------------------------

    def try_send(self, alias: bytes, record: bytes) -> bool:
        """True when the socket took the record, False when the peer has no room, `LookupError` when there is none."""
        socket = self._socket
        try:
            _send(socket, alias, _NOBLOCK_MORE)
        except _Again:  # on the routing-id frame: nothing was begun
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise LookupError(alias) from None
        _send(socket, record, _NOBLOCK)
        return True

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """(routing id, record), None when nothing is there. A message of more than two frames comes as record None."""
        socket = self._socket
        try:
            routing_id = _receive(socket, _NOBLOCK)
        except _Again:
            return None
        if self._keys is not None and routing_id not in self._users:
            record: bytes | None = self._first_record(routing_id)
        else:
            record = _receive(socket, _NOBLOCK)
        while _get(socket, _RCVMORE):  # a ROUTER puts the routing id before at least one frame
            _receive(socket, _NOBLOCK)
            record = None
        return routing_id, record

    def _first_record(self, routing_id: bytes) -> bytes:
        """Of a connection: only a frame knows its sender's key, and making one costs too much for every record."""
        frame: Any = _receive(self._socket, _NOBLOCK, copy=False)
        while len(self._users) >= MOST_USERS:
            del self._users[next(iter(self._users))]
        self._users[routing_id] = frame["User-Id"]
        record: bytes = frame.bytes
        return record

    def try_send_bare(self, record: bytes) -> bool:
        """Of a DEALER: True when the socket took the record, False when the peer has no room."""
        try:
            _send(self._socket, record, _NOBLOCK)
        except _Again:
            return False
        return True

    def receive_bare(self) -> tuple[bytes | None] | None:
        """Of a DEALER: (record,), None when nothing is there. A message of more frames comes as record None."""
        socket = self._socket
        try:
            record: bytes | None = _receive(socket, _NOBLOCK)
        except _Again:
            return None
        while _get(socket, _RCVMORE):
            _receive(socket, _NOBLOCK)
            record = None
        return (record,)

    def readable(self) -> bool:
        """Is a message there? Reading this also processes what the descriptor announced: it re-arms the edge."""
        return bool(cast(int, _get(self._socket, _EVENTS)) & _POLLIN)

    # -- monitoring -------------------------------------------------------------------------------------------------

    def descriptors(self) -> Collection[int]:
        """Readable when there is something to receive, to send again, or in `connection_events`; watched from now on."""
        if self._monitor is None:
            self._start_monitor()
        return self.fd, self._monitor_fd

    def _start_monitor(self) -> None:
        address = f"inproc://zlink-monitor-{next(_monitor_ids)}"
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED, address)
        self._monitor_fd = cast(int, self._monitor.getsockopt(zmq.FD))

    def connection_events(self) -> list[Connected | Disconnected]:
        """The events since the last call, in order."""
        events: list[Connected | Disconnected] = []
        while self._monitor is not None:
            try:
                head, endpoint = self._monitor.recv_multipart(_NOBLOCK)
            except _Again:
                break
            event, value = _EVENT.unpack(head)
            if event == zmq.EVENT_CONNECTED:
                events.append(Connected(endpoint.decode(), value))
            elif event == zmq.EVENT_DISCONNECTED:
                events.append(Disconnected(value))
        return events

    def close(self, linger: float) -> None:
        """Close; what was accepted may still go out for `linger` seconds while the context ends."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        self._socket.close(linger=max(0, round(linger * 1000)))


class DealerSet:
    """A DEALER per connection, used as one socket: records go to an alias and come from one. Not thread-safe.

    The DEALER goes with its connection, and what it had accepted with it: nothing reaches a peer's next life.
    """

    def __init__(self, make: Callable[[], RawSocket]) -> None:
        self._make = make
        self._dealers: dict[bytes, tuple[str, RawSocket]] = {}
        self._dropped: list[RawSocket] = []  # closed with the next look: who waits has let go of their descriptors then
        self._turn = 0

    def descriptors(self) -> Collection[int]:
        return [fd for _, dealer in list(self._dealers.values()) for fd in dealer.descriptors()]

    def data(self) -> Collection[int]:
        """Readable when there is something to receive, or to send again."""
        return [dealer.fd for _, dealer in list(self._dealers.values())]

    def connect(self, endpoint: str, alias: bytes, routing_id: bytes, key: str | None) -> None:
        """See `RawSocket.connect`."""
        dealer = self._make()
        try:
            dealer.descriptors()
            dealer.connect(endpoint, None, routing_id, key)
        except ValueError:
            dealer.close(0)
            raise
        self._dealers[alias] = endpoint, dealer

    def disconnect(self, endpoint: str) -> None:
        """Drop the connection and what waits in it."""
        for alias, (known, dealer) in list(self._dealers.items()):
            if known == endpoint:
                del self._dealers[alias]
                dealer.disconnect(endpoint)
                self._dropped.append(dealer)

    def try_send(self, alias: bytes, record: bytes) -> bool:
        """See `RawSocket.try_send`."""
        return self._dealers[alias][1].try_send_bare(record)

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """(alias, record) of the next one that has a record, in turn; None when none has."""
        dealers = list(self._dealers.items())
        for index in range(len(dealers)):
            alias, (_, dealer) = dealers[(self._turn + index) % len(dealers)]
            received = dealer.receive_bare()
            if received is not None:
                self._turn += index + 1
                return alias, received[0]
        return None

    def readable(self) -> bool:
        found = False
        for _, dealer in self._dealers.values():  # all of them: it re-arms each
            found |= dealer.readable()
        return found

    def connection_events(self) -> list[Connected | Disconnected]:
        self._close_dropped()
        return [event for _, dealer in self._dealers.values() for event in dealer.connection_events()]

    def _close_dropped(self) -> None:
        dropped, self._dropped = self._dropped, []
        for dealer in dropped:
            dealer.close(0)

    def close(self, linger: float) -> None:
        self._close_dropped()
        for _, dealer in self._dealers.values():
            dealer.close(linger)
        self._dealers = {}
