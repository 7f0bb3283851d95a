"""What whole processes do: an idle one nothing, one with many owners no more threads, one whose server dies an end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from children import COMMAND, PATIENCE, Child, Fifo, cpu_milliseconds
from support import eventually, outcome

from zlink_nogil import Completion, DeadlineExceeded, Host, Unavailable

IDLE_WINDOW = 3.0
IDLE_MILLISECONDS = 20

NODE = """
import os, threading
from zlink_nogil import Completion, Context, Host

peers = os.environ["TEST_PEERS"].split()
host = Host(workers=2, max_queued_application_jobs=20_000, max_pending_operations=20_000)
mesh = host.mesh("processes", node_id=os.environ["TEST_NODE"], peers=peers)
gate = Completion()

@mesh.channel("work").handler
async def wait(message: str, ctx: Context) -> str:
    await gate
    return message

@mesh.handler
def threads(message: str, ctx: Context) -> dict[str, int]:
    with open("/proc/self/status") as status:
        os_threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    return {"threads": threading.active_count(), "os": os_threads, **mesh.statistics()}

@mesh.handler
def release(message: bytes, ctx: Context) -> None:
    gate.succeed(None)
"""


class Server(Child):
    def __init__(self, folder: Path, node: str, *peers: str) -> None:
        (folder / "served_node.py").write_text(NODE)
        self.node = node
        super().__init__(COMMAND, "serve", "served_node:host", cwd=folder, TEST_NODE=node, TEST_PEERS=" ".join(peers))
        self.endpoint = self.line_with(f"node {node} of mesh processes at ").split()[-1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, "server") as server:
        yield server


@contextmanager
def client(*peers: Server) -> Iterator[Host]:
    host = Host(workers=1, max_pending_operations=20_000)
    host.mesh("processes", node_id="client", peers=[peer.endpoint for peer in peers])
    with host:
        host.wait_ready(PATIENCE)
        yield host


def test_connected_nodes_use_no_cpu_while_idle(tmp_path: Path, server: Server) -> None:
    with Server(tmp_path, "other", server.endpoint) as other, client(server, other) as host:
        [mesh] = host.meshes
        mesh.channel("work").wait_ready(2, PATIENCE)
        mesh.node("other").request("now", reply=dict[str, int]).result(PATIENCE)
        pause = threading.Event()
        pause.wait(0.5)  # what is still to be done after hello
        pids = (server.pid, other.pid)
        before = [cpu_milliseconds(pid) for pid in pids]
        pause.wait(IDLE_WINDOW)
        used = [cpu_milliseconds(pid) - start for pid, start in zip(pids, before, strict=True)]
        assert max(used) < IDLE_MILLISECONDS


def test_ten_thousand_owners_need_no_more_threads_than_ten(server: Server) -> None:
    """Each owner is in the middle of a turn: it awaits, and keeps its owner."""
    counts: dict[int, dict[str, int]] = {}
    with client(server) as host:
        [mesh] = host.meshes
        work, own = mesh.channel("work"), mesh.node("server")
        pending: list[Completion[str]] = []
        for owners in (10, 10_000):
            while len(pending) < owners:
                key = str(len(pending))
                pending.append(work.request(key, key=key, reply=str, timeout=PATIENCE).submit())
            eventually(lambda owners=owners: ask(own)["owners"] >= owners, f"{owners} owners are there")
            counts[owners] = ask(own)
        own.send(b"").result(PATIENCE)
        assert [completion.result(PATIENCE) for completion in pending] == [str(key) for key in range(10_000)]
    assert counts[10_000]["threads"] == counts[10]["threads"]
    assert counts[10_000]["os"] == counts[10]["os"]


def ask(own):  # type: ignore[no-untyped-def]
    """The node's counts; it answers although its owners wait."""
    return own.request("now", reply=dict[str, int], key="asking", timeout=PATIENCE).result(PATIENCE)


def test_a_killed_server_ends_every_request_once(server: Server) -> None:
    """Some are being handled, some wait for their owner, some are still on their way."""
    ends: Counter[int] = Counter()
    all_ended = threading.Semaphore(0)
    requests = 300
    with client(server) as host:
        [mesh] = host.meshes
        work = mesh.channel("work")

        def note(number: int) -> None:
            ends[number] += 1  # the pool has one worker: callbacks run one at a time
            all_ended.release()

        pending = [work.request(str(i), key=str(i % 50), reply=str, timeout=PATIENCE).submit() for i in range(requests)]
        for number, completion in enumerate(pending):
            completion.add_done_callback(lambda _, number=number: note(number))
        eventually(lambda: ask(mesh.node("server"))["owners"] > 10, "handlers run")
        server.signal(signal.SIGKILL)
        for _ in range(requests):
            assert all_ended.acquire(timeout=PATIENCE), "a request has no end"
        assert ends == dict.fromkeys(range(requests), 1)
        assert {type(outcome(completion)) for completion in pending} <= {Unavailable, DeadlineExceeded}
        assert mesh.statistics()["pending"] == 0
        eventually(lambda: host._slots.taken() == 0, "every slot is back")


INTERRUPTED_CLOSE = """
import os, sys, threading
from zlink_nogil import Context, Host

host = Host(workers=1)
mesh = host.mesh("closing", node_id="me")

@mesh.handler
def held(message: bytes, ctx: Context) -> None:
    print("held", flush=True)
    with open("released") as released:
        released.readline()
    print("handled", flush=True)

def tell_when_closing():
    while host._state.name != "CLOSED":
        threading.Event().wait(0.002)
    print("closing", flush=True)

try:
    with host:
        mesh.node("me").send(b"").submit()
        threading.Thread(target=tell_when_closing).start()
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted,", threading.active_count(), "thread", flush=True)
"""


def test_ctrl_c_does_not_leave_half_of_a_host_behind(tmp_path: Path) -> None:
    """It comes while the close waits for a handler: the close goes on to its end, and then it is told."""
    released = Fifo(tmp_path / "released")
    with Child(sys.executable, "-c", INTERRUPTED_CLOSE, cwd=tmp_path, PYTHON_GIL=os.environ.get("PYTHON_GIL")) as child:
        child.line_with("held")
        child.line_with("closing")
        eventually(lambda: _waits(child.pid), "the main thread waits")
        child.signal(signal.SIGINT)
        eventually(lambda: not _signal_pending(child.pid), "the signal is taken")
        released.write("go on")
        assert child.end() == 0
    released.close()
    assert child.output.splitlines()[2:] == ["handled", "interrupted, 1 thread"]


def _waits(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


def _signal_pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return int(pending, 16) != 0
