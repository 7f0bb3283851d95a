"""zlink_nogil: a thread runtime for stateful server code on free-threaded CPython.

One handler at a time per owner, owners in parallel on a few OS threads, messages between processes over ZeroMQ.
"""

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
from zlink_nogil.hosting import Host
from zlink_nogil.messaging import Call, Channel, Context, Mesh, NodeTarget
from zlink_nogil.scheduler import Completion

__all__ = [
    "AlreadyExists",
    "Call",
    "Cancelled",
    "CapacityExceeded",
    "Channel",
    "Completion",
    "Context",
    "DataLost",
    "DeadlineExceeded",
    "ErrorKind",
    "Host",
    "InternalFailure",
    "InvalidOperation",
    "Mesh",
    "NodeTarget",
    "NotConfigured",
    "NotFound",
    "ProtocolError",
    "Rejected",
    "ShuttingDown",
    "TypeMismatch",
    "Unavailable",
    "ZLinkError",
]
