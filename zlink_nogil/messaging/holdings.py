"""`Holdings`: which Spots and Actors this node has, as it tells the keeper of their locations (design 4.1).

Guarantees
    The keeper is told of beginnings and ends in the order in which they were. One that comes back, or begins anew and knows
    nothing, knows in the end what is here and nothing else: also of what begins or ends while it is told.

Ownership
    `_held`, `_unreleased`   under `_lock`, a leaf
    `_telling`               held while something is decided and begun to be told, so that it is told in that order; taken
                             before any lane, and never by who ends an operation
    `_keeper_peer`           on the topology's lane
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from zlink_nogil import _sync
from zlink_nogil.errors import ShuttingDown, ZLinkError
from zlink_nogil.execution.call import REQUEST_TIMEOUT
from zlink_nogil.messaging.keeper import Announce, Claim, Release
from zlink_nogil.messaging.locations import Location
from zlink_nogil.messaging.peers import Peer
from zlink_nogil.messaging.wire import Address, OwnerKind
from zlink_nogil.scheduler import Completion
from zlink_nogil.scheduler.spawning import spawn
from zlink_nogil.scheduler.waiting import end_of
from zlink_nogil.spots.directory import Directory
from zlink_nogil.spots.elsewhere import TakenElsewhere

if TYPE_CHECKING:
    from zlink_nogil.messaging.node import Node

__all__ = ["Holdings"]

ANNOUNCED_AT_ONCE: Final = 10_000

_log = logging.getLogger("zlink_nogil.messaging")


class Holdings:
    """`ask(question, reply type, timeout)` begins to ask the keeper; `Unavailable` when that is not ready."""

    def __init__(
        self,
        node: Node,
        keeper: str,
        ask: Callable[[Any, Any, float], Completion[Any]],
        directories: Mapping[OwnerKind, Directory[Any]],
    ) -> None:
        self._node = node
        self._keeper = keeper
        self._ask = ask
        self._directories = directories
        self._telling = _sync.Lock()
        self._lock = _sync.Lock()
        self._held: dict[Address, str] = {}
        """What the keeper has let this node have, and the type of each."""
        self._unreleased: dict[Address, object] = {}
        """What has ended, and the keeper may not know."""
        self._keeper_peer: Peer | None = None

    async def claim(self, address: Address, type_name: str) -> None:
        """Have it, or `TakenElsewhere`."""
        me = self._node.me
        claim = Claim(int(address.kind), address.id, type_name, me.node, me.generation)
        while True:
            keeper = self._present_keeper()
            with self._telling:
                with self._lock:
                    self._unreleased.pop(address, None)  # that it has ended is not to be told any more
                asked = self._ask(claim, Location, REQUEST_TIMEOUT)
            location: Location = await asked
            if not location.at(me.node, me.generation):
                raise TakenElsewhere(str(address), location.node, location.type_name)
            with self._lock:
                self._held[address] = type_name
            if self._present_keeper() in (None, keeper):
                return  # else there is another, which may have been told what is here before this was

    def release(self, address: Address) -> None:
        """It has ended."""
        self._tell_end(address, again=False)

    def _tell_end(self, address: Address, *, again: bool) -> None:
        me = self._node.me
        mark = object()
        with self._telling:
            with self._lock:
                if again and address not in self._unreleased:
                    return
                self._held.pop(address, None)
                self._unreleased[address] = mark
            try:
                told = self._ask(Release(int(address.kind), address.id, me.node, me.generation), None, REQUEST_TIMEOUT)
            except ZLinkError as error:
                _log.info("the keeper is told of the end of %s when it is there: %s", address, error)
                return
        if not told.add_waker(lambda _: self._told(address, mark, told)):
            self._told(address, mark, told)

    def _told(self, address: Address, mark: object, told: Completion[Any]) -> None:
        if told.exception() is None:
            with self._lock:
                if self._unreleased.get(address) is mark:
                    del self._unreleased[address]

    # -- a keeper that comes, or comes back -------------------------------------------------------------------------

    def _present_keeper(self) -> Peer | None:
        return self._node.topology.candidates.ready.get(self._keeper)

    def look_for_keeper(self) -> None:
        """On the topology's lane, when the nodes that are ready have changed: a keeper that is new is told everything."""
        peer = self._present_keeper()
        if peer is self._keeper_peer:
            return
        self._keeper_peer = peer
        if peer is not None and (self._unreleased or self._held):
            announcing = self._announce()
            try:
                spawn(announcing, pool=self._node.pool)
            except ShuttingDown:
                announcing.close()

    async def _announce(self) -> None:
        """In a task."""
        with self._lock:
            ended, held = list(self._unreleased), list(self._held)
        for address in ended:
            self._tell_end(address, again=True)
        taken: list[Claim] = []
        try:
            for start in range(0, len(held), ANNOUNCED_AT_ONCE):
                taken += await self._tell_held(held[start : start + ANNOUNCED_AT_ONCE])
        except ZLinkError as error:
            _log.warning("the keeper could not be told what is here: %s", error)
        for claim in taken:
            await self._give_up(claim)

    def _tell_held(self, addresses: list[Address]) -> Completion[list[Claim]]:
        """Of those that are still here; the answer is what others have."""
        me = self._node.me
        with self._telling:
            with self._lock:
                claims = [
                    Claim(int(address.kind), address.id, self._held[address], me.node, me.generation)
                    for address in addresses
                    if address in self._held
                ]
            return self._ask(Announce(claims), list[Claim], REQUEST_TIMEOUT)

    async def _give_up(self, claim: Claim) -> None:
        """When it has been made, if it is only being made."""
        kind = OwnerKind(claim.kind)
        _log.error("%s is at another node, too, which keeps it: it ends here", Address(kind, claim.id))
        directory = self._directories[kind]
        entry = directory.find(claim.id)
        if entry is None:
            return
        await end_of(entry.opened)
        try:
            directory.close(claim.id).submit()
        except ZLinkError as error:
            _log.info("it has ended already: %s", error)
