"""`Identity`: what a node's keys say of it and of the others (decision 19). Without keys everybody is who he says he is.

Ownership
    read-only
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

from zlink_nogil.binding import Keys
from zlink_nogil.binding.keys import ANY_NODE
from zlink_nogil.errors import ProtocolError
from zlink_nogil.messaging.peers import ENDPOINT, Introduction

__all__ = ["Identity", "check_exposure", "checked_places"]

_HOST: Final = re.compile(r"tcp://(\[.*\]|[^:]*):\d+")


class Identity:
    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys

    def key_of(self, node: str | None) -> str | None:
        """Which key `node` has to have; None without keys, and for whom nobody knows."""
        if self._keys is None or node is None:
            return None
        return self._keys.peers.get(node) or self._keys.peers.get(ANY_NODE)

    def check(self, them: Introduction, user: str | None) -> None:
        """`ProtocolError` unless whoever says so has the key of that node."""
        if self._keys is not None and (user is None or self.key_of(them.node) != user):
            raise ProtocolError(f"somebody says that he is node {them.node!r}, and has not its key")

    def fits(self, expected: str | None, them: Introduction) -> bool:
        """May `them` be at the other end of a connection that was made to reach `expected`?"""
        return self._keys is None or expected in (None, ANY_NODE, them.node)


def check_exposure(bind: str, keys: Keys | None, *, insecure: bool) -> bool:
    """Does anybody on the network reach it without a key? `ValueError` if so and nobody said that it may be."""
    found = _HOST.fullmatch(bind)
    exposed = keys is None and found is not None and not _is_loopback(found[1].strip("[]"))
    if exposed and not insecure:
        raise ValueError(f"anybody can reach {bind!r}: give keys=, or insecure=True where the network keeps others out")
    return exposed


def checked_places(what: str, places: Iterable[str] | Mapping[str, str], keys: Keys | None) -> dict[str, str | None]:
    """Endpoints, and who is there: known from a mapping of ids to endpoints, which keys need. `ValueError`."""
    if isinstance(places, Mapping):
        found: dict[str, str | None] = {endpoint: node for node, endpoint in places.items()}
        unknown = [node for node in places if keys is not None and node not in keys.peers]
        if unknown:
            raise ValueError(f"no key is known of {unknown}")
    elif keys is not None:
        found = dict.fromkeys(places)
        if found:
            raise ValueError(f"with keys, {what} is a mapping of node ids to endpoints: each has to have its own key")
    else:
        found = dict.fromkeys(places)
    for endpoint in found:
        if not ENDPOINT.fullmatch(endpoint):
            raise ValueError(f"{what} must be endpoints like tcp://127.0.0.1:7001, not {endpoint!r}")
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
