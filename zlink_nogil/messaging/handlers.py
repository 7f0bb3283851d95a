"""Registered handlers, and the plan made from their annotations at registration (design 4.7, 7).

Ownership
    `Handlers._by_name` is replaced under `_lock`, never changed; `_routes` is a cache with atomic single operations
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from zlink_nogil import _sync
from zlink_nogil.dependencies import Container
from zlink_nogil.dependencies.filters import Filter
from zlink_nogil.errors import AlreadyExists, NotFound, ZLinkError
from zlink_nogil.messaging.codecs import Codec, Codecs
from zlink_nogil.messaging.dispatch import Dispatch, plan_dispatch
from zlink_nogil.messaging.wire import unpack_route
from zlink_nogil.spots.annotations import message_name, read_annotations
from zlink_nogil.spots.handlers import marked_handlers

__all__ = ["Handler", "Handlers", "Route"]

MOST_ROUTES: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """`function(message, ctx)`, plain or `async def`; `reply_type` None makes it a send handler.

    `owner` is the class whose method it is; `dispatch` what it needs besides, None for nothing.
    """

    channel: str
    message_name: str
    message_type: Any
    reply_type: Any
    function: Callable[..., Any]
    owner: type[Any] | None
    dispatch: Dispatch | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """What a record's route leads to."""

    handler: Handler
    codec: Codec
    reply_codec: Codec | None


def plan(channel: str, function: Callable[..., Any], name: str | None, owner: type[Any] | None) -> Handler:
    """Read the annotations once. `TypeError` naming the function when it is no handler."""
    message_type, reply_type = read_annotations(function, method=owner is not None, more=True)
    return Handler(channel, name or message_name(message_type), message_type, reply_type, function, owner)


class Handlers:
    """The handlers of one mesh. Thread-safe."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        self._lock = _sync.Lock()
        self._by_name: Mapping[tuple[str, str], Handler] = {}
        self._routes: dict[bytes, Route] = {}
        self._filters: tuple[tuple[str | None, Filter], ...] = ()

    def register_class(self, channel: str, owner: type[Any]) -> None:
        """Every method that `handler` marks; an object is made for each dispatch."""
        found = list(marked_handlers(owner))
        if not found:
            raise TypeError(f"{owner.__qualname__} has no method that is marked as a handler")
        for function, name in found:
            self.register(channel, function, name, owner)

    def filter(self, channel: str | None, given: Filter) -> None:
        """Around the handlers of one channel, or (None) of all."""
        if not callable(given):
            raise TypeError(f"a filter is a function or a class, not {given!r}")
        self._filters = (*self._filters, (channel, given))

    def seal(self, container: Container, outer: Sequence[Filter]) -> None:
        """When the host starts: decide how each is dispatched, the filters of the host outermost. `NotConfigured`."""
        sealed = {}
        for key, handler in self._by_name.items():
            inner = [given for channel, given in self._filters if channel is None]
            inner += [given for channel, given in self._filters if channel == handler.channel]
            filters = [] if handler.channel.startswith("$") else [*outer, *inner]
            dispatch = plan_dispatch(container, handler.function, handler.owner, filters)
            sealed[key] = replace(handler, dispatch=dispatch)
        self._by_name = sealed

    def register(self, channel: str, function: Callable[..., Any], name: str | None, owner: type[Any] | None = None) -> None:
        """`TypeError` for what is no handler, `AlreadyExists` for a second one of the same message."""
        handler = plan(channel, function, name, owner)
        key = (channel, handler.message_name)
        with self._lock:
            if key in self._by_name:
                raise AlreadyExists(f"channel {channel!r} has a handler for {handler.message_name!r} already")
            self._by_name = {**self._by_name, key: handler}

    def route(self, encoded: bytes) -> Route:
        """What the route bytes of a header lead to; `NotFound` or `ProtocolError`. Constant time, nothing decoded twice."""
        route = _sync.look_up(self._routes, encoded)
        if route is None:
            content_type, channel, name = unpack_route(encoded)
            handler = _sync.look_up(self._by_name, (channel, name)) if name else self._only(channel)
            if handler is None:
                raise self._nobody(channel, name)
            reply_codec = None if handler.reply_type is None else self._codecs.for_sending(handler.reply_type)
            route = Route(handler, self._codecs.for_receiving(content_type), reply_codec)
            if len(self._routes) < MOST_ROUTES:
                self._routes[encoded] = route
        return route

    def _only(self, channel: str) -> Handler | None:
        """For messages without a name: the channel's handler, where it has one."""
        found = [handler for (known, _), handler in self._by_name.items() if known == channel]
        return found[0] if len(found) == 1 else None

    def channels(self) -> set[str]:
        return {channel for channel, _ in self._by_name}

    def _nobody(self, channel: str, name: str) -> ZLinkError:
        if any(known == channel for known, _ in self._by_name):
            return NotFound(f"channel {channel!r} has no handler for {name!r}")
        return NotFound(f"no channel {channel!r} here")
