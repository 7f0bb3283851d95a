"""`Mesh`: what a host takes part in, as users see it (design 7).

Ownership
    configuration (`_channels`, handlers) is written before the host starts; `_node` is set once by `start`; `_state`,
    `_weights` and `_draining` change under `_lock`
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from zlink_nogil import _sync
from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.errors import InvalidOperation, NotFound
from zlink_nogil.messaging.channel import Channel, NodeTarget
from zlink_nogil.messaging.direct import Direct
from zlink_nogil.messaging.handlers import Handlers
from zlink_nogil.messaging.keeper import maker_channel
from zlink_nogil.messaging.membership import Membership
from zlink_nogil.messaging.node import Node
from zlink_nogil.messaging.outbox import Message
from zlink_nogil.messaging.peers import (
    DEFAULT_WEIGHT,
    Peer,
    checked_name,
    checked_weight,
)
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.selection import Selector
from zlink_nogil.scheduler import Completion, Wait

__all__ = ["Mesh"]


_log = logging.getLogger("zlink_nogil.messaging")


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    CLOSED = auto()


class Mesh:
    """Made by `Host.mesh`. Calls and waits are thread-safe; registration belongs to the time before `Host.start`."""

    def __init__(self, membership: Membership, handlers: Handlers) -> None:
        self.name = membership.mesh
        self.node_id = membership.node_id
        self.keeper = membership.keeper
        self._membership = membership
        self._handlers = handlers
        self._channels: dict[str, Channel] = {}
        self._weights: dict[str, int] = {}
        self._offered: set[str] = set()
        self._makers: dict[str, int] = {}
        self._draining = False
        self._lock = _sync.Lock()
        self._state = _State.NEW
        self._node: Node | None = None

    # -- before the start -------------------------------------------------------------------------------------------

    def channel(self, name: str, weight: int | None = None) -> Channel:
        """The channel `name`. `weight` (default 100, 0 for none) is this node's share of the calls to its handlers."""
        if checked_name("a channel name", name).startswith("$"):
            raise ValueError(f"names that begin with $ are the runtime's own, not {name!r}")
        if weight is not None:
            self._only_new("weights are set")
            self._weights[name] = checked_weight(weight)
        return self._channels.setdefault(name, Channel(self, name))

    def handler[F: Callable[..., Any]](self, function: F | None = None, *, name: str | None = None) -> Any:
        """Register a handler of messages to this node by name (`Mesh.node`); see `Channel.handler`."""
        if function is None:
            return functools.partial(self.handler, name=name)
        self.register("", function, name)
        return function

    def register(self, channel: str, function: Callable[..., Any], name: str | None) -> None:
        self._only_new("handlers are registered")
        self._handlers.register(channel, function, name)

    def register_class(self, channel: str, owner: type[Any]) -> None:
        self._only_new("handlers are registered")
        self._handlers.register_class(channel, owner)

    def filter[F: Filter](self, given: F) -> F:
        """Put a filter around all handlers of this mesh; see `Channel.filter`."""
        self.add_filter(None, given)
        return given

    def add_filter(self, channel: str | None, given: Filter) -> None:
        self._only_new("filters are added")
        self._handlers.filter(channel, given)

    def _only_new(self, what: str) -> None:
        if self._state is not _State.NEW:
            raise InvalidOperation(f"{what} before the host starts")

    def _offers(self) -> dict[str, int]:
        """Each channel's weight: none while draining."""
        offers = {name: self._weights.get(name, DEFAULT_WEIGHT) for name in self._offered} | self._makers
        return dict.fromkeys(offers, 0) if self._draining else offers

    def set_weight(self, channel: str, weight: int) -> None:
        """This node's share of the calls to `channel`, at any time; see `Channel.set_weight`."""
        checked_weight(weight)
        with self._lock:
            self._weights[channel] = weight
            self._tell_offers()

    def set_draining(self, draining: bool) -> None:
        """Be in nobody's candidate lists, for calls and for new Spots and Actors, until it is taken back."""
        with self._lock:
            self._draining = draining
            self._tell_offers()

    def _tell_offers(self) -> None:
        """Under the lock, which keeps the order."""
        if self._state is _State.RUNNING:
            self._running().topology.offer(self._offers())

    # -- while it runs ----------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where other nodes reach this one; `InvalidOperation` before the start."""
        return self._running().me.data_endpoint

    def node(self, node_id: str) -> NodeTarget:
        """The node with this id, which may be this very one."""
        return NodeTarget(self, node_id)

    def nodes(self) -> list[str]:
        """The ids of the other nodes that are ready now."""
        return sorted(self._running().topology.candidates.ready)

    def peer(self, node_id: str) -> Peer | None:
        """The view of a ready node, None for this one; `NotFound` when it is not ready."""
        if node_id == self.node_id:
            return None
        peer = _sync.look_up(self._running().topology.candidates.ready, node_id)
        if peer is None:
            raise NotFound(f"node {node_id!r} is not ready")
        return peer

    def selector(self, channel: str) -> Selector[Peer]:
        return self._running().topology.candidates.selector(channel)

    @property
    def direct(self) -> Direct:
        """The way to Spots and Actors of this mesh."""
        direct = self._running().direct
        assert direct is not None, "asked for by who gave the mesh a keeper"
        return direct

    def start_call(self, message: Message, how: Wait | None) -> Completion[Any]:
        return self._running().outbox.start(message, how)

    def wait_ready(self, timeout: float) -> None:
        """Block until every node named in `peers` is ready; `DeadlineExceeded` after `timeout` seconds."""
        topology = self._running().topology
        topology.candidates.wait(topology.static_endpoints_ready, timeout, f"the peers of mesh {self.name!r} are")

    def wait_for_channel(self, channel: str, nodes: int, timeout: float) -> None:
        self._running().topology.candidates.wait(
            lambda ready: sum(1 for peer in ready.values() if peer.channels.get(channel)) >= nodes,
            timeout,
            f"{nodes} node(s) for channel {channel!r} are",
        )

    def statistics(self) -> dict[str, int]:
        """Counts of this moment: pending and late operations, refused and malformed records, owners, dropped answers.

        And `given_up`: nodes that told of themselves, and never were ready.
        """
        node = self._running()
        counts = {"refused": 0, "malformed": 0, **node.inbox.counts, **node.operations.counts()}
        counts["malformed"] += node.completions.malformed
        counts["given_up"] = node.topology.given_up
        return {**counts, "owners": len(node.owners), "dropped_replies": node.replies.dropped()}

    # -- by the host ------------------------------------------------------------------------------------------------

    def start(self, resources: Resources) -> None:
        """Bind and begin; `OSError` when the endpoint cannot be bound."""
        if self._membership.exposed:
            place = self._membership.bind
            _log.warning("mesh %r listens at %s without keys: whoever reaches it may speak", self.name, place)
        with self._lock:
            if self._state is not _State.NEW:
                raise InvalidOperation(f"mesh {self.name!r} was started before")
            self._handlers.seal(resources.container, resources.filters)
            self._offered = self._handlers.channels() - {""}
            self._makers = {} if self.keeper is None else _maker_channels(resources)
            self._node = Node(self._membership, self._offers(), self._handlers, resources)
            self._state = _State.RUNNING  # first: if the start fails, the close takes back what was started
            self._node.start(self._membership.peers)  # under the lock: so does a close that comes now

    def leave(self, timeout: float) -> None:
        """Be chosen no more, and finish what was accepted; calls of this node still go out."""
        with self._lock:
            node = self._node if self._state is _State.RUNNING else None
        if node is not None:
            node.leave(timeout)

    def close(self, timeout: float) -> None:
        """End, after `leave`, and never start afterwards; harmless a second time."""
        with self._lock:
            running = self._state is _State.RUNNING
            self._state = _State.CLOSED
            node = self._node
        if running:
            assert node is not None, "a running mesh has a node"
            node.close(timeout)

    def _running(self) -> Node:
        """The node, also while handlers finish during the close; `ShuttingDown` afterwards."""
        node = self._node
        if node is None:
            raise InvalidOperation(f"mesh {self.name!r} has not been started")
        node.check_usable()
        return node


def _maker_channels(resources: Resources) -> dict[str, int]:
    return {
        maker_channel(kind, beginning): DEFAULT_WEIGHT
        for kind, directory in resources.directories.items()
        for beginning in directory.beginnings()
    }
