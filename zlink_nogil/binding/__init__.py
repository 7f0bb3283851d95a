"""The binding: the only package that touches ZeroMQ (design 3-6, 15-18 of chapter 0).

One-way ROUTER sockets: an `InSocket` is bound and read by whoever leads its role; an `OutSocket` connects to peers and
is sent on by anybody, under its state lane.
"""

from zlink_nogil.binding.duplex import ClientSocket, ServerSocket
from zlink_nogil.binding.inbound import InSocket, Record
from zlink_nogil.binding.keys import Keys
from zlink_nogil.binding.outbound import Lost, OutSocket, Waiting
from zlink_nogil.binding.raw import Context

__all__ = ["ClientSocket", "Context", "InSocket", "Keys", "Lost", "OutSocket", "Record", "ServerSocket", "Waiting"]
