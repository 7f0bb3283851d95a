"""The rows `direct` and `floor`: the very socket calls the runtime uses, as tightly as Python allows.

`direct` has the runtime's frames and header, a pending table with deadlines, and for meshes a connection of its own for
answers; no owners, lanes, permits, codecs. `floor` sends the payload as it is: the limit. One thread on each side.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from bench.messaging.counting import Arrivals
from zlink_nogil.messaging.wire import _FIXED as FIXED  # as the runtime reads it
from zlink_nogil.messaging.wire import HEADER_BYTES, NOBODY, Kind, OwnerKind, pack, pack_extras, pack_route

__all__ = ["connect_direct", "connect_floor", "serve_direct", "serve_floor"]

_send = Backend.send
_receive = Backend.recv
_MORE = int(zmq.SNDMORE)
_SERVER, _CLIENT = b"server", b"client"
_TIMEOUT = 30.0
_ROUTE = pack_route("application/octet-stream", "echo", "bytes")
_OWNER = pack_extras(NOBODY._replace(kind=OwnerKind.SPOT, id="owner"), {})


def _socket(api: str, routing_id: bytes, *, bound: bool) -> Any:
    kind = zmq.DEALER if api == "client-server" and not bound else zmq.ROUTER
    socket: Any = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if bound:
        socket.bind("tcp://127.0.0.1:0")
    return socket


def _connect(socket: Any, api: str, endpoint: str, alias: bytes) -> None:
    if api != "client-server":
        socket.setsockopt(zmq.CONNECT_ROUTING_ID, alias)
    socket.connect(endpoint)
    time.sleep(0.3)  # until the handshake is over


class _Direct:
    def __init__(self, api: str, endpoint: str) -> None:
        self._bare = api == "client-server"
        self._extras = _OWNER if api == "spot" else b""
        self._out = _socket(api, _CLIENT, bound=False)
        _connect(self._out, api, endpoint, _SERVER)
        self._in = self._out
        if not self._bare:
            self._in = _socket(api, b"answers", bound=True)
            self._tell(self._in.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0"))
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def _tell(self, endpoint: bytes) -> None:
        _send(self._out, _SERVER, _MORE)
        _send(self._out, pack(Kind.HELLO, b"", b"", endpoint, generation=1))
        _receive(self._in, 0)  # the first frame of the welcome
        _receive(self._in, 0)

    def ask(self, message: bytes) -> None:
        number = next(self._ids)
        now = monotonic()
        self._pending[number] = (perf_counter(), now + _TIMEOUT)
        out = self._out
        if not self._bare:
            _send(out, _SERVER, _MORE)
        _send(out, b"".join((self._head(Kind.REQUEST, number), _ROUTE, self._extras, message)))

    def _head(self, kind: int, number: int) -> bytes:
        return FIXED.pack(1, kind, len(_ROUTE), len(self._extras), 1, 1, number, number, 30_000)

    def answer(self) -> float:
        socket = self._in
        if not self._bare:
            _receive(socket, 0)
        record = _receive(socket, 0)
        begun, _ = self._pending.pop(FIXED.unpack_from(record)[7])
        record[HEADER_BYTES:]
        return begun

    def send(self, message: bytes) -> None:
        record = b"".join((self._head(Kind.SEND, 1), _ROUTE, self._extras, message))
        with self._lock:
            if not self._bare:
                _send(self._out, _SERVER, _MORE)
            _send(self._out, record)

    def close(self) -> None:
        self._out.close(5000)
        self._in.close(0)
        zmq.Context.instance().term()  # when everything is written


class _Floor:
    def __init__(self, api: str, endpoint: str) -> None:
        self._bare = api == "client-server"
        self._socket = _socket(api, _CLIENT, bound=False)
        _connect(self._socket, api, endpoint, _SERVER)
        self._begun: deque[float] = deque()
        self._lock = threading.Lock()

    def ask(self, message: bytes) -> None:
        self._begun.append(perf_counter())
        if not self._bare:
            _send(self._socket, _SERVER, _MORE)
        _send(self._socket, message)

    def answer(self) -> float:
        if not self._bare:
            _receive(self._socket, 0)
        _receive(self._socket, 0)
        return self._begun.popleft()

    def send(self, message: bytes) -> None:
        with self._lock:
            if not self._bare:
                _send(self._socket, _SERVER, _MORE)
            _send(self._socket, message)

    def close(self) -> None:
        self._socket.close(5000)
        zmq.Context.instance().term()


def connect_direct(api: str, endpoint: str) -> _Direct:
    return _Direct(api, endpoint)


def connect_floor(api: str, endpoint: str) -> _Floor:
    return _Floor(api, endpoint)


def serve_direct(api: str, arrivals: Arrivals, ready: Callable[[str], None], stop: threading.Event) -> None:
    data = _socket("mesh", _SERVER, bound=True)
    data.setsockopt(zmq.RCVTIMEO, 100)
    ready(data.getsockopt_string(zmq.LAST_ENDPOINT))
    out = data
    bare = api == "client-server"
    note = arrivals.note
    while not stop.is_set():
        try:
            routing_id = _receive(data, 0)
        except zmq.Again:
            continue
        record = _receive(data, 0)
        _, kind, route, extras, _, high, low, reply_route, _ = FIXED.unpack_from(record)
        payload = record[HEADER_BYTES + route + extras :]
        if kind == Kind.REQUEST:
            _send(out, routing_id if bare else _CLIENT, _MORE)
            _send(out, b"".join((FIXED.pack(1, Kind.REPLY, 0, 0, 1, high, low, reply_route, 0), payload)))
        elif kind == Kind.SEND:
            note(payload)
        else:
            out = _socket("mesh", _SERVER, bound=False)
            _connect(out, "mesh", payload.decode(), _CLIENT)
            _send(out, _CLIENT, _MORE)
            _send(out, b"welcome")
    data.close(0)
    out.close(0)


def serve_floor(arrivals: Arrivals, ready: Callable[[str], None], stop: threading.Event) -> None:
    socket = _socket("mesh", _SERVER, bound=True)
    socket.setsockopt(zmq.RCVTIMEO, 100)
    ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    asks = arrivals.asks
    note = arrivals.note
    while not stop.is_set():
        try:
            routing_id = _receive(socket, 0)
        except zmq.Again:
            continue
        message = _receive(socket, 0)
        if asks:
            _send(socket, routing_id, _MORE)
            _send(socket, message)
        else:
            note(message)
    socket.close(0)
