"""`Doors`: where records for Spots and Actors come in - I3 for them, and W2-W4 (design 4.3; seed 004 section 5).

Guarantees
    A record goes to the owner that is here, or that is made for it now; anything else is `NotHere`, which tells the sender
    to look again: nothing has begun then.

Ownership
    `_routes` is a cache with atomic single operations; the rest is read-only
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from zlink_nogil import _sync
from zlink_nogil.dependencies import Scope
from zlink_nogil.errors import NotFound, ShuttingDown, ZLinkError
from zlink_nogil.messaging.answer import Answer
from zlink_nogil.messaging.codecs import Codec, Codecs
from zlink_nogil.messaging.delivery import Delivery
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.wire import Address, Header, NotHere, OwnerKind, unpack_route
from zlink_nogil.spots.directory import Directory
from zlink_nogil.spots.elsewhere import TakenElsewhere
from zlink_nogil.spots.entry import Entry
from zlink_nogil.spots.handlers import Handling, OwnerType
from zlink_nogil.spots.message import MessageContext
from zlink_nogil.spots.snapshot import ActorStateSnapshot

__all__ = ["Doors", "OwnerDelivery"]

_log = logging.getLogger("zlink_nogil.messaging")

MOST_ROUTES: Final = 1024


class OwnerRoute:
    """What a record's route leads to, for owners of one type."""

    __slots__ = ("codec", "handler", "reply_codec")

    def __init__(self, handler: Handling, codec: Codec, reply_codec: Codec | None) -> None:
        self.handler = handler
        self.codec = codec
        self.reply_codec = reply_codec


class OwnerDelivery(Delivery):
    """A record on its way through the queue of a Spot or an Actor."""

    __slots__ = ("_address", "_begun", "entry", "registration")

    def __init__(self, entry: Entry, address: Address, *of_delivery: Any) -> None:
        super().__init__(*of_delivery)
        self.entry = entry
        self.registration: ActorStateSnapshot | None = None
        self._address = address
        self._begun = False

    @property
    def source(self) -> str:
        return self._answer.source

    @property
    def handling(self) -> Handling:
        return cast(OwnerRoute, self._route).handler

    def _call(self, message: Any) -> Any:
        self._begun = True
        self.registration = self.entry.registration
        handling = self.handling
        if handling.filters is None:
            self.return_permit()
            return handling.function(self.entry.owner, message, MessageContext(self))
        self._scope = scope = Scope()
        call = handling.prepare(scope, self.entry.owner, MessageContext(self))
        self.return_permit()
        return call(message)

    def begin(self) -> Any:
        if self.entry.owner is None:
            raise ShuttingDown(f"{self.entry.label} could not be created")
        return super().begin()

    def fail(self, error: BaseException) -> None:
        if self._begun and isinstance(error, NotHere):
            error = NotFound(error.message)  # of whom the handler asked: this one has begun, and is not to be sent again
        elif isinstance(error, ShuttingDown) and not self._begun:
            failure = self.entry.failure
            error = NotHere(self._address) if failure is None or isinstance(failure, TakenElsewhere) else failure
        if isinstance(error, NotHere) and not self.is_request:
            self.return_permit()
            self.tell(error)  # so that no more are sent here
            _log.warning("a send was refused: %s", error)
        else:
            super().fail(error)


class Doors:
    """The directories of a host, by kind; none where the mesh does not lead to them. Thread-safe."""

    def __init__(
        self, directories: Mapping[OwnerKind, Directory[Any]], codecs: Codecs, permits: Permits, max_record_bytes: int
    ) -> None:
        self._directories = directories
        self._codecs = codecs
        self._permits = permits
        self._max_record_bytes = max_record_bytes
        self._routes: dict[tuple[int, bytes], OwnerRoute] = {}

    def prepare(
        self,
        record: bytes,
        header: Header,
        address: Address,
        metadata: Mapping[str, bytes],
        deadline: float,
        answer: Answer,
    ) -> tuple[Entry, OwnerDelivery]:
        """Find the owner; the error that refuses the record otherwise."""
        directory = _sync.look_up(self._directories, address.kind)
        entry = None if directory is None else directory.find(address.id) or self._made(directory, address.id)
        if entry is None:
            raise NotHere(address)
        route = self._route(entry, header.route)
        delivery = OwnerDelivery(
            entry,
            address,
            record,
            header,
            route,
            address.id,
            metadata,
            deadline,
            answer,
            self._permits,
            self._max_record_bytes,
        )
        return entry, delivery

    @staticmethod
    def _made(directory: Directory[Any], owner_id: str) -> Entry | None:
        try:
            return directory.on_demand(owner_id)
        except ZLinkError:  # the host is shutting down
            return None

    def _route(self, entry: Entry, encoded: bytes) -> OwnerRoute:
        owner_type: OwnerType = entry.owner_type
        key = (id(owner_type), encoded)  # types are kept as long as the host
        route = _sync.look_up(self._routes, key)
        if route is None:
            content_type, _, name = unpack_route(encoded)
            handling = entry.handling(name)
            reply_codec = None if handling.reply_type is None else self._codecs.for_sending(handling.reply_type)
            route = OwnerRoute(handling, self._codecs.for_receiving(content_type), reply_codec)
            if len(self._routes) < MOST_ROUTES:
                self._routes[key] = route
        return route
