"""`Server` and `Client`: a ClientServer channel as users see it (design 4.1, 7).

Ownership
    handlers are registered before the host starts; `_node` is set once by `start`, `_state` moves under `_lock`
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from zlink_nogil import _sync
from zlink_nogil.binding import Keys
from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.errors import InvalidOperation
from zlink_nogil.messaging.channel import Target
from zlink_nogil.messaging.client import ClientNode
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.identity import check_exposure, checked_places
from zlink_nogil.messaging.liveness import check_liveness
from zlink_nogil.messaging.outbox import Message
from zlink_nogil.messaging.peers import Peer, checked_bind, checked_name, checked_weight
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.server import ServerNode
from zlink_nogil.scheduler import Completion, Wait

__all__ = ["Client", "Server"]


_log = logging.getLogger("zlink_nogil.messaging")


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    CLOSED = auto()


class _Closes(Protocol):
    def close(self, timeout: float) -> None: ...


class _Part[N: _Closes]:
    """Of a host: starts once, ends once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = _sync.Lock()
        self._fork = _sync.ForkGuard()
        self._state = _State.NEW
        self._node: N | None = None

    def _only_new(self, what: str) -> None:
        if self._state is not _State.NEW:
            raise InvalidOperation(f"{what} before the host starts")

    def _start(self, make: Callable[[], N], begin: Callable[[N], None]) -> None:
        with self._lock:
            self._only_new(f"{self._what} is started once,")
            self._node = make()
            self._state = _State.RUNNING  # first: if the start fails, the close takes back what was started
            begin(self._node)

    def close(self, timeout: float) -> None:
        """End, and never start afterwards; harmless a second time."""
        with self._lock:
            running = self._state is _State.RUNNING
            self._state = _State.CLOSED
        if running:
            self._running().close(timeout)

    def _running(self) -> N:
        """`InvalidOperation` before the start, and in a forked child (decision 16)."""
        if self._fork.inherited():
            raise InvalidOperation(f"{self._what} was made before a fork and cannot be used in the child")
        if self._node is None:
            raise InvalidOperation(f"{self._what} has not been started")
        return self._node


class Server(_Part[ServerNode]):
    """Made by `Host.server`. Thread-safe while it runs; registration belongs to the time before `Host.start`."""

    def __init__(
        self,
        name: str,
        bind: str,
        weight: int,
        node_id: str | None,
        advertise: str | None,
        keys: Keys | None,
        insecure: bool,
        handlers: Handlers,
    ) -> None:
        super().__init__(f"server {name!r}")
        self.name = checked_name("a channel name", name)
        self.node_id = checked_name("a node id", node_id or f"{name}-{secrets.token_hex(4)}")
        self._bind = checked_bind(bind, advertise)
        self._keys = keys
        self._exposed = check_exposure(bind, keys, insecure=insecure)
        self._weight = checked_weight(weight)
        self._advertise = advertise
        self._handlers = handlers

    def handler[F: Callable[..., Any]](self, function: F | None = None, *, name: str | None = None) -> Any:
        """Register a handler, as `Channel.handler`."""
        if function is None:
            return functools.partial(self.handler, name=name)
        self._only_new("handlers are registered")
        self._handlers.register(self.name, function, name)
        return function

    def handlers[C: type[Any]](self, owner: C) -> C:
        """Register a class of handlers, as `Channel.handlers`."""
        self._only_new("handlers are registered")
        self._handlers.register_class(self.name, owner)
        return owner

    def filter[F: Filter](self, given: F) -> F:
        """Put a filter around the handlers, as `Channel.filter`."""
        self._only_new("filters are added")
        self._handlers.filter(None, given)
        return given

    @property
    def endpoint(self) -> str:
        """Where clients reach it; `InvalidOperation` before the start."""
        return self._running().endpoint

    def set_weight(self, weight: int) -> None:
        """This server's share of the calls from now on; 0 takes it out of the lists, without ending what it has accepted."""
        self._weight = checked_weight(weight)
        if self._state is _State.RUNNING:
            self._running().set_weight(weight)

    def statistics(self) -> dict[str, int]:
        """Counts of this moment: clients, refused and malformed records, owners, answers that reached nobody."""
        return self._running().statistics()

    def start(self, resources: Resources) -> None:
        """By the host: bind and begin; `OSError` when the endpoint cannot be bound."""

        if self._exposed:
            _log.warning("server %r listens at %s without keys: whoever reaches it may speak", self.name, self._bind)

        def make() -> ServerNode:
            self._handlers.seal(resources.container, resources.filters)
            return ServerNode(
                self.name, self.node_id, self._bind, self._advertise, self._weight, self._keys, self._handlers, resources
            )

        self._start(make, ServerNode.start)

    def leave(self, timeout: float) -> None:
        """By the host: be chosen no more, and finish what was accepted."""
        with self._lock:
            running = self._state is _State.RUNNING
        if running:
            self._running().leave(timeout)


class Client(_Part[ClientNode], Target):
    """Made by `Host.client`. Each call goes to one ready server, chosen by weight; in order per server. Thread-safe.

    A call that finds no server ready waits for one, at most 5 s and within its own time; then it is `Unavailable`.
    """

    def __init__(
        self,
        name: str,
        servers: list[str] | Mapping[str, str],
        node_id: str | None,
        keys: Keys | None,
        liveness: tuple[float, float],
    ) -> None:
        _Part.__init__(self, f"client {name!r}")
        Target.__init__(self, self._start_call, checked_name("a channel name", name))
        self.name = name
        self.node_id = checked_name("a node id", node_id or f"{name}-{secrets.token_hex(4)}")
        if not servers:
            raise ValueError("a client needs the endpoint of a server")
        self._servers = checked_places("servers", servers, keys)
        if len(self._servers) != len(servers):
            raise ValueError("a server is named twice")
        self._keys = keys
        self._liveness = check_liveness(*liveness)

    def servers(self) -> list[str]:
        """The ids of the servers that are ready now."""
        return sorted(self._running().servers.ready)

    def wait_ready(self, servers: int | None = None, timeout: float = 5.0) -> None:
        """Block until `servers` of them (default: all) are ready; `DeadlineExceeded` after `timeout` seconds."""
        wanted = len(self._servers) if servers is None else servers
        found = self._running().servers
        found.watchers.wait(
            lambda: len(found.ready) >= wanted,
            timeout,
            lambda: f"{wanted} server(s) of channel {self.name!r} are not ready (ready: {self.servers() or 'none'})",
        )

    def statistics(self) -> dict[str, int]:
        """Counts of this moment: pending and late operations, malformed records, ready servers."""
        node = self._running()
        return {**node.operations.counts(), "malformed": node.malformed, "servers": len(node.servers.ready)}

    def _choose(self) -> Peer:
        return self._running().choose()

    def _start_call(self, message: Message, how: Wait | None) -> Completion[Any]:
        return self._running().start_call(message, how)

    def start(self, resources: Resources) -> None:
        """By the host."""
        self._start(
            lambda: ClientNode(self.name, self.node_id, self._keys, self._liveness, resources),
            lambda node: node.start(self._servers),
        )
