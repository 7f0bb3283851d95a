"""`Membership`: a node's part in a mesh, as it was asked for and checked before anything starts.

Ownership
    read-only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zlink_nogil.binding import Keys
from zlink_nogil.messaging.identity import check_exposure
from zlink_nogil.messaging.liveness import check_liveness
from zlink_nogil.messaging.locations import LocationStore
from zlink_nogil.messaging.peers import CLIENT_SERVER, checked_bind, checked_name

__all__ = ["Membership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """As in `Host.mesh`; `peers` maps endpoints to ids where those are known, `keeper` is its `locations`. `ValueError`."""

    mesh: str
    node_id: str
    bind: str
    advertise: str | None
    peers: Mapping[str, str | None]
    liveness: tuple[float, float]
    keys: Keys | None
    insecure: bool
    keeper: str | None
    store: LocationStore

    def __post_init__(self) -> None:
        checked_name("a mesh name", self.mesh)
        if self.mesh.startswith(CLIENT_SERVER):
            raise ValueError(f"a mesh's name cannot begin with {CLIENT_SERVER!r}")
        checked_name("a node id", self.node_id)
        checked_bind(self.bind, self.advertise)
        check_exposure(self.bind, self.keys, insecure=self.insecure)
        check_liveness(*self.liveness)
        if self.keeper is not None:
            checked_name("a node id", self.keeper)

    @property
    def exposed(self) -> bool:
        """Can anybody on the network reach it, without a key?"""
        return check_exposure(self.bind, self.keys, insecure=True)
