"""What users hold: `Channel` and `NodeTarget` (design 4.1, 7)."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.errors import NotFound
from zlink_nogil.execution.call import REQUEST_TIMEOUT, SEND_TIMEOUT, Call, checked_timeout
from zlink_nogil.messaging.outbox import Message
from zlink_nogil.messaging.peers import Peer
from zlink_nogil.messaging.selection import Selector
from zlink_nogil.messaging.wire import NO_METADATA, NOBODY, Address, Kind, OwnerKind, pack_extras
from zlink_nogil.scheduler import Completion, Wait
from zlink_nogil.spots.annotations import message_name

if TYPE_CHECKING:
    from zlink_nogil.messaging.mesh import Mesh

__all__ = ["Channel", "NodeTarget", "Target"]


class Target(ABC):
    """Something messages can be sent to: `_choose` finds the node when a call begins, in `start_call`."""

    def __init__(self, start_call: Callable[[Message, Wait | None], Completion[Any]], channel: str) -> None:
        self._begin_call = start_call
        self._channel = channel

    @abstractmethod
    def _choose(self) -> Peer | None:
        """The node for one call, None for this very one."""

    def send(
        self,
        message: Any,
        *,
        key: str | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[None]:
        """A one-way message. Complete when the local socket took it; what happens at the other node is not known.

        `key` names the owner, on the chosen node, that keeps order; `timeout` in seconds (default 1) for the socket to
        take it; `metadata` str to bytes; `declared` the type that chooses the codec (default: the message's class);
        `name` the message name (default: the declared type's). Bad options raise `ValueError` or `TypeError` here.
        """
        return self._call(Kind.SEND, message, None, key, checked_timeout(timeout, SEND_TIMEOUT), metadata, declared, name)

    def request[R](
        self,
        message: Any,
        *,
        reply: type[R] | Any = Any,
        key: str | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, bytes] = NO_METADATA,
        declared: Any = None,
        name: str | None = None,
    ) -> Call[R]:
        """A message whose handler's return value comes back as `reply` (default: as decoded, unchecked).

        Options as in `send`; `timeout` (default 5) until the answer is here. Errors of the call: `NotFound` (no ready
        node, no such handler), `Unavailable` (the node is gone), `DeadlineExceeded`, `CapacityExceeded`,
        `ProtocolError`, `ShuttingDown`, and `InternalFailure` with the type and text of what the handler raised.
        """
        timeout = checked_timeout(timeout, REQUEST_TIMEOUT)
        return self._call(Kind.REQUEST, message, reply, key, timeout, metadata, declared, name)

    def _call(
        self,
        kind: Kind,
        value: Any,
        reply: Any,
        key: str | None,
        timeout: float,
        metadata: Mapping[str, bytes],
        declared: Any,
        name: str | None,
    ) -> Call[Any]:
        if key is not None and not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {type(key).__name__}")
        address = NOBODY if key is None else Address(OwnerKind.KEY, key)
        extras = pack_extras(address, metadata)
        declared = type(value) if declared is None else declared
        message = Message(
            self._choose,
            kind,
            self._channel,
            message_name(declared) if name is None else name,
            value,
            declared,
            reply,
            address,
            extras,
            timeout,
        )
        return Call(functools.partial(self._begin_call, message))


class Channel(Target):
    """A named channel of a mesh: calls go to one ready node that has handlers on it, chosen by weight. Thread-safe."""

    def __init__(self, mesh: Mesh, name: str) -> None:
        super().__init__(mesh.start_call, name)
        self.name = name
        self._mesh = mesh
        self._selector: Selector[Peer] | None = None

    def handler[F: Callable[..., Any]](self, function: F | None = None, *, name: str | None = None) -> Any:
        """Register `function(message, ctx)`, before the host starts; use as a decorator.

        The message name is the annotated type's, unless `name` is given; a return annotation other than None makes it a
        request handler. `TypeError` for what is no handler, `AlreadyExists` for a second one of the same message.
        """
        if function is None:
            return functools.partial(self.handler, name=name)
        self._mesh.register(self.name, function, name)
        return function

    def handlers[C: type[Any]](self, owner: C) -> C:
        """Register the methods of a class that `zlink_nogil.handler` marks; use as a decorator.

        An object is made for each message, in the message's own scope; its constructor's parameters come by type from
        `host.container`. Errors as for `handler`.
        """
        self._mesh.register_class(self.name, owner)
        return owner

    def filter[F: Filter](self, given: F) -> F:
        """Put `filter(message, ctx, call_next)`, plain or `async def`, around this channel's handlers; or a class of such.

        It returns what `call_next(message)` does, or something else; `call_next` is for one call. An `async def` awaits it.
        """
        self._mesh.add_filter(self.name, given)
        return given

    def set_weight(self, weight: int) -> None:
        """This node's share of the calls from now on, 0 for none; told to every node at once.

        What it has accepted goes on.
        """
        self._mesh.set_weight(self.name, weight)

    def wait_ready(self, nodes: int = 1, timeout: float = 5.0) -> None:
        """Block until `nodes` other nodes can be chosen; `DeadlineExceeded` after `timeout` seconds."""
        self._mesh.wait_for_channel(self.name, nodes, timeout)

    def _choose(self) -> Peer:
        selector = self._selector
        if selector is None:
            selector = self._selector = self._mesh.selector(self.name)
        peer = selector.choose()
        if peer is None:
            raise NotFound(f"no node is ready for channel {self.name!r}")
        return peer


class NodeTarget(Target):
    """One named node of a mesh (it may be this one): messages for the handlers registered with `Mesh.handler`."""

    def __init__(self, mesh: Mesh, node: str) -> None:
        super().__init__(mesh.start_call, "")
        self.node = node
        self._mesh = mesh

    def _choose(self) -> Peer | None:
        return self._mesh.peer(self.node)
