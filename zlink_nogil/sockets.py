"""Sockets for coroutines: `await sockets.recv(sock, 1000)` in a task or a handler waits without a thread (design 2.3).

Each call makes its socket non-blocking, tries, and waits only when it would block. Calls may come from any thread, on one
socket at a time one that reads (`recv`, `accept`) and one that writes (`send`); a second one that has to wait raises
`InvalidOperation`. A call that is cancelled, or given up after a time, leaves nothing behind. Who closes a socket that
others may wait for calls `notify_closing` first: their calls end with `Unavailable`. Failures of the network are the
`OSError`s of the `socket` module. A call that need not wait does not suspend: where data never ends, `task.yield_now()`
lets others run. Not for `ssl` sockets.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Buffer
from typing import Any

from zlink_nogil.scheduler.reactor import notify_closing, wait_readable, wait_writable

__all__ = ["accept", "connect", "notify_closing", "recv", "send", "wait_readable", "wait_writable"]


async def connect(address: Any, *, family: int = socket.AF_INET) -> socket.socket:
    """A new stream socket of `family`, connected to `address` (as for `socket.connect`), non-blocking.

    A host name is looked up by the calling thread, which blocks meanwhile: give a numeric address. Raises `OSError`
    (`ConnectionRefusedError`, ...); then, and when it is cancelled, the socket is closed. There is no limit of time but
    the kernel's. Any number of them may run at once.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(address)
        if error in {errno.EINPROGRESS, errno.EINTR}:
            await wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"{os.strerror(error)}: {address!r}")
    except BaseException:
        sock.close()
        raise
    return sock


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection of a listening socket: (non-blocking socket, address of the other side).

    Raises `OSError`; `Unavailable` when the listener is announced as closing.
    """
    _make_nonblocking(listener)
    while True:
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            await wait_readable(listener)
        except ConnectionAbortedError:
            continue  # it was gone before we came
        else:
            sock.setblocking(False)
            return sock, address


async def recv(sock: socket.socket, n: int) -> bytes:
    """What is there, at least 1 and at most `n` bytes; `b""` at the end of the stream.

    Raises `OSError` (`ConnectionResetError`, ...); `Unavailable` when the socket is announced as closing.
    """
    _make_nonblocking(sock)
    while True:
        try:
            return sock.recv(n)
        except BlockingIOError:
            await wait_readable(sock)


async def send(sock: socket.socket, data: Buffer) -> None:
    """Send all of `data`; over when the kernel has it.

    Raises `OSError` (`BrokenPipeError`, ...); `Unavailable` when the socket is announced as closing. How much was sent by
    a call that failed or was cancelled is not known.
    """
    _make_nonblocking(sock)
    with memoryview(data) as whole, whole.cast("B") as left:
        done = 0
        while done < len(left):
            try:
                with left[done:] as rest:
                    done += sock.send(rest)
            except BlockingIOError:
                await wait_writable(sock)


def _make_nonblocking(sock: socket.socket) -> None:
    if sock.gettimeout() != 0:
        sock.setblocking(False)
