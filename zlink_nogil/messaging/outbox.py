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

from zlink_nogil import _sync
from zlink_nogil.errors import CapacityExceeded, NotFound, ProtocolError, ShuttingDown, TypeMismatch
from zlink_nogil.execution import Turn
from zlink_nogil.messaging.inbox import Inbox
from zlink_nogil.messaging.operation import Operation
from zlink_nogil.messaging.operations import Operations
from zlink_nogil.messaging.owners import owner_of
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.resources import Resources
from zlink_nogil.messaging.tracing import Mark
from zlink_nogil.messaging.wire import (
    HEADER_BYTES,
    Address,
    Kind,
    NotHere,
    OwnerKind,
    pack,
    pack_route,
    readdress,
    unpack,
    unpack_error,
    unpack_route,
)
from zlink_nogil.scheduler import Completion, OnWait, Wait, interrupts

__all__ = ["Message", "Outbox", "Routed"]

_APIS: Final = {OwnerKind.SPOT: "spot", OwnerKind.ACTOR: "actor"}
"""What a trace calls them."""


@dataclass(frozen=True, slots=True)
class Message:
    """One call's arguments, checked; `extras` is its address and metadata, packed.

    `choose` finds the target when the call begins: a peer, or None for this very node.
    """

    choose: Callable[[], Peer | None]
    kind: Kind
    channel: str
    name: str
    value: Any
    declared: Any
    reply: Any
    address: Address
    extras: bytes
    timeout: float


class Routed(Operation):
    """An operation whose target may still have to be found, and found again: it keeps its record until it ends."""

    __slots__ = ("address", "record", "refusals")

    address: Address
    record: bytes

    def __init__(self, *of_operation: Any) -> None:
        super().__init__(*of_operation)
        self.refusals = 0


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

    def __init__(self, me: Introduction, operations: Operations, inbox: Inbox | None, resources: Resources) -> None:
        self._me = me
        self._operations = operations
        self._inbox = inbox
        self._codecs = resources.codecs
        self._permits = resources.permits
        self._pool = resources.pool
        self._tracer = resources.tracer
        self._local_answer = _LocalAnswer(operations, me)
        self._now = _sync.monotonic

    def start(self, message: Message, how: Wait | None) -> Completion[Any]:
        """Begin the operation; `how` tells how the caller is going to wait for it in this very turn."""
        mark = None if self._tracer.recorder is None else self._begin_trace(message)
        route, payload = self._encode(message)
        if mark is not None:
            mark.note("E1")
        target = message.choose()
        if mark is not None:
            mark.note("E2")
        self._check_size(HEADER_BYTES + len(route) + len(message.extras) + len(payload), target)
        on_wait = None
        if target is None:
            assert self._inbox is not None, "whoever chooses this node has an inbox"
            owner = owner_of(message.channel, message.address)
            if how is not None and message.kind is Kind.REQUEST:
                self._inbox.owners.check_wait(owner, None, how)
            on_wait = functools.partial(self._inbox.owners.check_wait, owner)
        may_move = message.kind is Kind.REQUEST and message.address.kind >= OwnerKind.SPOT
        operation = self._new(Routed if may_move else Operation, message, target, on_wait, mark)
        generation = self._me.generation if target is None else target.generation
        record = self._pack(operation, message, route, payload, generation)
        if isinstance(operation, Routed):
            operation.address, operation.record = message.address, record
        if target is None:
            if Turn.current is not None or self._pool.is_worker():
                self._permits.borrow()  # for a turn, or a callback
            else:
                self._permits.acquire(message.timeout)
            self._deliver_here(operation, record, functools.partial(self._operations.submit, operation))
        else:
            send = functools.partial(self._operations.send, target.data_alias, record, message.kind is Kind.REQUEST)
            self._operations.submit(operation, send)
        return operation

    def line_up(self, message: Message, enter: Callable[[Routed], None]) -> Completion[Any]:
        """Begin an operation whose target is not known yet; `enter`, on the operation lane, sees to its `dispatch`."""
        mark = None if self._tracer.recorder is None else self._begin_trace(message)
        route, payload = self._encode(message)
        if mark is not None:
            mark.note("E1")
        self._check_size(HEADER_BYTES + len(route) + len(message.extras) + len(payload), None)
        operation = self._new(Routed, message, None, None, mark)
        operation.address = message.address
        operation.record = self._pack(operation, message, route, payload, 0)

        def start(_: Operation) -> bool:
            enter(operation)
            return False

        self._operations.submit(operation, start)
        return operation

    def dispatch(self, operation: Routed, target: Peer | None) -> None:
        """Send what is lined up, on a worker: to a node, or (None) to an owner on this one; nothing when it has ended.

        `NotHere` or `Unavailable` when it was not accepted, and is still pending.
        """
        if operation.mark is not None:
            operation.mark.copied += 2  # `readdress`
            operation.mark.note("E2")
        left = max(1, math.ceil((operation.deadline - self._now()) * 1000))
        generation = self._me.generation if target is None else target.generation
        record = readdress(operation.record, generation, left)
        peer = None if target is None else target.data_alias
        resubmit = functools.partial(self._operations.resubmit, operation, peer)
        if target is not None:
            try:
                self._check_size(len(record), target)  # a peer ends the connection a longer one comes on
            except CapacityExceeded as over:
                self._operations.error(operation.reply_route, over)
                return
            is_request = unpack(record).kind is Kind.REQUEST
            resubmit(functools.partial(self._operations.send, target.data_alias, record, is_request))
            return
        self._permits.borrow()
        try:
            self._deliver_here(operation, record, resubmit)
        except ShuttingDown:  # the owner is closing
            raise NotHere(operation.address) from None
        except CapacityExceeded as full:
            self._operations.error(operation.reply_route, full)
        except NotFound as error:
            if isinstance(error, NotHere):
                raise
            self._operations.error(operation.reply_route, error)

    def _begin_trace(self, message: Message) -> Mark | None:
        recorder = self._tracer.recorder
        if recorder is None:
            return None
        api = "client-server" if self._inbox is None else _APIS.get(message.address.kind, "mesh")
        return recorder.begin(api, self._me.generation, self._operations.fresh_route())

    def _encode(self, message: Message) -> tuple[bytes, bytes]:
        """(route, payload)"""
        interrupts.raise_if_interrupted()
        codec = self._codecs.for_sending(message.declared)
        try:
            payload = codec.encode(message.value, message.declared)
        except (TypeError, ValueError) as error:
            raise TypeMismatch(f"{message.name!r} cannot be encoded as {codec.content_type}: {error}") from error
        return pack_route(codec.content_type, message.channel, message.name), payload

    def _new[O: Operation](
        self, make: type[O], message: Message, target: Peer | None, on_wait: OnWait | None, mark: Mark | None
    ) -> O:
        decode = functools.partial(self._decode, message.reply) if message.kind is Kind.REQUEST else None
        peer = None if target is None else target.data_alias
        route = None if mark is None else mark.low
        operation = self._operations.new(make, message.timeout, peer, decode, on_wait, route)
        operation.mark = mark
        return operation

    def _pack(self, operation: Operation, message: Message, route: bytes, payload: bytes, generation: int) -> bytes:
        if operation.mark is not None:
            operation.mark.copied += 1
        return pack(
            message.kind,
            route,
            message.extras,
            payload,
            generation=generation,
            operation=(self._me.generation, operation.reply_route),
            reply_route=operation.reply_route,
            timeout_ms=math.ceil(message.timeout * 1000),
            traced=operation.mark is not None,
        )

    def _check_size(self, size: int, target: Peer | None) -> None:
        most = self._me.max_record_bytes if target is None else min(self._me.max_record_bytes, target.max_record_bytes)
        if size > most:
            raise CapacityExceeded(f"a record of {size} bytes is over max_record_bytes ({most})")

    def _deliver_here(
        self, operation: Operation, record: bytes, submit: Callable[[Callable[[Operation], bool]], bool]
    ) -> None:
        """Commit a record that holds a permit to its owner, in `submit`, which tells whether it did."""
        inbox = self._inbox
        assert inbox is not None, "whoever chooses this node has an inbox"
        try:
            owner, delivery = inbox.prepare(record, unpack(record), self._local_answer)
        except BaseException:
            self._permits.give_back()
            raise
        delivery.mark = operation.mark

        def commit(_: Operation) -> bool:
            refused = inbox.admit(owner, (delivery,))
            if refused:
                raise refused[0][1]
            if operation.mark is not None:
                operation.mark.note("E4")
                operation.mark.note("I4")
            return not delivery.is_request

        try:
            if not submit(commit):
                delivery.return_permit()
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
