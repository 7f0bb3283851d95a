"""`Keeper`: the node that keeps the locations of a mesh's Spots and Actors, and says where new ones are made (design 4.1).

Guarantees
    One location per address at a time, whoever asks: every question is a turn of one owner. A location is forgotten when
    its node has begun a new life, or has been away for `AWAY` seconds; a node that comes back later and finds its place
    taken is told so. New owners are placed among the nodes whose types make them on demand, by their weights.

Ownership
    everything belongs to the turns of the channel's one owner; `_ready()` is one look at a published mapping
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from zlink_nogil import _sync
from zlink_nogil.errors import Unavailable
from zlink_nogil.messaging.locations import Location, LocationStore
from zlink_nogil.messaging.peers import Introduction, Peer
from zlink_nogil.messaging.selection import Selector
from zlink_nogil.messaging.wire import Address, OwnerKind

__all__ = ["Announce", "Claim", "Keeper", "Locate", "Release", "maker_channel"]

AWAY: Final = 15.0
"""Seconds until a node that is not ready has lost what it had."""


@dataclass(frozen=True, slots=True)
class Locate:
    """`refused`: the epoch of the location that said it had no such owner, 0 for none."""

    kind: int
    id: str
    refused: int


@dataclass(frozen=True, slots=True)
class Claim:
    kind: int
    id: str
    type_name: str
    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Release:
    kind: int
    id: str
    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Announce:
    """What a node has, told to a keeper that may not know; the answer is what others have."""

    claims: list[Claim]


def maker_channel(kind: OwnerKind, beginning: str) -> str:
    """Announced by a node that makes owners whose ids begin so; not a channel anybody sends to."""
    return f"${kind.name.lower()}:{beginning}"


class _Maker(NamedTuple):
    identifier: bytes
    node: str
    generation: int


class Keeper:
    """`me()` is the keeper's own node; `ready()` the other nodes that are ready."""

    def __init__(
        self, store: LocationStore, me: Callable[[], Introduction], ready: Callable[[], Mapping[str, Peer]]
    ) -> None:
        self._store = store
        self._me = me
        self._ready = ready
        self._away: dict[tuple[str, int], float] = {}
        self._makers: dict[str, tuple[Selector[_Maker], dict[bytes, tuple[_Maker, int]]]] = {}

    def handlers(self) -> list[Callable[..., Any]]:
        return [self.locate, self.claim, self.release, self.announce]

    def locate(self, question: Locate, ctx: Any) -> Location | None:  # noqa: ARG002 - a handler's second argument
        """Where it is, or is going to be; `Unavailable` while its node is away."""
        address = Address(OwnerKind(question.kind), question.id)
        known = self._current(address)
        if known is not None and not known.type_name and known.epoch == question.refused:
            self._store.release(address, known)  # asked to make it, and did not
            known = None
        if known is None:
            maker = self._choose(address)
            return None if maker is None else self._store.claim(address, Location(maker.node, maker.generation, ""))
        if not self._is_ready(known):
            raise Unavailable(f"{address} is at node {known.node!r}, which is not ready")
        return known

    def claim(self, claim: Claim, ctx: Any) -> Location:  # noqa: ARG002 - a handler's second argument
        """Who has it: the claimer, or who was before it."""
        address = Address(OwnerKind(claim.kind), claim.id)
        self._current(address)
        return self._store.claim(address, Location(claim.node, claim.generation, claim.type_name))

    def release(self, release: Release, ctx: Any) -> None:  # noqa: ARG002 - a handler's second argument
        address = Address(OwnerKind(release.kind), release.id)
        known = self._store.find(address)
        if known is not None and known.at(release.node, release.generation):
            self._store.release(address, known)

    def announce(self, announced: Announce, ctx: Any) -> list[Claim]:
        """The claims that come too late: others have these."""
        return [claim for claim in announced.claims if not self.claim(claim, ctx).at(claim.node, claim.generation)]

    # -- who is there -----------------------------------------------------------------------------------------------

    def _current(self, address: Address) -> Location | None:
        """The location, if its node still has it."""
        known = self._store.find(address)
        if known is not None and self._is_over(known):
            self._store.release(address, known)
            return None
        return known

    def _is_ready(self, location: Location) -> bool:
        me = self._me()
        if location.at(me.node, me.generation):
            return True
        peer = _sync.look_up(self._ready(), location.node)
        return peer is not None and peer.generation == location.generation

    def _is_over(self, location: Location) -> bool:
        life = (location.node, location.generation)
        if self._is_ready(location):
            self._away.pop(life, None)
            return False
        if location.node == self._me().node or location.node in self._ready():
            return True  # the node has begun a new life
        return _sync.monotonic() - self._away.setdefault(life, _sync.monotonic()) >= AWAY

    def _choose(self, address: Address) -> _Maker | None:
        """The next of the nodes that make such owners: of the longest beginning."""
        weights: dict[str, dict[bytes, tuple[_Maker, int]]] = {}
        me = self._me()
        nodes = [(me.node, me.generation, me.channels)]
        nodes += [(peer.node, peer.generation, peer.channels) for peer in self._ready().values()]
        for node, generation, channels in nodes:
            for channel, weight in list(channels.items()):
                if weight and (maker_channel(address.kind, address.id)).startswith(channel) and channel[:1] == "$":
                    maker = _Maker(node.encode(), node, generation)
                    weights.setdefault(channel, {})[maker.identifier] = (maker, weight)
        if not weights:
            return None
        channel = max(weights, key=len)
        selector, known = self._makers.get(channel) or (Selector(channel), {})
        if known != weights[channel]:
            selector.replace(weights[channel])
            self._makers[channel] = (selector, weights[channel])
        return selector.choose()
