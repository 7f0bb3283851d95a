"""`Node`: one mesh of one running host - its sockets, its tables, and the order in which they end.

Closing order (decision 17), asserted by the steps' own lifecycles:

    1. no node chooses us any more (farewells) and nothing new is accepted from one, 2. owners finish what was accepted,
    and what that creates on this node, 3. no new operations, the pending ones end, 4. both roles are taken back from
    whoever leads, 5. sockets are closed, 6. the context ends.

Ownership
    every field is set by `__init__` and read-only afterwards
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final

from zlink_nogil import _sync
from zlink_nogil.binding import Context, InSocket, OutSocket
from zlink_nogil.errors import DeadlineExceeded, InvalidOperation, ShuttingDown
from zlink_nogil.messaging.direct import Direct
from zlink_nogil.messaging.doors import Doors
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.identity import Identity
from zlink_nogil.messaging.inbox import Inbox
from zlink_nogil.messaging.keeper import Keeper
from zlink_nogil.messaging.locations import CHANNEL
from zlink_nogil.messaging.membership import Membership
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.outbox import Outbox
from zlink_nogil.messaging.owners import Owners
from zlink_nogil.messaging.peers import Introduction, reachable
from zlink_nogil.messaging.port import MeshPort
from zlink_nogil.messaging.ranks import Rank
from zlink_nogil.messaging.replies import CompletionIngress, Replies
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.topology import Topology
from zlink_nogil.state import StateLane

__all__ = ["Node"]

FAREWELL: Final = 1.0
"""Seconds a closing node waits at most for the others to have sent their last records."""

_log = logging.getLogger("zlink_nogil.messaging")


class Node:
    def __init__(
        self, membership: Membership, channels: Mapping[str, int], handlers: Handlers, resources: Resources
    ) -> None:
        """Bind and connect nothing yet. `OSError` when `bind` is not possible; nothing is left open then."""
        self._resources = resources
        self.pool = resources.pool
        self._fork = _sync.ForkGuard()
        most = resources.max_record_bytes
        bind, advertise, node_id = membership.bind, membership.advertise, membership.node_id
        self._context = Context(membership.keys)
        self._authenticator = self._context.authenticator()
        bound: list[InSocket] = []
        try:
            bound.append(InSocket(self._context, bind, most))
            bound.append(InSocket(self._context, _any_port(bind), most))
        except OSError:
            for socket in bound:
                socket.close()
            self._end_context()
            raise
        self._data_in, self._completion_in = bound
        if self._authenticator is not None:
            self._authenticator.on_death = self._stop_listening
        identity = Identity(membership.keys)
        generation = secrets.randbits(63) | 1
        self.me = Introduction(
            membership.mesh,
            node_id,
            generation,
            reachable(self._data_in.endpoint, advertise),
            reachable(self._completion_in.endpoint, advertise),
            channels,
            most,
        )
        name = f"{membership.mesh}/{node_id}"
        wake = resources.ingress.wake
        lane = StateLane(f"operations {name}", rank=Rank.SOCKET)
        data_out = OutSocket(self._context, lane, node_id.encode(), most, wake)
        replies_lane = StateLane(f"replies {name}", rank=Rank.SOCKET)
        self._completion_wakeup = _sync.EventFd()
        self._completion_out = OutSocket(self._context, replies_lane, node_id.encode(), most, self._completion_wakeup.set)
        permits = resources.permits
        self.operations = Operations(lane, data_out, resources.slots, resources.pool, wake)
        self.owners = Owners(resources.pool, resources.policy, permits.most + 1)  # all that may wait, and the one that runs
        keeper = membership.keeper
        directories = {} if keeper is None else resources.directories
        doors = Doors(directories, resources.codecs, permits, most)
        self.inbox = Inbox(generation, handlers, self.owners, doors, permits, most)
        self.replies = Replies(self._completion_out)
        self.topology = Topology(self.me, self.operations, self._completion_out, identity, *membership.liveness)
        self.outbox = Outbox(self.me, self.operations, self.inbox, resources)
        self.direct = None if keeper is None else Direct(self, keeper, directories)
        if self.direct is not None:
            self.operations.refused = self.direct.refused
            self.topology.candidates.on_change = self.direct.look_for_keeper
        if keeper == node_id:
            kept = Keeper(membership.store, lambda: self.topology.me, lambda: self.topology.candidates.ready)
            for handler in kept.handlers():
                handlers.register(CHANNEL, handler, None)
        self._port = MeshPort(self._data_in, self.inbox, self.operations, self.topology, self.replies)
        self.completions = CompletionIngress(
            self._completion_in, generation, self.operations, self.replies, self.topology, self._completion_wakeup
        )

    def check_usable(self) -> None:
        """`InvalidOperation` in a forked child (decision 16), `ShuttingDown` once operations are refused."""
        if self._fork.inherited():
            raise InvalidOperation(f"node {self.me.node!r} was started before a fork and cannot be used in the child")
        if self.operations.closed:
            raise ShuttingDown(f"mesh {self.me.mesh!r} is closed")

    def _stop_listening(self) -> None:
        """From the authenticator's thread: each socket's own leader closes it to new connections."""
        self._data_in.stop_listening()
        self._completion_in.stop_listening()
        self._resources.ingress.wake()
        self.completions.wake()

    def _end_context(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.end()

    def start(self, peers: Mapping[str, str | None]) -> None:
        """Begin to receive, and to pair with the nodes at these endpoints, by their ids where those are known."""
        standby = self._resources.standby
        if self._authenticator is not None:
            standby.add(self._authenticator)
        self.operations.role = standby.add(self.completions)
        self._resources.ingress.add(self._port)
        self.topology.connect(peers)

    def leave(self, timeout: float) -> None:
        """Steps 1 and 2 of the closing order: be chosen no more, and finish what was accepted within `timeout` seconds."""
        deadline = _sync.monotonic() + timeout
        self.topology.leave(min(FAREWELL, timeout))
        self.inbox.refuse_new()
        self.owners.drain(deadline)

    def close(self, timeout: float) -> None:
        """After `leave`: the rest of the closing order; what is accepted has `timeout` seconds, never less than a moment."""
        deadline = _sync.monotonic() + timeout
        try:
            self.owners.close(max(0.1, deadline - _sync.monotonic()))
        except DeadlineExceeded as error:
            _log.error("closing with work still running: %s", error)
        self.operations.close()
        standby = self._resources.standby
        self._resources.ingress.remove(self._port)
        standby.remove(self.completions)
        self.topology.forget_unready()
        linger = max(0.1, deadline - _sync.monotonic())
        for out in (self.operations.out, self._completion_out):
            out.run(out.close, linger)
        self.topology.lane.close()
        self._data_in.close()
        self._completion_in.close()
        if self._authenticator is not None:
            standby.remove(self._authenticator)
        self._end_context()
        self._completion_wakeup.close()


def _any_port(endpoint: str) -> str:
    """The same address with a port of the system's choice, for the second bound socket."""
    if endpoint.startswith("ipc://"):
        return endpoint + ".completions"
    address, _, _ = endpoint.rpartition(":")
    return f"{address}:0"
