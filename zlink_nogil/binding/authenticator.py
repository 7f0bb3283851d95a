"""`Authenticator`: lets in who is on the list, before anything of theirs is read (decision 19).

pyzmq's own authenticator decides; its messages are pumped here, as a driver of the stand-by: it needs no thread of its own.

Guarantees
    It is there before a listener is bound: whoever connects meanwhile waits for its answer. When it fails, its listeners are
    closed, and with them go the connections that came in there. Nobody comes in without being asked: where none is left to
    ask, ZeroMQ refuses.

Ownership
    belongs to the thread that leads it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Final, cast

import zmq
from zmq.auth.base import Authenticator as _ZmqAuthenticator

from zlink_nogil import _sync
from zlink_nogil.binding.keys import Keys

__all__ = ["ZAP_DOMAIN", "Authenticator"]

ZAP_DOMAIN: Final = b"zlink"
AT_ONCE: Final = 64

_log = logging.getLogger("zlink_nogil.binding")


class Authenticator:
    """A `Driver`. `on_death()` closes the listeners, on the leading thread."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._listed = {key.encode() for key in keys.peers.values()}
        self._zap = _ZmqAuthenticator(context)
        self._zap.start()
        self._zap.configure_curve_callback(ZAP_DOMAIN.decode(), self)
        self._wakeup = _sync.EventFd()
        self.on_death: Callable[[], None] = _no_listeners
        self._dead = False

    def callback(self, _domain: str, key: bytes) -> bool:
        """Asked by pyzmq: is the key on the list?"""
        return key in self._listed

    def descriptors(self) -> Collection[int]:
        if self._dead:
            return (self._wakeup.fileno(),)
        return self._wakeup.fileno(), cast(int, self._socket.getsockopt(zmq.FD))

    def wake(self) -> None:
        self._wakeup.set()

    @property
    def _socket(self) -> zmq.Socket[bytes]:
        socket = self._zap.zap_socket
        assert socket is not None, "it has been started"
        return cast("zmq.Socket[bytes]", socket)

    def rotate(self, _ready: Collection[int] | None = None, /) -> float | None:
        self._wakeup.clear()
        if self._dead:
            return None
        try:
            for _ in range(AT_ONCE):
                if not cast(int, self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                    return None
                self._answer(self._socket.recv_multipart(zmq.NOBLOCK))
        except Exception:
            _log.critical("the authenticator has failed: its listeners are closed", exc_info=True)
            self._dead = True
            self.on_death()
            self._zap.stop()  # connections whose questions nobody reads could not end
        return 0.0

    def _answer(self, asked: list[bytes]) -> None:
        try:
            self._zap.handle_zap_message(asked).send(None)
        except StopIteration:
            return
        raise RuntimeError("the authenticator waits for something")

    def close(self) -> None:
        """After it was removed from the stand-by."""
        self._zap.stop()
        self._wakeup.close()


def _no_listeners() -> None:
    """Until there are some."""
