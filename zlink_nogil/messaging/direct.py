"""`Direct`: calls to Spots and Actors wherever they are - E2 for them (design 4.1; seed 004 section 5).

    a route is known     as a call to a named node: the record goes to the owner's node at once
    none is known        the operation is registered and lines up with others to the same address, while a task asks the
                         keeper; then all go out, in the order of their calls, and the route is kept

Guarantees
    The call's deadline covers all of it. A node that says `NotHere` has begun nothing: the operation lines up again, under
    the same deadline, and the route is forgotten. Routes are positive only, and good for `GOOD_FOR` seconds.

Ownership
    `_lines`, a `_Line`   under `_lock`, a leaf
    `_kept`               under `_lock`: the addresses of routes, the oldest first
    `_routes`             added under `_lock`, when no line is left; single operations by anybody
"""

from __future__ import annotations

import bisect
import functools
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zlink_nogil import _sync
from zlink_nogil.errors import DeadlineExceeded, NotFound, ShuttingDown, Unavailable, ZLinkError
from zlink_nogil.messaging.holdings import Holdings
from zlink_nogil.messaging.keeper import Locate
from zlink_nogil.messaging.locations import CHANNEL, Location
from zlink_nogil.messaging.operation import Operation
from zlink_nogil.messaging.outbox import Message, Routed
from zlink_nogil.messaging.peers import Peer
from zlink_nogil.messaging.wire import NOBODY, Address, Kind, NotHere, OwnerKind, pack_extras
from zlink_nogil.scheduler import Completion, Wait
from zlink_nogil.scheduler.spawning import sleep, spawn
from zlink_nogil.spots.directory import Directory
from zlink_nogil.spots.elsewhere import Asked

if TYPE_CHECKING:
    from zlink_nogil.messaging.node import Node

__all__ = ["Direct"]

GOOD_FOR: Final = 30.0
MOST_ROUTES: Final = 65_536
FIRST_PAUSE: Final = 0.01
MOST_PAUSE: Final = 0.25
"""Seconds between two questions about one address whose node refuses or is away."""

_KINDS: Final = {"spot": OwnerKind.SPOT, "actor": OwnerKind.ACTOR}


class _Route(NamedTuple):
    peer: Peer
    good_until: float


class _Line:
    """Operations to one address that wait for its location, in the order of their calls."""

    __slots__ = ("attempts", "operations", "refuted")

    def __init__(self) -> None:
        self.operations: list[Routed] = []
        self.attempts = 0
        self.refuted = False
        """Has a node said `NotHere` meanwhile? Then the target that is being sent to may be the one."""


class Direct:
    """An `Elsewhere`. `keeper` names the node that keeps the locations, which may be this one."""

    def __init__(self, node: Node, keeper: str, directories: Mapping[OwnerKind, Directory[Any]]) -> None:
        self._node = node
        self._keeper = keeper
        self._now = _sync.monotonic
        self._lock = _sync.Lock()
        self._lines: dict[Address, _Line] = {}
        self._routes: dict[Address, _Route] = {}
        self._kept: deque[Address] = deque()
        self._holdings = Holdings(node, keeper, self._ask, directories)
        self.look_for_keeper = self._holdings.look_for_keeper

    # -- calls ------------------------------------------------------------------------------------------------------

    def start(self, kind: str, asked: Asked, how: Wait | None) -> Completion[Any]:
        self._node.check_usable()
        address = Address(_KINDS[kind], asked.owner_id)
        route = _sync.look_up(self._routes, address)
        if route is not None:
            peer = route.peer
            if route.good_until > self._now() and _sync.look_up(self._node.topology.candidates.ready, peer.node) is peer:
                try:
                    return self._node.outbox.start(_message(address, asked, peer), how)
                except Unavailable:  # not accepted: its connection has gone
                    pass
            self._routes.pop(address, None)
        return self._node.outbox.line_up(_message(address, asked, None), self._enter)

    def refused(self, operation: Operation | None, error: NotHere) -> bool:
        """A node has answered `NotHere`: True when the operation goes on."""
        with self._lock:
            self._routes.pop(error.address, None)
            line = _sync.look_up(self._lines, error.address)
            if line is not None:
                line.refuted = True
        if not isinstance(operation, Routed):
            # The target can be faster than whoever ends a send: its admission is what ends it.
            return operation is not None and operation.is_send
        operation.refusals += 1
        operation.peer = None  # it waits for nobody now, and does not end with who refused it
        try:
            self._enter(operation)
        except ShuttingDown:
            return False
        return True

    def _enter(self, operation: Routed) -> None:
        """Wait for the location of its address; the first asks."""
        address = operation.address
        with self._lock:
            line = _sync.look_up(self._lines, address)
            first = line is None
            if line is None:
                line = self._lines[address] = _Line()
                self._routes.pop(address, None)
            bisect.insort(line.operations, operation, key=lambda waiting: waiting.reply_route)
        if first:
            asking = self._ask_and_send(address, line)
            try:
                spawn(asking, pool=self._node.pool)
            except BaseException:
                asking.close()
                with self._lock:
                    self._lines.pop(address, None)
                raise

    async def _ask_and_send(self, address: Address, line: _Line) -> None:
        """In a task: until nobody waits in the line any more."""
        refused = 0
        while (deadline := self._latest(address, line)) is not None:
            await sleep(self._pause(line))
            line.attempts += 1
            try:
                location = await self._locate(address, refused, max(0.001, deadline - self._now()))
                target = self._target(location)
            except (Unavailable, DeadlineExceeded):
                continue
            except ZLinkError as error:
                self._end(address, line, error)
                return
            refused = location.epoch
            if self._send_all(address, line, target):
                return

    def _latest(self, address: Address, line: _Line) -> float | None:
        """Forget who has ended meanwhile; the latest deadline of the others, None when the line is gone."""
        with self._lock:
            line.operations = [operation for operation in line.operations if not operation.done()]
            if not line.operations:
                del self._lines[address]
                return None
            return max(operation.deadline for operation in line.operations)

    def _pause(self, line: _Line) -> float:
        with self._lock:
            refusals = max((operation.refusals for operation in line.operations), default=0)
        tries = max(line.attempts, refusals)
        return min(FIRST_PAUSE * 2 ** min(tries - 1, 10), MOST_PAUSE) if tries else 0.0

    def _send_all(self, address: Address, line: _Line, target: Peer | None) -> bool:
        """False when somebody was refused meanwhile, and may still wait."""
        line.refuted = False
        while True:
            with self._lock:
                if line.refuted:
                    return False
                if not line.operations:
                    del self._lines[address]
                    if target is not None:
                        self._keep(address, target)
                    return True
                operation = line.operations[0]
            try:
                self._node.outbox.dispatch(operation, target)
            except (NotHere, Unavailable):
                return False
            except ShuttingDown:  # this node is closing, which ends what is pending
                pass
            with self._lock:
                line.operations.remove(operation)

    def _keep(self, address: Address, peer: Peer) -> None:
        """Under the lock."""
        self._kept.append(address)
        if len(self._kept) > MOST_ROUTES:
            self._routes.pop(self._kept.popleft(), None)
        self._routes[address] = _Route(peer, self._now() + GOOD_FOR)

    def _end(self, address: Address, line: _Line, error: ZLinkError) -> None:
        with self._lock:
            operations = line.operations
            del self._lines[address]
        for operation in operations:
            self._node.operations.error(operation.reply_route, error)

    def _target(self, location: Location) -> Peer | None:
        """None for this very node."""
        me = self._node.me
        if location.at(me.node, me.generation):
            return None
        peer = _sync.look_up(self._node.topology.candidates.ready, location.node)
        if peer is None or peer.generation != location.generation:
            raise Unavailable(f"node {location.node!r} is not ready")
        return peer

    # -- the keeper -------------------------------------------------------------------------------------------------

    async def _locate(self, address: Address, refused: int, timeout: float) -> Location:
        location: Location | None = await self._ask(Locate(int(address.kind), address.id, refused), Location | None, timeout)
        if location is None:
            raise NotFound(f"there is no {address}")
        return location

    async def claim(self, kind: str, owner_id: str, type_name: str) -> None:
        await self._holdings.claim(Address(_KINDS[kind], owner_id), type_name)

    def release(self, kind: str, owner_id: str) -> None:
        self._holdings.release(Address(_KINDS[kind], owner_id))

    def _ask(self, question: Any, reply: Any, timeout: float) -> Completion[Any]:
        """In the order of the questions; `Unavailable` when the keeper is not ready."""
        message = Message(
            self._keeper_or_me,
            Kind.REQUEST,
            CHANNEL,
            type(question).__name__,
            question,
            type(question),
            reply,
            NOBODY,
            b"",
            timeout,
        )
        return self._node.outbox.start(message, None)

    def _keeper_or_me(self) -> Peer | None:
        if self._keeper == self._node.me.node:
            return None
        peer = _sync.look_up(self._node.topology.candidates.ready, self._keeper)
        if peer is None:
            raise Unavailable(f"node {self._keeper!r}, which keeps the locations, is not ready")
        return peer


def _message(address: Address, asked: Asked, peer: Peer | None) -> Message:
    return Message(
        functools.partial(_chosen, peer),
        Kind.REQUEST if asked.is_request else Kind.SEND,
        "",
        asked.name,
        asked.value,
        asked.declared,
        asked.reply,
        address,
        pack_extras(address, asked.metadata),
        asked.timeout,
    )


def _chosen(peer: Peer | None) -> Peer | None:
    return peer
