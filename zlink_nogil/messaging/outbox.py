"""`Outbox`: the source side of every call - E1 to E4 (design 4.2; seed 004 section 3).

    E1 encode    the caller's thread; the payload once, the record with one join
    E2 resolve   the selector's turn (or one dictionary look-up for a named node)
    E3 register  \\
    E4 submit    /  one turn of the operation lane

A message to the node itself takes the same stages; E4 commits it to its owner's queue instead of a socket.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from zlink_nogil.errors import CapacityExceeded, ProtocolError, TypeMismatch
from zlink_nogil.execution import Turn
from zlink_nogil.messaging.codecs import Codecs
from zlink_nogil.messaging.inbox import Inbox
from zlink_nogil.messaging.operation import Operation
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.owners import Owners
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.permits import Permits
from zlink_nogil.messaging.wire import HEADER_BYTES, Kind, pack, pack_route, unpack, unpack_error, unpack_route
from zlink_nogil.scheduler import Completion, Wait, WorkerPool, interrupts

__all__ = ["Message", "Outbox"]


@dataclass(frozen=True, slots=True)
class Message:
    """One call's arguments, checked; `extras` is its key and metadata, packed.

    `choose` finds the target when the call begins: a peer, or None for this very node.
    """

    choose: Callable[[], Peer | None]
    kind: Kind
    channel: str
    name: str
    value: Any
    declared: Any
    reply: Any
    key: str | None
    extras: bytes
    timeout: float


class _LocalAnswer:
    """An `Answer` that ends the operation on this very node."""

    __slots__ = ("_operations", "generation", "max_record_bytes", "source")

    def __init__(self, operations: Operations, me: Introduction) -> None:
        self._operations = operations
        self.source: Final = me.node
        self.generation: Final = me.generation
        self.max_record_bytes: Final = me.max_record_bytes

    def send(self, record: bytes) -> None:
        header = unpack(record)
        if header.kind is Kind.REPLY:
            self._operations.reply(header.reply_route, record)
        else:
            self._operations.error(header.reply_route, unpack_error(record[header.payload_at :]))


class Outbox:
    """Thread-safe; read-only after construction."""

    def __init__(
        self,
        me: Introduction,
        codecs: Codecs,
        operations: Operations,
        inbox: Inbox,
        owners: Owners,
        permits: Permits,
        pool: WorkerPool,
    ) -> None:
        self._me = me
        self._codecs = codecs
        self._operations = operations
        self._inbox = inbox
        self._owners = owners
        self._permits = permits
        self._pool = pool
        self._local_answer = _LocalAnswer(operations, me)

    def start(self, message: Message, how: Wait | None) -> Completion[Any]:
        """Begin the operation; `how` tells how the caller is going to wait for it in this very turn."""
        interrupts.raise_if_interrupted()
        codec = self._codecs.for_sending(message.declared)
        try:
            payload = codec.encode(message.value, message.declared)
        except (TypeError, ValueError) as error:
            raise TypeMismatch(f"{message.name!r} cannot be encoded as {codec.content_type}: {error}") from error
        route = pack_route(codec.content_type, message.channel, message.name)
        target = message.choose()
        self._check_size(HEADER_BYTES + len(route) + len(message.extras) + len(payload), target)
        owner = (message.channel, message.key)
        if target is None and how is not None and message.kind is Kind.REQUEST:
            self._owners.check_wait(owner, None, how)
        operation = self._operations.new(
            message.timeout,
            target,
            functools.partial(self._decode, message.reply) if message.kind is Kind.REQUEST else None,
            functools.partial(self._owners.check_wait, owner) if target is None else None,
        )
        record = pack(
            message.kind,
            route,
            message.extras,
            payload,
            generation=self._me.generation if target is None else target.generation,
            operation=(self._me.generation, operation.reply_route),
            reply_route=operation.reply_route,
            timeout_ms=math.ceil(message.timeout * 1000),
        )
        if target is None:
            self._deliver_here(operation, record, message)
        else:
            is_request = message.kind is Kind.REQUEST
            self._operations.submit(
                operation, functools.partial(self._operations.send, target.data_alias, record, is_request)
            )
        return operation

    def _check_size(self, size: int, target: Peer | None) -> None:
        most = self._me.max_record_bytes if target is None else min(self._me.max_record_bytes, target.max_record_bytes)
        if size > most:
            raise CapacityExceeded(f"a record of {size} bytes is over max_record_bytes ({most})")

    def _deliver_here(self, operation: Operation, record: bytes, message: Message) -> None:
        """Take a permit - a turn or a callback borrows it, a plain thread waits - and commit the record to its owner."""
        if Turn.current is not None or self._pool.is_worker():
            self._permits.borrow()
        else:
            self._permits.acquire(message.timeout)
        try:
            owner, delivery = self._inbox.prepare(record, unpack(record), self._local_answer)
        except BaseException:
            self._permits.give_back()
            raise

        def commit(_: Operation) -> bool:
            refused = self._owners.admit(owner, (delivery,))
            if refused:
                raise refused[0][1]
            return message.kind is Kind.SEND

        try:
            self._operations.submit(operation, commit)
        except BaseException:
            delivery.return_permit()
            raise

    def _decode(self, reply: Any, record: bytes) -> Any:
        header = unpack(record)
        content_type, _, _ = unpack_route(header.route)
        if not content_type:
            if reply in (Any, None):
                return None
            raise ProtocolError("the handler returns nothing")
        return self._codecs.for_receiving(content_type).decode(record[header.payload_at :], reply)
