"""zlink_nogil: a thread runtime for stateful server code on free-threaded CPython.

One handler at a time per owner, owners in parallel on a few OS threads, messages between processes over ZeroMQ.
What needs ZeroMQ is imported when it is first asked for: `zlink_nogil.task` and its neighbours do without.
"""

import importlib
from typing import TYPE_CHECKING, Any

from zlink_nogil import _interpreter as _interpreter  # first: refuses what cannot run the rest
from zlink_nogil.errors import (
    AlreadyExists,
    Cancelled,
    CapacityExceeded,
    DataLost,
    DeadlineExceeded,
    ErrorKind,
    InternalFailure,
    InvalidOperation,
    NotConfigured,
    NotFound,
    ProtocolError,
    Rejected,
    ShuttingDown,
    TypeMismatch,
    Unavailable,
    ZLinkError,
)
from zlink_nogil.scheduler import Completion

if TYPE_CHECKING:
    from zlink_nogil.binding import Keys
    from zlink_nogil.execution import Call, PerActor, SpotWide
    from zlink_nogil.hosting import Host
    from zlink_nogil.messaging import Channel, Client, Context, Mesh, NodeTarget, Server
    from zlink_nogil.spots import Actor, ActorRef, EntrySpot, InstanceSpot, Spot, SpotRef, handler, timer

__all__ = [
    "Actor",
    "ActorRef",
    "AlreadyExists",
    "Call",
    "Cancelled",
    "CapacityExceeded",
    "Channel",
    "Client",
    "Completion",
    "Context",
    "DataLost",
    "DeadlineExceeded",
    "EntrySpot",
    "ErrorKind",
    "Host",
    "InstanceSpot",
    "InternalFailure",
    "InvalidOperation",
    "Keys",
    "Mesh",
    "NodeTarget",
    "NotConfigured",
    "NotFound",
    "PerActor",
    "ProtocolError",
    "Rejected",
    "Server",
    "ShuttingDown",
    "Spot",
    "SpotRef",
    "SpotWide",
    "TypeMismatch",
    "Unavailable",
    "ZLinkError",
    "handler",
    "timer",
]

_ROOMS = {
    "zlink_nogil.binding": ("Keys",),
    "zlink_nogil.execution": ("Call", "PerActor", "SpotWide"),
    "zlink_nogil.hosting": ("Host",),
    "zlink_nogil.messaging": ("Channel", "Client", "Context", "Mesh", "NodeTarget", "Server"),
    "zlink_nogil.spots": ("Actor", "ActorRef", "EntrySpot", "InstanceSpot", "Spot", "SpotRef", "handler", "timer"),
}
_LATER = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
