"""A node that is not ours: plain sockets and the wire format, for tests that send what no node of ours does."""

from __future__ import annotations

import json
from typing import Any

import zmq
from support import PATIENCE, Node

from zlink_nogil.messaging import wire
from zlink_nogil.messaging.wire import Kind

GENERATION = 77


class Stranger:
    """Four plain ZeroMQ sockets and the wire format: a node that does whatever a test wants."""

    def __init__(self, node: Node, name: str = "stranger") -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.name = name
        self.node = node.mesh._node.me
        self.data_in, self.completion_in = self._socket(zmq.ROUTER), self._socket(zmq.ROUTER)
        self.data_out, self.completion_out = self._socket(zmq.DEALER), self._socket(zmq.DEALER)
        self.data_endpoint, self.completion_endpoint = [
            f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
            for socket in (self.data_in, self.completion_in)
        ]
        self.data_out.connect(self.node.data_endpoint)
        self.completion_out.connect(self.node.completion_endpoint)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE * 1000))
        return socket

    def introduction(self, **changes: Any) -> dict[str, Any]:
        said = {
            "mesh": "test",
            "node": self.name,
            "generation": GENERATION,
            "data_endpoint": self.data_endpoint,
            "completion_endpoint": self.completion_endpoint,
            "channels": {"work": 100},
            "max_record_bytes": 1 << 20,
            "token": 5,
            "answers": 0,
        }
        return {**said, **changes}

    def says(self, kind: Kind, **changes: Any) -> bytes:
        return control(kind, json.dumps(self.introduction(**changes)).encode())

    def hello(self) -> None:
        """Be known: requests of ours are answered from then on."""
        self.data_out.send(self.says(Kind.HELLO))
        first = self.answer()[0]  # of a new connection: whose it is
        assert (self.answer()[0] if first is Kind.ACK else first) is Kind.WELCOME

    def join(self) -> None:
        """Be a node that can be chosen."""
        while True:
            hello = self.data_in.recv_multipart()[1]
            said = json.loads(hello[wire.unpack(hello).payload_at :])
            self.completion_out.send(self.says(Kind.WELCOME, answers=said["token"]))
            return

    def answer(self) -> tuple[Kind, Any]:
        """(kind, error or record) of the next record on our completion socket."""
        record = self.completion_in.recv_multipart()[1]
        header = wire.unpack(record)
        return header.kind, wire.unpack_error(record[header.payload_at :]) if header.kind is Kind.ERROR else record

    def request(self, route: bytes, extras: bytes = b"", payload: bytes = b"", generation: int | None = None) -> bytes:
        generation = self.node.generation if generation is None else generation
        return wire.pack(
            Kind.REQUEST,
            route,
            extras,
            payload,
            generation=generation,
            operation=(1, 2),
            reply_route=3,
            timeout_ms=5000,
        )

    def close(self) -> None:
        self.context.destroy(linger=0)


def control(kind: Kind, payload: bytes) -> bytes:
    return wire.pack(kind, b"", b"", payload, generation=0)
