"""Bad frames at every socket of a running node; then it must still answer, and nothing may be left.

    tools/run fuzz --frames 1000000 --seed 7

Records are made from good ones: cut, lengthened, with bytes changed, with other kinds and sizes in the header, in several
frames or none. What could be delivered all the same is counted by the same reading the node does, so that a handler that ran
for anything else is found out.
"""

from __future__ import annotations

import logging
import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import zmq

from zlink_nogil import Host, Spot, Unavailable, _sync, handler
from zlink_nogil.messaging import wire
from zlink_nogil.messaging.codecs import JsonCodec
from zlink_nogil.messaging.peers import Introduction
from zlink_nogil.messaging.server import channel_mesh

PATIENCE = 30.0
CHECK_EVERY = 2000
GENERATION = 77


@dataclass
class Tagged:
    text: str
    number: int


class Room(Spot):
    @handler
    def take(self, message: Tagged, ctx: Any) -> int:  # noqa: ARG002 - a handler's second argument
        COUNT.add()
        return message.number


class _Count:
    def __init__(self) -> None:
        self._lock = _sync.Lock()
        self.value = 0

    def add(self) -> None:
        with self._lock:
            self.value += 1


COUNT = _Count()


class Target:
    """A node with everything: a mesh, a server, a client, Spots on demand."""

    def __init__(self, fake_server: str) -> None:
        self.host = Host(workers=2)
        self.mesh = self.host.mesh("fuzz", node_id="target", locations="target")
        self.server = self.host.server("api", node_id="target")
        self.client = self.host.client("out", servers=[fake_server], node_id="target")
        self.host.spots.register(Room, on_demand="room/")
        for register in (self.mesh.channel("work").handler, self.mesh.handler, self.server.handler):
            register(self.take)
        self.host.start()

    @staticmethod
    def take(message: Tagged, ctx: Any) -> int:  # noqa: ARG004 - a handler's second argument
        COUNT.add()
        return message.number

    def counts(self) -> dict[str, int]:
        mesh, server, client = self.mesh.statistics(), self.server.statistics(), self.client.statistics()
        return {
            "malformed": mesh["malformed"] + server["malformed"] + client["malformed"],
            "refused": mesh["refused"] + server["refused"],
            "late": mesh["late"] + client["late"],
            "pending": mesh["pending"] + client["pending"],
        }


class Records:
    """Good records, and what becomes of them."""

    def __init__(self, seed: int, generations: tuple[int, int], endpoint: str) -> None:
        self.random = random.Random(seed)
        self._generations = generations
        self._endpoint = endpoint
        self._codec = JsonCodec()

    def good(self) -> bytes:
        random = self.random
        kind = random.choice([wire.Kind.SEND, wire.Kind.REQUEST] * 6 + list(wire.Kind))
        payload = b'{"text":"x","number":1}'
        if kind is wire.Kind.ERROR:
            gone = wire.NotHere(wire.Address(wire.OwnerKind.SPOT, "r"))
            payload = wire.pack_error(random.choice([Unavailable("x"), gone]))
        elif kind >= wire.Kind.HELLO:
            payload = introduction("fuzz", self._endpoint).pack()
        owner = random.choice([wire.NOBODY, wire.Address(random.choice(list(wire.OwnerKind)), "room/1")])
        return wire.pack(
            kind,
            wire.pack_route("application/json", random.choice(["work", "", "api"]), "Tagged"),
            wire.pack_extras(owner, {"m": b"v"} if random.random() < 0.3 else {}),
            payload,
            generation=random.choice([*self._generations, GENERATION]),
            operation=(1, random.getrandbits(16)),
            reply_route=random.getrandbits(16),
            timeout_ms=random.choice([0, 1, 5000]),
        )

    def bad(self) -> list[bytes]:
        """The frames of one message; now and then a good one."""
        random, record = self.random, bytearray(self.good())
        how = random.randrange(8)
        if how == 0:
            del record[random.randrange(len(record)) :]
        elif how == 1:
            record += random.randbytes(random.randrange(1, 64))
        elif how == 2:
            for _ in range(random.randrange(1, 6)):
                record[random.randrange(len(record))] = random.randrange(256)
        elif how == 3:
            struct.pack_into("<BBHI", record, 0, *random.choice([(1, 2, 0xFFFF, 0), (1, 1, 0, 0xFFFFFFFF), (2, 1, 0, 0)]))
        elif how == 4:
            return [bytes(record)] * random.randrange(2, 5)
        elif how == 5:
            record = bytearray(random.randbytes(random.randrange(0, 200)))
        elif how == 6:
            record[1] = random.randrange(256)
        return [bytes(record)]

    def deliverable(self, frames: list[bytes]) -> bool:
        """Would the one life it names, if it is one of the target's, give it to a handler?"""
        try:
            [record] = frames
            header = wire.unpack(record)
            wire.unpack_extras(header.extras)
            wire.unpack_route(header.route)
            self._codec.decode(record[header.payload_at :], Tagged)
        except (ValueError, TypeError):
            return False
        return header.kind in (wire.Kind.SEND, wire.Kind.REQUEST) and header.generation in self._generations


def introduction(mesh: str, endpoint: str, token: int = 1, answers: int = 0, node: str = "fuzzer") -> Introduction:
    return Introduction(mesh, node, GENERATION, endpoint, endpoint, {"out": 100}, 1 << 20, token, answers)


def hello(mesh: str, endpoint: str) -> bytes:
    return wire.pack(wire.Kind.HELLO, b"", b"", introduction(mesh, endpoint).pack(), generation=0)


class Fuzzer:
    """Bare sockets towards every one of the target's."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        self.node = context.socket(zmq.ROUTER)  # what the target's out-sockets connect to
        self.fake_server = context.socket(zmq.ROUTER)  # what its client connects to
        for socket in (self.node, self.fake_server):
            socket.linger = 0
        self.node_at = f"tcp://127.0.0.1:{self.node.bind_to_random_port('tcp://127.0.0.1')}"
        self.server_at = f"tcp://127.0.0.1:{self.fake_server.bind_to_random_port('tcp://127.0.0.1')}"
        self._dealers: list[zmq.Socket[bytes]] = []

    def attach(self, target: Target) -> None:
        me = target.mesh._running().me
        for endpoint, mesh in (
            (me.data_endpoint, "fuzz"),
            (me.completion_endpoint, "fuzz"),
            (target.server.endpoint, channel_mesh("api")),
        ):
            dealer = self._context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.setsockopt(zmq.ROUTING_ID, b"fuzzer" + random.randbytes(8))
            dealer.connect(endpoint)
            dealer.send(hello(mesh, self.node_at))
            self._dealers.append(dealer)

    def throw(self, frames: list[bytes]) -> None:
        """To every socket; what a full one cannot take goes nowhere."""
        for dealer in self._dealers:
            try:
                dealer.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                dealer.poll(100, zmq.POLLOUT)
        for router in (self.node, self.fake_server):
            for routing_id in self._heard(router):
                try:
                    router.send_multipart([routing_id, *frames], zmq.NOBLOCK)
                except zmq.ZMQError:
                    continue

    def _heard(self, router: zmq.Socket[bytes]) -> Iterator[bytes]:
        """Who has said something just now; a client's hello is answered, so that it lets the fake server in."""
        while router.poll(0):
            routing_id, *frames = router.recv_multipart()
            if router is self.fake_server and len(frames) == 1 and frames[0][1:2] == bytes((wire.Kind.HELLO,)):
                them = Introduction.unpack(frames[0][wire.unpack(frames[0]).payload_at :])
                said = introduction(channel_mesh("out"), self.server_at, answers=them.token, node="fake")
                welcome = wire.pack(wire.Kind.WELCOME, b"", b"", said.pack(), generation=0)
                router.send_multipart([routing_id, welcome])
            yield routing_id

    def close(self) -> None:
        for socket in (*self._dealers, self.node, self.fake_server):
            socket.close()


def canary(number: int, caller: Host, mesh: Any, client: Any) -> None:
    """A good request each way is answered."""
    for call in (
        mesh.channel("work").request,
        mesh.node("target").request,
        client.request,
        lambda message, **options: caller.spots.request("room/canary", message, **options),
    ):
        answer = call(Tagged("canary", number), reply=int, timeout=PATIENCE).result(PATIENCE)
        assert answer == number, f"asked for {number}, answered {answer}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--frames", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", type=int, help="Default: a new one.")
def main(frames: int, seed: int | None) -> None:
    """Throw FRAMES bad messages at every socket of a node. Exit code 1 when a promise is broken."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    logging.getLogger("zlink_nogil").addHandler(logging.NullHandler())  # it has a lot to say, and is counted
    context = zmq.Context()
    fuzzer = Fuzzer(context)
    target = Target(fuzzer.server_at)
    caller = Host(workers=1)
    mesh = caller.mesh("fuzz", node_id="caller", peers=[target.mesh.endpoint], locations="target")
    client = caller.client("api", servers=[target.server.endpoint])
    caller.start()
    caller.wait_ready(PATIENCE)
    fuzzer.attach(target)
    lives = (target.mesh._running().me.generation, target.server._running()._generation)
    records = Records(seed, lives, fuzzer.node_at)
    deliverable = asked = 0
    try:
        for number in range(frames):
            message = records.bad()
            deliverable += records.deliverable(message)
            fuzzer.throw(message)
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                canary(number, caller, mesh, client)
                asked += 4
        canary(frames, caller, mesh, client)
        asked += 4
        deadline = _sync.monotonic() + PATIENCE
        while target.counts()["pending"] and _sync.monotonic() < deadline:
            canary(0, caller, mesh, client)
            asked += 4
        counts = target.counts()
    finally:
        fuzzer.close()
        caller.close()
        target.host.close()
        context.destroy(0)
    wrong = COUNT.value - asked - deliverable
    click.echo(
        f"{frames:,} messages at every socket; {counts}; handlers ran {COUNT.value:,} times, {asked} for good requests"
    )
    if wrong > 0 or counts["pending"] or not counts["malformed"]:
        click.echo(f"BROKEN: {max(0, wrong)} handler calls for what could not be delivered, {counts['pending']} pending")
        sys.exit(1)
    click.echo("the node still answers, nothing is pending, and no handler ran for a malformed message")


if __name__ == "__main__":
    main()
