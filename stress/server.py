"""A server process: handlers that watch the promises made to them, and tell of every broken one at once."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import zlib
from dataclasses import dataclass, field
from typing import Any

from zlink_nogil import Context, Host, Mesh
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.scheduler import default_standby

__all__ = ["BROKEN", "MESH", "READY", "REPORT", "answer", "books", "descriptors", "main"]

MESH = "stress"
BROKEN = "BROKEN "
REPORT = "REPORT "
READY = "READY"
PR_SET_PDEATHSIG = 1


class Deliberate(Exception):
    """What a handler raises when it is asked to."""


def answer(number: bytes, message: bytes) -> bytes:
    """The one right answer to a request."""
    return number + b" " + str(zlib.crc32(message)).encode()


@dataclass(slots=True)
class Owner:
    """Belongs to the turns of one owner, so nothing of it is locked: that is what is tested."""

    running: bytes = b""
    last: dict[bytes, int] = field(default_factory=dict)


class Watch:
    """Sees every turn. `turns` counts per thread, so that counting does not order the threads."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}
        self._mine = threading.local()
        self._counts: list[list[int]] = []
        self.broken: list[str] = []

    def turn(self, ctx: Context) -> _Turn:
        assert ctx.key is not None
        self._count()
        return _Turn(self, self._owners.setdefault(ctx.key, Owner()), ctx)

    def tell(self, what: str) -> None:
        self.broken.append(what)
        print(BROKEN + what, flush=True)

    def turns(self) -> int:
        return sum(count[0] for count in list(self._counts))

    def _count(self) -> None:
        count = getattr(self._mine, "count", None)
        if count is None:
            count = self._mine.count = [0]
            self._counts.append(count)
        count[0] += 1


class _Turn:
    def __init__(self, watch: Watch, owner: Owner, ctx: Context) -> None:
        self._watch, self._owner, self._ctx = watch, owner, ctx

    def __enter__(self) -> None:
        owner, ctx = self._owner, self._ctx
        sender, number = ctx.metadata["sender"], ctx.metadata["number"]
        if owner.running:
            self._watch.tell(f"owner {ctx.key}: {sender!r} {number!r} runs while {owner.running!r} does")
        owner.running = sender + b" " + number
        before = owner.last.get(sender, 0)
        if int(number) <= before:
            self._watch.tell(f"owner {ctx.key}: {sender!r} {number!r} comes after {before}")
        owner.last[sender] = int(number)

    def __exit__(self, *exc_info: object) -> None:
        owner, ctx = self._owner, self._ctx
        if owner.running != ctx.metadata["sender"] + b" " + ctx.metadata["number"]:
            self._watch.tell(f"owner {ctx.key}: {owner.running!r} began before {ctx.metadata['number']!r} had ended")
        owner.running = b""


def register(host: Host, mesh: Mesh, watch: Watch) -> None:
    channel = mesh.channel("work")

    async def work(message: bytes, ctx: Context) -> bytes:
        with watch.turn(ctx):
            do = ctx.metadata["do"]
            if do == b"raise":
                raise Deliberate("as asked")
            if do == b"burn":
                sum(range(20_000))
            if do == b"nest":
                inner = await mesh.node(mesh.node_id).request(message, name="inner", key=f"inner {ctx.key}", reply=bytes)
                if inner != message:
                    watch.tell(f"owner {ctx.key}: the inner request of {ctx.metadata['number']!r} got another's answer")
            return answer(ctx.metadata["number"], message)

    @channel.handler(name="ask")
    async def ask(message: bytes, ctx: Context) -> bytes:
        return await work(message, ctx)

    @channel.handler(name="tell")
    async def tell(message: bytes, ctx: Context) -> None:
        await work(message, ctx)

    def inner(message: bytes, ctx: Context) -> bytes:  # noqa: ARG001 - what a handler takes
        return message

    mesh.register("", inner, "inner")

    @mesh.handler
    def report(message: str, ctx: Context) -> dict[str, Any]:  # noqa: ARG001 - what a handler takes
        return {"turns": watch.turns(), "broken": watch.broken, "books": books(host, mesh)}


def books(host: Host, mesh: Mesh) -> dict[str, int]:
    """What must be zero when nothing is going on; the calling turn itself is on a node handler's owner."""
    node = mesh._running()
    counts = mesh.statistics()
    queues = {owner: queue for owner, queue in node.owners._queues.items() if owner[0]}
    return {
        "permits taken": host._permits.most - host._permits.free(),
        "slots taken": host._slots.taken(),
        "pending operations": counts["pending"],
        "deadlines kept": counts["deadlines"],
        "items reserved by owners": sum(queue.reserved()[0] for queue in queues.values()),
        "bytes reserved by owners": sum(queue.reserved()[1] for queue in queues.values()),
        "sends waiting for room": node.operations.lane.run(node.operations.out.backlog),
        "answers waiting for room": node.replies.out.run(node.replies.out.backlog),
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    """`python -m stress.server NODE PEER...`: serve until SIGTERM, drain, and report what is left."""
    _, node, *peers = sys.argv
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the run may be killed, too
    default_standby()  # has descriptors of its own, for ever
    before = descriptors()
    few = ExecutionLanePolicy(application_message_capacity=6, application_byte_capacity=2_000_000)
    host = Host(workers=2, max_queued_application_jobs=24, max_pending_operations=32, policy=few)
    mesh = host.mesh(MESH, node_id=node, peers=peers)
    watch = Watch()
    register(host, mesh, watch)
    host.start()
    host.serve_forever(lambda: print(READY, flush=True))
    left = {
        "permits taken": host._permits.most - host._permits.free(),
        "slots taken": host._slots.taken(),
        "threads": threading.active_count() - 1,
        "descriptors": descriptors() - before,
    }
    print(REPORT + json.dumps({"turns": watch.turns(), "left": left}), flush=True)


if __name__ == "__main__":
    main()
