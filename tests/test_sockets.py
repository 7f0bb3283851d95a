"""`zlink_nogil.sockets`: real connections, waited for by tasks and handlers."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PATIENCE, eventually, outcome

from zlink_nogil import sockets, task
from zlink_nogil.errors import Cancelled, InvalidOperation, Unavailable
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import Completion, WorkerPool
from zlink_nogil.scheduler.reactor import default_reactor

type Start = Callable[[Any], Completion[Any]]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool
    assert default_reactor().waiting() == 0, "a wait was left behind"


@pytest.fixture
def start(pool: WorkerPool) -> Start:
    return lambda coroutine: task.spawn(coroutine, pool=pool)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def waiting(count: int = 1) -> None:
    eventually(lambda: default_reactor().waiting() == count, f"{count} wait")


async def echo(sock: socket.socket) -> None:
    with sock:
        while data := await sockets.recv(sock, 4096):
            await sockets.send(sock, data)


async def serve(listener: socket.socket) -> None:
    while True:
        sock, _ = await sockets.accept(listener)
        task.spawn(echo(sock))


async def receive(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = await sockets.recv(sock, size - len(received))
        assert data, "the stream is over"
        received += data
    return bytes(received)


# -- everything works -----------------------------------------------------------------------------------------------


def test_an_echo_server_with_a_hundred_clients_on_two_workers(start, listener):
    address = listener.getsockname()

    async def client(number: int) -> int:
        with await sockets.connect(address) as sock:
            for turn in range(5):
                message = f"{number} {turn}".encode() * 100
                await sockets.send(sock, message)
                assert await receive(sock, len(message)) == message
            sock.shutdown(socket.SHUT_WR)
            assert await sockets.recv(sock, 1) == b""
        return number

    server = start(serve(listener))
    clients = [start(client(number)) for number in range(100)]
    assert [client.result(PATIENCE) for client in clients] == list(range(100))
    assert server.cancel()
    assert isinstance(outcome(server), Cancelled)


def test_both_directions_of_one_socket_at_once(start, pair):
    ours, theirs = pair
    data = bytes(range(256)) * (1 << 14)  # four megabytes: more than the kernel takes
    works = [start(work) for sock in pair for work in (sockets.send(sock, data), receive(sock, len(data)))]
    results = [work.result(PATIENCE) for work in works]
    assert results == [None, data, None, data]
    assert all(sock.gettimeout() == 0 for sock in (ours, theirs))


@pytest.mark.parametrize(
    "data", [b"bytes", bytearray(b"bytearray"), memoryview(b"0123456789")[::1], memoryview(b"abcd").cast("H")]
)
def test_send_takes_buffers(start, pair, data):
    ours, theirs = pair
    start(sockets.send(ours, data)).result(PATIENCE)
    assert theirs.recv(100) == bytes(data)


def test_nothing_to_send(start, pair):
    ours, theirs = pair
    start(sockets.send(ours, b"")).result(PATIENCE)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_a_handler_talks_to_sockets(pool, listener):
    queue = SerialExecutionQueue(pool=pool)

    async def ask() -> bytes:
        with await sockets.connect(listener.getsockname()) as sock:
            await sockets.send(sock, b"question")
            return await sockets.recv(sock, 100)

    answer = queue.enqueue(ask)
    behind = queue.enqueue(lambda: "behind")
    served, _ = listener.accept()
    with served:
        assert served.recv(100) == b"question"
        waiting()
        assert not behind.done(), "the turn is kept"
        served.send(b"answer")
        assert (answer.result(PATIENCE), behind.result(PATIENCE)) == (b"answer", "behind")


def test_connecting_by_another_family(start, tmp_path):
    path = str(tmp_path / "listener")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with start(sockets.connect(path, family=socket.AF_UNIX)).result(PATIENCE) as sock:
            accepted, _ = start(sockets.accept(listener)).result(PATIENCE)
            with accepted:
                assert (sock.gettimeout(), accepted.gettimeout()) == (0, 0)


def test_an_aborted_connection_is_passed_over(start, listener):
    class Listener:
        """Its first connection was gone before it could be taken."""

        def __init__(self) -> None:
            self.aborted = False

        def accept(self) -> Any:
            if not self.aborted:
                self.aborted = True
                raise ConnectionAbortedError(errno.ECONNABORTED, "gone")
            return listener.accept()

        def gettimeout(self) -> float | None:
            return listener.gettimeout()

        def setblocking(self, flag: bool) -> None:
            listener.setblocking(flag)

        def fileno(self) -> int:
            return listener.fileno()

    accepting = start(sockets.accept(Listener()))  # type: ignore[arg-type]
    with start(sockets.connect(listener.getsockname())).result(PATIENCE) as sock:
        accepted, address = accepting.result(PATIENCE)
        with accepted:
            assert address == sock.getsockname()


# -- nothing is left behind -----------------------------------------------------------------------------------------


def test_a_refused_connection_is_an_error_and_its_socket_is_closed(start, monkeypatch):
    made: list[socket.socket] = []
    _note_sockets(monkeypatch, made)
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(ConnectionRefusedError, match=str(unheard.getsockname()[1])):
            start(sockets.connect(unheard.getsockname())).result(PATIENCE)
        with pytest.raises(FileNotFoundError):
            start(sockets.connect("/nowhere/at/all", family=socket.AF_UNIX)).result(PATIENCE)
        with pytest.raises((TypeError, OSError)):
            start(sockets.connect("no such address")).result(PATIENCE)
    assert [sock.fileno() for sock in made if sock is not unheard] == [-1] * 3


def test_a_cancelled_connect_closes_its_socket(start, monkeypatch):
    made: list[socket.socket] = []
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        _note_sockets(monkeypatch, made)
        connects = []
        while default_reactor().waiting() == 0:  # the kernel answers nobody when the backlog is full
            connects.append(start(sockets.connect(full.getsockname())))
            eventually(lambda: connects[-1].done() or default_reactor().waiting() == 1)
            assert len(connects) < 10
        assert connects[-1].cancel()
        assert isinstance(outcome(connects[-1]), Cancelled)
        assert made[-1].fileno() == -1
        waiting(0)
        for connected in connects[:-1]:
            connected.result(PATIENCE).close()


def _note_sockets(monkeypatch: pytest.MonkeyPatch, made: list[socket.socket]) -> None:
    class Socket(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(socket, "socket", Socket)


@pytest.mark.parametrize("call", [sockets.accept, lambda sock: sockets.recv(sock, 1)])
def test_a_cancelled_call_leaves_no_wait(start, listener, pair, call):
    sock = listener if call is sockets.accept else pair[0]
    for _ in range(2):
        called = start(call(sock))
        waiting()
        assert called.cancel()
        assert isinstance(outcome(called), Cancelled)
        assert default_reactor().waiting() == 0


def test_a_second_reader_is_refused(start, pair):
    ours, theirs = pair
    first = start(sockets.recv(ours, 10))
    waiting()
    with pytest.raises(InvalidOperation, match="already"):
        start(sockets.recv(ours, 10)).result(PATIENCE)
    theirs.send(b"for the first")
    assert first.result(PATIENCE) == b"for the fi"


def test_closing_ends_who_waits(start, pair):
    ours, _ = pair
    reading = start(sockets.recv(ours, 10))
    waiting()
    sockets.notify_closing(ours)
    ours.close()
    assert isinstance(outcome(reading), Unavailable)
    with pytest.raises(OSError, match="descriptor"):
        start(sockets.recv(ours, 10)).result(PATIENCE)


def test_the_other_side_goes_away(start, pair):
    ours, theirs = pair
    reading = start(sockets.recv(ours, 10))
    writing = start(sockets.send(ours, bytes(1 << 22)))
    waiting(2)
    theirs.close()
    assert isinstance(outcome(writing), BrokenPipeError | ConnectionResetError)
    assert outcome(reading) == b"" or isinstance(outcome(reading), ConnectionResetError)


def test_workers_blocked_by_users_do_not_hold_up_the_readiness(listener):
    with WorkerPool(1) as pool:
        reading: list[Completion[None]] = []
        gate, begun = threading.Event(), threading.Event()

        async def block() -> None:
            reading.append(sockets.wait_readable(listener))
            begun.set()
            gate.wait(PATIENCE)

        blocked = task.spawn(block(), pool=pool)
        assert begun.wait(PATIENCE)
        with socket.create_connection(listener.getsockname()):
            assert reading[0].result(PATIENCE) is None
            assert not blocked.done()
        gate.set()
        blocked.result(PATIENCE)
