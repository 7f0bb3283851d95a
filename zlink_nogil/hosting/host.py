"""`Host`: one process's part in its meshes (design 4.7, 7).

Guarantees
    `start` either starts everything or leaves nothing running. `close`: 1. servers and nodes leave the lists and finish what
    came from there, 2. Actors, then Spots, end - their last messages still go out -, 3. servers, nodes and clients end, 4.
    the pool, if it is the host's own. A second close is harmless. In the main thread Ctrl-C is deferred around
    critical sections while the host runs (decision 15).

Ownership
    `_state` moves under `_lock`; `_meshes`, `_servers`, `_clients` are written before the start
"""

from __future__ import annotations

import gc
import logging
import secrets
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, Self

from zlink_nogil import _sync
from zlink_nogil.binding import Keys
from zlink_nogil.dependencies import Container
from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.errors import AlreadyExists, DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.execution import ExecutionLanePolicy
from zlink_nogil.hosting.stopping import Stops, put_off_interrupts, sigterm_calls
from zlink_nogil.messaging import Client, Codecs, LocationStore, MemoryLocationStore, Mesh, Server
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.identity import checked_places
from zlink_nogil.messaging.ingress import Ingress
from zlink_nogil.messaging.liveness import DEAD_AFTER, PROBE_INTERVAL
from zlink_nogil.messaging.membership import Membership
from zlink_nogil.messaging.operation import Slots, process_slots
from zlink_nogil.messaging.peers import DEFAULT_WEIGHT
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.tracing import Tracer, Tracing
from zlink_nogil.messaging.wire import OwnerKind
from zlink_nogil.scheduler import WorkerPool, default_pool, default_standby, interrupts
from zlink_nogil.scheduler.spawning import spawn
from zlink_nogil.spots import ActorInspection, Actors, SpotInspection, Spots

__all__ = ["Host", "HostInspection"]

DEFAULT_MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
LEAST_MAX_RECORD_BYTES: Final = 64 * 1024
DEFAULT_CLOSE_TIMEOUT: Final = 5.0

_log = logging.getLogger("zlink_nogil.hosting")


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    CLOSED = auto()


_TRANSITIONS = frozenset({(_State.NEW, _State.RUNNING), (_State.NEW, _State.CLOSED), (_State.RUNNING, _State.CLOSED)})


@dataclass(frozen=True, slots=True)
class HostInspection:
    spots: tuple[SpotInspection, ...]
    actors: tuple[ActorInspection, ...]


class Host:
    """Build it, give it meshes and handlers, then `with host:` or `start` ... `close`.

    `workers` (default: the process's pool, a worker per CPU) makes a pool of the host's own;
    `max_queued_application_jobs` bounds jobs accepted and not started; `max_pending_operations` operations in flight
    (default: 4,096, shared by the process); `max_record_bytes` one record, header included; `policy` the owners' queues;
    `gc_freeze` moves what exists at the start out of the collector's sight, and `gc_threshold` is `gc.set_threshold`'s
    first value (a full collection stops every thread). Bad values raise `ValueError`.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        max_queued_application_jobs: int = 4096,
        max_pending_operations: int | None = None,
        max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
        policy: ExecutionLanePolicy | None = None,
        gc_freeze: bool = False,
        gc_threshold: int | None = None,
    ) -> None:
        if max_record_bytes < LEAST_MAX_RECORD_BYTES:
            raise ValueError(f"max_record_bytes must be at least {LEAST_MAX_RECORD_BYTES}, not {max_record_bytes}")
        self.codecs = Codecs()
        self.container = Container()
        self._filters: list[Filter] = []
        self._own_pool = None if workers is None else WorkerPool(workers, "zlink-host")
        self._permits = Permits(max_queued_application_jobs)
        self._slots = process_slots if max_pending_operations is None else Slots(max_pending_operations)
        self._max_record_bytes = max_record_bytes
        self._policy = policy or ExecutionLanePolicy()
        self._gc_freeze = gc_freeze
        self._gc_threshold = gc_threshold
        self._meshes: dict[str, Mesh] = {}
        self._servers: dict[str, Server] = {}
        self._clients: dict[str, Client] = {}
        self.spots = Spots(self._pool, self._policy, self._policy)
        self.actors = Actors(self._pool, self._policy)
        self.spots.actors, self.actors.spots = self.actors, self.spots
        self._lock = _sync.Lock()
        self._state = _State.NEW
        self._ingress: Ingress | None = None
        self._tracer = Tracer()
        self._stop = _sync.Parker()
        self._closed = _sync.Event()
        self._deferring = False
        self._fork = _sync.ForkGuard()

    def mesh(
        self,
        name: str,
        *,
        bind: str = "tcp://127.0.0.1:0",
        peers: Iterable[str] | Mapping[str, str] = (),
        node_id: str | None = None,
        advertise: str | None = None,
        probe_interval: float = PROBE_INTERVAL,
        dead_after: float = DEAD_AFTER,
        keys: Keys | None = None,
        insecure: bool = False,
        locations: str | None = None,
        location_store: LocationStore | None = None,
    ) -> Mesh:
        """Take part in the mesh `name`.

        `bind` is where other nodes reach this one (port 0: the system's choice, see `Mesh.endpoint`), `peers` some of the
        other nodes' endpoints - one that names us is found by itself -, `node_id` this node's name in the mesh, and
        `advertise` the host name others use when `bind` is a wildcard. `ValueError`, or `AlreadyExists` for a second
        mesh of that name.

        A node that is silent for `probe_interval` seconds is asked whether it is there, and given up when nothing at all was
        heard of it for `dead_after` seconds: what is pending there ends as `Unavailable`.

        With `keys` everything is encrypted, only nodes whose public keys are in `keys.peers` are let in, each under its own
        id, and `peers` maps node ids to endpoints. Without, `bind` beyond loopback needs `insecure=True`.

        With `locations`, the id of the node that keeps them, the host's Spots and Actors are those of the whole mesh: one
        per id, called wherever it is. One mesh of a host may have it. `location_store` is what the keeper keeps them in
        (default: its memory).
        """
        self._check_new_part("mesh", name, self._meshes)
        if locations is not None and any(mesh.keeper is not None for mesh in self._meshes.values()):
            raise AlreadyExists("another mesh of the host keeps locations already")
        membership = Membership(
            mesh=name,
            node_id=node_id or f"{name}-{secrets.token_hex(4)}",
            bind=bind,
            advertise=advertise,
            peers=checked_places("peers", peers, keys),
            liveness=(probe_interval, dead_after),
            keys=keys,
            insecure=insecure,
            keeper=locations,
            store=MemoryLocationStore() if location_store is None else location_store,
        )
        mesh = self._meshes[name] = Mesh(membership, Handlers(self.codecs))
        return mesh

    def server(
        self,
        name: str,
        *,
        bind: str = "tcp://127.0.0.1:0",
        weight: int = DEFAULT_WEIGHT,
        node_id: str | None = None,
        advertise: str | None = None,
        keys: Keys | None = None,
        insecure: bool = False,
    ) -> Server:
        """Serve the ClientServer channel `name`, with `weight` as this server's share; the others as for `mesh`.

        `ValueError`, or `AlreadyExists` for a second server of that name.
        """
        self._check_new_part("server", name, self._servers)
        server = self._servers[name] = Server(name, bind, weight, node_id, advertise, keys, insecure, Handlers(self.codecs))
        return server

    def client(
        self,
        name: str,
        *,
        servers: Iterable[str] | Mapping[str, str],
        node_id: str | None = None,
        keys: Keys | None = None,
        probe_interval: float = PROBE_INTERVAL,
        dead_after: float = DEAD_AFTER,
    ) -> Client:
        """Call the ClientServer channel `name` at `servers`, their endpoints; `node_id` is this client's name.

        With `keys`, `servers` maps their ids to their endpoints; `probe_interval` and `dead_after` as for `mesh`.

        `ValueError`, or `AlreadyExists` for a second client of that name.
        """
        self._check_new_part("client", name, self._clients)
        client = self._clients[name] = Client(
            name, servers if isinstance(servers, Mapping) else list(servers), node_id, keys, (probe_interval, dead_after)
        )
        return client

    def filter[F: Filter](self, given: F) -> F:
        """Put a filter around every handler of this host: of channels, of nodes, of Spots and Actors; see `Channel.filter`.

        Where `ctx.channel` is None the message is for the Actor `ctx.actor_id` or, if that is None, the Spot `ctx.spot_id`.
        """
        if self._state is not _State.NEW:
            raise InvalidOperation("filters are added before the host starts")
        self._filters.append(given)
        return given

    def _check_new_part(self, what: str, name: str, known: Mapping[str, object]) -> None:
        if self._state is not _State.NEW:
            raise InvalidOperation(f"a {what} is added before the host starts")
        if name in known:
            raise AlreadyExists(f"the host has a {what} {name!r} already")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._fork.inherited():  # a forked child leaves the parent's host alone
            self.close()

    def start(self) -> None:
        """Bind, and begin to receive. `OSError` when an endpoint cannot be bound; nothing runs then."""
        with self._lock:
            self._move(_State.RUNNING)
            standby, pool = default_standby(), self._pool()
            ingress = self._ingress = Ingress(self._permits, standby, pool, self._tracer)
            resources = Resources(
                pool,
                standby,
                self._permits,
                self._slots,
                self.codecs,
                self._policy,
                self._max_record_bytes,
                ingress,
                self.container,
                self._filters,
                {OwnerKind.SPOT: self.spots, OwnerKind.ACTOR: self.actors},
                self._tracer,
            )
        self._deferring = interrupts.install()
        try:
            self._tracer.start_if_asked()
            self.container.seal()
            for directory in (self.spots, self.actors):
                directory.plan(self.container, self._filters)
            for mesh in self._meshes.values():
                mesh.start(resources)
                if mesh.keeper is not None:
                    self.spots.elsewhere = self.actors.elsewhere = mesh.direct
            self.spots.start()
            self.actors.start()
            parts: list[Server | Client] = [*self._servers.values(), *self._clients.values()]
            for part in parts:
                part.start(resources)
        except BaseException:
            self.close(0.1)
            raise
        if self._gc_threshold is not None:
            gc.set_threshold(self._gc_threshold)
        if self._gc_freeze:
            gc.freeze()

    def trace(self, path: str | Path, *, sample: int = 1) -> Tracing:
        """Write what happens to every `sample`-th message that is sent here, and to those that others sample, until `close`.

        `tools/trace_report.py` reads it; `messaging/tracing.py` says what is in it. The same as `ZLINK_TRACE=path` and
        `ZLINK_TRACE_SAMPLE=n` from the start on, but for the file's name: there it is `path-PID-N.jsonl`, N by host.
        `InvalidOperation` while there is a trace already, `ValueError` for a bad `sample`, `OSError` for a bad path.
        """
        return self._tracer.start(Path(path), sample)

    def wait_ready(self, timeout: float = 5.0) -> None:
        """Block until every node named in `peers` is ready, both ways, and every server of every client.

        `DeadlineExceeded` after `timeout` seconds.
        """
        deadline = _sync.monotonic() + timeout
        for mesh in self._meshes.values():
            mesh.wait_ready(max(0.0, deadline - _sync.monotonic()))
        for client in self._clients.values():
            client.wait_ready(timeout=max(0.0, deadline - _sync.monotonic()))

    def drain(self, timeout: float = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Leave the candidate lists, finish accepted work within `timeout` seconds, then stop. The same as `close`."""
        self.close(timeout)

    def close(self, timeout: float = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Stop. Every pending completion gets its one outcome. Harmless a second time (and then waits for the first).

        Ctrl-C during the close is told when it is over. Not on one of the host's workers: `InvalidOperation`, as in a
        forked child.
        """
        if self._fork.inherited():
            raise InvalidOperation("the host was started before a fork and cannot be used in the child")
        if self._pool().is_worker():
            raise InvalidOperation("a host cannot be closed by one of its own workers")
        interrupted = Stops()
        with put_off_interrupts(interrupted):
            with self._lock:
                first = self._state is not _State.CLOSED
                if first:
                    self._move(_State.CLOSED)
            try:
                if first:
                    self._close(timeout)
                self._closed.wait()
            finally:
                if self._deferring and _sync.current_thread() is _sync.main_thread():
                    self._deferring = False
                    interrupts.restore()
        if interrupted.seen:
            signal.raise_signal(signal.SIGINT)

    def _close(self, timeout: float) -> None:
        deadline = _sync.monotonic() + timeout
        try:
            serving: list[Server | Mesh] = [*self._servers.values(), *self._meshes.values()]
            for part in serving:
                part.leave(max(0.0, deadline - _sync.monotonic()))
            self._close_owners(max(0.1, deadline - _sync.monotonic()))
            everything: list[Server | Mesh | Client] = [*serving, *self._clients.values()]
            for end in everything:
                end.close(max(0.1, deadline - _sync.monotonic()))
            if self._ingress is not None:
                self._ingress.close()
            if self._own_pool is not None:
                self._own_pool.close(max(0.1, timeout))
        except DeadlineExceeded as error:
            _log.error("closed with work still running: %s", error)
        finally:
            self.container.close()
            self._tracer.close()
            self._stop.unpark()
            self._closed.set()

    def _close_owners(self, timeout: float) -> None:
        self.actors.refuse_creations()
        self.spots.refuse_creations()
        if len(self.actors) or len(self.spots):
            ending = self._end_owners(timeout)
            try:
                errors = spawn(ending, pool=self._pool()).result()
            except ShuttingDown as closed:  # the pool was closed before the host: nobody is left to run their last turns
                ending.close()
                errors = [closed]
            for error in errors:
                _log.error("closing with work still running: %s", error)

    async def _end_owners(self, timeout: float) -> list[BaseException]:
        return [*await self.actors.end_all(timeout), *await self.spots.end_all(timeout)]

    def inspect(self) -> HostInspection:
        """Every Spot and Actor: their queues, bytes reserved, who holds a turn and since when, what is suspended.

        Each at a moment of its own.
        """
        return HostInspection(tuple(self.spots.inspect()), tuple(self.actors.inspect()))

    def serve_forever(self, announce: Callable[[], object] | None = None) -> None:
        """Block until SIGTERM, SIGINT or `close`, then drain. A second signal of the same kind ends the process at once.

        `announce()` is called as soon as these signals drain. They are handled in the main thread only.
        """
        interrupted = Stops(most=1)
        with sigterm_calls(self._stop.unpark):
            try:
                if announce is not None:
                    announce()
                interrupts.park(self._stop)
            except KeyboardInterrupt:
                interrupted.seen = 1
                _log.info("interrupted: draining")
            finally:
                with put_off_interrupts(interrupted):
                    self.drain()

    @property
    def meshes(self) -> Sequence[Mesh]:
        return tuple(self._meshes.values())

    @property
    def servers(self) -> Sequence[Server]:
        return tuple(self._servers.values())

    def _pool(self) -> WorkerPool:
        return self._own_pool or default_pool()

    def _move(self, state: _State) -> None:
        if (self._state, state) not in _TRANSITIONS:
            raise InvalidOperation(f"the host is {self._state.name.lower()} and cannot become {state.name.lower()}")
        self._state = state
