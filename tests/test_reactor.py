"""The reactor (design 2.3): coroutines and threads that wait for descriptors, on real sockets and pipes."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from background import Background, Gate
from support import PATIENCE, child, eventually, outcome, together

from zlink_nogil import task
from zlink_nogil.errors import Cancelled, DeadlineExceeded, InvalidOperation, ShuttingDown, Unavailable
from zlink_nogil.execution import SerialExecutionQueue
from zlink_nogil.scheduler import StandBy, WorkerPool
from zlink_nogil.scheduler.reactor import READABLE, WRITABLE, Reactor, default_reactor, notify_closing, wait_readable


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, "tested") as pool:
        yield pool


@pytest.fixture
def standby() -> StandBy:
    return StandBy("tested")


@pytest.fixture
def reactor(standby: StandBy) -> Iterator[Reactor]:
    reactor = Reactor(standby)
    yield reactor
    assert reactor.waiting() == 0, "a wait was left behind"
    reactor.close()
    assert standby._thread is None


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, neither readable, both writable."""
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
    yield pair
    for sock in pair:
        sock.close()


def fill(sock: socket.socket) -> None:
    """Until it is not writable."""
    try:
        while True:
            sock.send(bytes(1 << 16))
    except BlockingIOError:
        return


def drain(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 20):
            pass
    except BlockingIOError:
        return


def registered(reactor: Reactor) -> list[int]:
    """The descriptors that the kernel has in the reactor's epoll set."""
    with open(f"/proc/self/fdinfo/{reactor._epoll.fileno()}", encoding="ascii") as info:
        return [int(line.split()[1]) for line in info if line.startswith("tfd:")]


# -- waits end ------------------------------------------------------------------------------------------------------


def test_a_wait_ends_when_the_descriptor_is_ready_and_not_before(reactor, pair):
    ours, theirs = pair
    for _ in range(3):
        wait = reactor.wait(ours, READABLE)
        with pytest.raises(DeadlineExceeded):
            wait.result(0.01)
        assert reactor.waiting() == 1
        theirs.send(b"x")
        assert wait.result(PATIENCE) is None
        assert reactor.waiting() == 0
        assert reactor.wait(ours.fileno(), READABLE).result(PATIENCE) is None, "a level, not an edge"
        assert ours.recv(10) == b"x"


def test_both_directions_at_once(reactor, pair):
    ours, theirs = pair
    fill(ours)
    reading, writing = reactor.wait(ours, READABLE), reactor.wait(ours, WRITABLE)
    assert reactor.waiting() == 2
    theirs.send(b"x")
    assert reading.result(PATIENCE) is None
    assert not writing.done()
    reading = reactor.wait(ours, READABLE)
    assert reading.result(PATIENCE) is None, "there is something still"
    ours.recv(10)
    reading = reactor.wait(ours, READABLE)
    drain(theirs)
    assert writing.result(PATIENCE) is None
    assert not reading.done()
    assert reading.cancel()


def test_a_hang_up_ends_both_directions(reactor):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    fill(ours)
    waits = [reactor.wait(ours, direction) for direction in (READABLE, WRITABLE)]
    theirs.close()
    assert [wait.result(PATIENCE) for wait in waits] == [None, None]
    ours.close()


def test_the_error_of_a_pipe_without_readers_ends_the_wait_of_the_writer(reactor):
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(1 << 16))
    except BlockingIOError:
        pass
    wait = reactor.wait(write, WRITABLE)
    os.close(read)
    assert wait.result(PATIENCE) is None
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


def test_tasks_handlers_and_threads_wait(pool, pair):
    ours, theirs = pair

    async def wait() -> bytes:
        await wait_readable(ours)
        return ours.recv(1)

    for start in (lambda: task.spawn(wait(), pool=pool), lambda: SerialExecutionQueue(pool=pool).enqueue(wait)):
        waiting = start()
        eventually(lambda: default_reactor().waiting() == 1)
        theirs.send(b"x")
        assert waiting.result(PATIENCE) == b"x"
    waiting = Background(wait_readable(ours).result, PATIENCE)
    theirs.send(b"x")
    assert waiting.result() is None


def test_readiness_needs_no_worker(pair):
    ours, theirs = pair
    with WorkerPool(1) as pool:
        gate = Gate()
        SerialExecutionQueue(pool=pool).enqueue(gate)
        gate.wait_begun()

        async def wait() -> Any:
            return wait_readable(ours)

        asked = task.spawn(wait(), pool=pool)
        wait_by_thread = wait_readable(ours)
        theirs.send(b"x")
        assert wait_by_thread.result(PATIENCE) is None
        gate.open()
        assert asked.result(PATIENCE).result(PATIENCE) is None


def test_more_at_once_than_one_look_at_the_set_reports(reactor):
    """It reports 1023 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    descriptors = [os.eventfd(0) for _ in range(1100)]
    try:
        waits = [reactor.wait(fd, READABLE) for fd in descriptors]
        with reactor._lock:
            for fd in descriptors:
                os.eventfd_write(fd, 1)
        assert [wait.result(PATIENCE) for wait in waits] == [None] * len(descriptors)
    finally:
        for fd in descriptors:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- giving up ------------------------------------------------------------------------------------------------------


def test_a_cancelled_wait_leaves_nothing(reactor, pair):
    ours, theirs = pair
    for _ in range(2):
        wait = reactor.wait(ours, READABLE)
        assert registered(reactor) == [ours.fileno()]
        assert wait.cancel()
        assert not wait.cancel()
        assert isinstance(outcome(wait), Cancelled)
        assert (reactor.waiting(), registered(reactor)) == (0, [])
    theirs.send(b"x")
    assert reactor.wait(ours, READABLE).result(PATIENCE) is None


def test_giving_up_one_direction_leaves_the_other(reactor, pair):
    ours, theirs = pair
    fill(ours)
    reading, writing = reactor.wait(ours, READABLE), reactor.wait(ours, WRITABLE)
    assert writing.cancel()
    drain(theirs)
    theirs.send(b"x")
    assert reading.result(PATIENCE) is None
    assert isinstance(outcome(writing), Cancelled)


@pytest.mark.parametrize("how", ["task", "handler"])
def test_who_is_cancelled_at_its_wait_takes_the_wait_along(pool, pair, how):
    ours, theirs = pair
    reactor = default_reactor()

    async def wait() -> str:
        try:
            await wait_readable(ours)
        except Cancelled:
            assert (reactor.waiting(), ours.fileno() in registered(reactor)) == (0, False)
            raise
        return "ready"

    starts = {
        "task": lambda: task.spawn(wait(), pool=pool),
        "handler": lambda: SerialExecutionQueue(pool=pool).enqueue(wait),
    }
    begin = starts[how]
    waiting = begin()
    eventually(lambda: reactor.waiting() == 1)
    assert waiting.cancel()
    assert isinstance(outcome(waiting), Cancelled)
    waiting = begin()
    eventually(lambda: reactor.waiting() == 1)
    theirs.send(b"x")
    assert waiting.result(PATIENCE) == "ready"


def test_who_runs_out_of_time_takes_the_wait_along(pool, pair):
    ours, _ = pair

    async def wait_a_moment() -> bool:
        wait = task.spawn(_wait(ours))
        await task.sleep(0.01)
        return wait.cancel()

    assert task.spawn(wait_a_moment(), pool=pool).result(PATIENCE)
    eventually(lambda: default_reactor().waiting() == 0)
    assert ours.fileno() not in registered(default_reactor())


async def _wait(sock: socket.socket) -> None:
    await wait_readable(sock)


def test_a_coroutine_that_is_dropped_at_its_wait_takes_it_along(pair):
    coroutine = _wait(pair[0])
    coroutine.send(None)
    assert default_reactor().waiting() == 1
    coroutine.close()
    assert default_reactor().waiting() == 0


def test_ready_and_cancelled_at_once_is_one_of_the_two(reactor, pair):
    ours, theirs = pair
    for _ in range(100):
        wait = reactor.wait(ours, READABLE)
        cancelled, _ = together(wait.cancel, lambda: theirs.send(b"x"))
        assert isinstance(outcome(wait), Cancelled) == cancelled
        assert reactor.waiting() == 0
        assert ours.recv(10) == b"x"


# -- refusing -------------------------------------------------------------------------------------------------------


def test_a_second_waiter_is_refused_and_the_first_goes_on(reactor, pair):
    ours, theirs = pair
    first = reactor.wait(ours, READABLE)
    with pytest.raises(InvalidOperation, match="already"):
        reactor.wait(ours, READABLE)
    assert not first.done()
    theirs.send(b"x")
    assert first.result(PATIENCE) is None


@pytest.mark.parametrize(
    ("target", "error"),
    [(-1, ValueError), (2**31, ValueError), (True, TypeError), ("0", TypeError), (None, TypeError), (3.0, TypeError)],
)
def test_what_is_no_descriptor_is_refused(reactor, target, error):
    with pytest.raises(error):
        reactor.wait(target, READABLE)
    with pytest.raises(error):
        reactor.notify_closing(target)


def test_a_closed_descriptor_is_refused(reactor):
    ours, theirs = socket.socketpair()
    number = os.dup2(ours.fileno(), 900)  # no number that a new descriptor gets
    os.close(number)
    ours.close()
    theirs.close()
    with pytest.raises(OSError, match="descriptor"):
        reactor.wait(number, READABLE)
    with pytest.raises(ValueError, match="not an open"):
        reactor.wait(ours, READABLE)


def test_a_file_is_refused(reactor):
    with tempfile.TemporaryFile() as file, pytest.raises(InvalidOperation, match="is a file"):
        reactor.wait(file, READABLE)


# -- closing --------------------------------------------------------------------------------------------------------


def test_closing_a_descriptor_ends_its_waits(reactor, pair):
    ours, theirs = pair
    fill(ours)
    waits = [reactor.wait(ours, READABLE), reactor.wait(ours, WRITABLE)]
    other = reactor.wait(theirs.fileno(), READABLE)
    assert other.result(PATIENCE) is None
    reactor.notify_closing(ours)
    assert [type(outcome(wait)) for wait in waits] == [Unavailable] * 2
    assert ours.fileno() not in registered(reactor)
    reactor.notify_closing(ours)
    assert reactor.wait(theirs, READABLE).result(PATIENCE) is None


def test_a_number_that_is_used_again_is_another_descriptor(reactor, pair):
    """Also when nobody said that the former one was closed, and a copy of it keeps it alive for the kernel."""
    ours, theirs = pair
    read, write = os.pipe()
    copy = os.dup(read)
    former = reactor.wait(read, READABLE)
    os.dup2(ours.fileno(), read)
    wait = reactor.wait(read, READABLE)
    assert isinstance(outcome(former), Unavailable)
    theirs.send(b"x")
    assert wait.result(PATIENCE) is None
    assert ours.recv(1) == b"x"
    wait = reactor.wait(read, READABLE)
    assert wait.cancel()
    for fd in (read, write, copy):
        os.close(fd)


def test_a_descriptor_closed_without_a_word_is_noticed_by_the_next_wait(reactor):
    read, write = os.pipe()
    former = reactor.wait(read, READABLE)
    os.close(read)
    with pytest.raises(OSError, match="descriptor"):
        reactor.wait(read, READABLE)
    assert isinstance(outcome(former), Unavailable)
    os.close(write)


def test_numbers_come_and_go(reactor):
    for _ in range(100):
        ours, theirs = socket.socketpair()
        wait = reactor.wait(ours, READABLE)
        theirs.send(b"x")
        assert wait.result(PATIENCE) is None
        ours.close()
        theirs.close()
    assert registered(reactor) == []


def test_close_ends_the_waits_and_the_thread(reactor, standby, pair):
    ours, _ = pair
    wait = reactor.wait(ours, READABLE)
    thread = standby._thread
    reactor.close()
    reactor.close()
    assert isinstance(outcome(wait), ShuttingDown)
    assert not thread.is_alive()
    with pytest.raises(ShuttingDown):
        reactor.wait(ours, READABLE)
    reactor.notify_closing(ours)


def test_a_reactor_nobody_used_has_no_thread():
    standby = StandBy("unused")
    reactor = Reactor(standby)
    assert standby._thread is None
    reactor.close()


def test_a_standby_that_fails_is_asked_again(reactor, standby, pair, monkeypatch):
    def fail(driver: object) -> None:  # noqa: ARG001
        raise RuntimeError("no thread to be had")

    ours, theirs = pair
    with monkeypatch.context() as patch:
        patch.setattr(standby, "add", fail)
        with pytest.raises(RuntimeError, match="no thread"):
            reactor.wait(ours, READABLE)
    wait = reactor.wait(ours, READABLE)
    theirs.send(b"x")
    wait.result(PATIENCE)


# -- the process ----------------------------------------------------------------------------------------------------

IDLE = """
import os, socket, time
from zlink_nogil import sockets, task

ours, theirs = socket.socketpair()
ours.setblocking(False)

async def wait():
    await sockets.wait_readable(ours)

waiting = task.spawn(wait())
first = sockets.wait_readable(theirs)
ours.send(b"x")
first.result(10)
before = time.process_time()
late = sockets.wait_writable(ours).result(10)
try:
    waiting.result(0.5)
except TimeoutError:
    pass
used = time.process_time() - before
assert used < 0.1, used
print("idle")
"""

FORKED = """
import os, socket
from zlink_nogil import sockets
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.scheduler.reactor import WRITABLE, default_reactor

ours, theirs = socket.socketpair()
ours.setblocking(False)
inherited, reactor = sockets.wait_readable(ours), default_reactor()
awaits = inherited.__await__()
next(awaits)
pid = os.fork()
if pid == 0:
    for use in (inherited.cancel, lambda: reactor.wait(ours, WRITABLE)):
        try:
            use()
        except InvalidOperation:
            continue
        os._exit(1)
    awaits.close()  # as a dropped coroutine does: the set is the parent's
    fresh = sockets.wait_readable(ours)  # in a set of its own
    sockets.notify_closing(ours)
    assert fresh.done() and not inherited.done()
    fresh = sockets.wait_writable(ours)
    fresh.result(10)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
theirs.send(b"x")
inherited.result(10)
print("both")
"""


@pytest.mark.parametrize(("script", "word"), [(IDLE, "idle"), (FORKED, "both")])
def test_in_a_process_of_its_own(script, word):
    """Waiting costs no CPU; a fork has a reactor of its own; a wait that goes on does not hold up the end."""
    script = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + script
    process = child(script)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, f"{word}\n")


def test_the_public_functions_share_one_reactor(pair):
    ours, _ = pair
    wait = wait_readable(ours)
    assert default_reactor().waiting() == 1
    notify_closing(ours)
    assert isinstance(outcome(wait), Unavailable)
