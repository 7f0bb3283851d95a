"""The row `pyzmq`: what a user writes by hand on the public API - three frames, a correlation id, a deadline per request.

`send_multipart` and `recv_multipart` of one ROUTER on each side, or of a DEALER and a ROUTER; a Spot's id is one frame more.
Its fastest documented way: copies (a message this small is sent no faster without), high-water marks as they are.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any

import zmq

from bench.messaging.counting import Arrivals

__all__ = ["connect", "serve"]

_ID = struct.Struct("<Q")
_SERVER = b"server"
_TIMEOUT = 30.0


class _Line:
    def __init__(self, api: str, endpoint: str) -> None:
        context = zmq.Context.instance()
        self._socket: Any = context.socket(zmq.DEALER if api == "client-server" else zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTING_ID, b"client")
        if api == "client-server":
            self._head: list[bytes] = []
        else:
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, _SERVER)
            self._head = [_SERVER]
        self._tail = [b"owner"] if api == "spot" else []
        self._socket.connect(endpoint)
        time.sleep(0.3)  # until the handshake is over
        self._ids = itertools.count()
        self._pending: dict[bytes, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def ask(self, message: bytes) -> None:
        correlation = _ID.pack(next(self._ids))
        self._pending[correlation] = (perf_counter(), monotonic() + _TIMEOUT)
        self._socket.send_multipart([*self._head, correlation, *self._tail, message])

    def answer(self) -> float:
        frames = self._socket.recv_multipart()
        begun, _ = self._pending.pop(frames[-2])
        return begun

    def send(self, message: bytes) -> None:
        with self._lock:
            self._socket.send_multipart([*self._head, b"", *self._tail, message])

    def close(self) -> None:
        self._socket.close(5000)
        zmq.Context.instance().term()  # when everything is written


def connect(api: str, endpoint: str) -> _Line:
    return _Line(api, endpoint)


def serve(arrivals: Arrivals, ready: Callable[[str], None], stop: threading.Event) -> None:
    context = zmq.Context.instance()
    socket: Any = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTING_ID, _SERVER)
    socket.setsockopt(zmq.RCVTIMEO, 100)
    socket.bind("tcp://127.0.0.1:0")
    ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    while not stop.is_set():
        try:
            frames = socket.recv_multipart()
        except zmq.Again:
            continue
        correlation = frames[1]
        if correlation:
            socket.send_multipart([frames[0], correlation, frames[-1]])
        else:
            arrivals.note(frames[-1])
    socket.close(0)
