"""Messaging between nodes: send and request over a mesh of ZeroMQ sockets (seed 004, design 4)."""

from zlink_nogil.messaging.channel import Channel, NodeTarget
from zlink_nogil.messaging.client_server import Client, Server
from zlink_nogil.messaging.codecs import Codec, Codecs, JsonCodec, RawBytesCodec
from zlink_nogil.messaging.delivery import Context
from zlink_nogil.messaging.locations import Location, LocationStore, MemoryLocationStore
from zlink_nogil.messaging.mesh import Mesh

__all__ = [
    "Channel",
    "Client",
    "Codec",
    "Codecs",
    "Context",
    "JsonCodec",
    "Location",
    "LocationStore",
    "MemoryLocationStore",
]
__all__ += ["Mesh", "NodeTarget", "RawBytesCodec", "Server"]
