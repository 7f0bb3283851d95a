"""The wire format: one frame per record, header in front (design 4.2, decisions 5 and 10).

    fixed part   44 bytes, little-endian: version, kind (the highest bit: the sender traces this message), size of the route,
                 size of the extras, generation of the target's life, operation id (two words), reply route id, milliseconds
                 left until the deadline
    route        content type, channel and message name, UTF-8, separated by NUL: the same bytes for every message of a
                 kind, so both sides look it up whole
    extras       whose the record is on its node (a key's owner, a Spot, an Actor), metadata; empty when there is neither
    payload      the rest

Nothing but the header is read before the owner's turn. A record shorter than it says, or of another version, is malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from zlink_nogil import _sync
from zlink_nogil.errors import ErrorKind, NotFound, ProtocolError, Unavailable, ZLinkError

__all__ = [
    "HEADER_BYTES",
    "NOBODY",
    "NO_METADATA",
    "Address",
    "Header",
    "Kind",
    "NotHere",
    "OwnerKind",
    "pack",
    "pack_error",
]
__all__ += ["pack_extras", "pack_route", "readdress", "unpack", "unpack_error", "unpack_extras", "unpack_route"]

VERSION: Final = 1
NO_METADATA: Final[Mapping[str, bytes]] = {}
MOST_METADATA: Final = 64
"""Entries a message may carry."""
MOST_ERROR_TEXT: Final = 2000
"""Characters of an error's message that travel."""
_ACCEPTED: Final = 0x80
"""In the kind byte of an `Unavailable`: the fate of what was asked is unknown, as opposed to never accepted."""
_NOT_HERE: Final = 0x7F
"""In place of the kind byte: the owner is not at the node that was asked; its address follows."""

_FIXED = struct.Struct("<BBHIQQQQI")
HEADER_BYTES: Final = _FIXED.size
_GENERATION_AT: Final = 4
"""Among the fixed part's values."""
_OWNER = struct.Struct("<BH")
_NAME = struct.Struct("<BI")


class Kind(IntEnum):
    SEND = 1
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    HELLO = 16  # data connection: who I am, and how to reach me
    WELCOME = 17  # completion connection: your hello arrived, and this is the way replies come
    LEAVING = 18  # completion connection: send me nothing new
    LEFT = 19  # data connection: that was my last record to you
    PROBE = 20  # are you there?
    ACK = 21  # I am
    CHANNELS = 22  # completion connection: what I offer, and at which weights, has changed


_TRACED: Final = 0x80
_KINDS = {int(kind): kind for kind in Kind} | {kind | _TRACED: kind for kind in (Kind.SEND, Kind.REQUEST)}


class OwnerKind(IntEnum):
    CHANNEL = 0  # the channel's one owner
    KEY = 1
    SPOT = 2
    ACTOR = 3


_OWNER_KINDS = {int(kind): kind for kind in OwnerKind}


class Address(NamedTuple):
    """Whose queue a record is for, on the node it goes to."""

    kind: OwnerKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.id!r}"


NOBODY: Final = Address(OwnerKind.CHANNEL, "")
"""No address: the channel's one owner."""


class NotHere(NotFound):
    """The owner is not at the node that was asked, which has not begun anything. Between nodes only: senders look again."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{address} is not here")
        self.address = address


class Header(NamedTuple):
    """The fixed part, and where the rest begins in `record`."""

    kind: Kind
    route: bytes
    extras: bytes
    generation: int
    operation_high: int
    operation_low: int
    reply_route: int
    timeout_ms: int
    payload_at: int
    traced: bool


class Malformed(ProtocolError):
    """A record that cannot be read. `request` is (generation, operation id, reply route) where that much can be trusted."""

    def __init__(self, message: str, request: tuple[int, int, int, int] | None = None) -> None:
        super().__init__(message)
        self.request = request


def pack(
    kind: Kind,
    route: bytes,
    extras: bytes,
    payload: bytes,
    *,
    generation: int,
    operation: tuple[int, int] = (0, 0),
    reply_route: int = 0,
    timeout_ms: int = 0,
    traced: bool = False,
) -> bytes:
    """One record, each part written into it once."""
    number = kind | _TRACED if traced else kind
    head = _FIXED.pack(VERSION, number, len(route), len(extras), generation, *operation, reply_route, timeout_ms)
    return b"".join((head, route, extras, payload))


def readdress(record: bytes, generation: int, timeout_ms: int) -> bytes:
    """The same record for another life, or another node, with this much time left."""
    changed = bytearray(record)
    fixed = list(_FIXED.unpack_from(record))
    fixed[_GENERATION_AT], fixed[-1] = generation, timeout_ms
    _FIXED.pack_into(changed, 0, *fixed)
    return bytes(changed)


def unpack(record: bytes) -> Header:
    """Read the header; `Malformed` for a record that is not one."""
    if len(record) < HEADER_BYTES:
        raise Malformed(f"a record of {len(record)} bytes has no header")
    version, number, route_size, extras_size, generation, high, low, reply_route, timeout = _FIXED.unpack_from(record)
    if version != VERSION:
        raise Malformed(f"unknown version {version}")
    kind = _sync.look_up(_KINDS, number)
    if kind is None:
        raise Malformed(f"unknown kind of record {number}")
    request = (generation, high, low, reply_route) if kind is Kind.REQUEST else None
    extras_at = HEADER_BYTES + route_size
    payload_at = extras_at + extras_size
    if payload_at > len(record):
        raise Malformed(f"a record of {len(record)} bytes that should have at least {payload_at}", request)
    route = record[HEADER_BYTES:extras_at]
    extras = record[extras_at:payload_at]
    return Header(kind, route, extras, generation, high, low, reply_route, timeout, payload_at, number >= _TRACED)


def pack_route(content_type: str, channel: str = "", message_name: str = "") -> bytes:
    """`ValueError` when a name contains NUL or the whole is over 64 KiB."""
    if "\0" in content_type or "\0" in channel or "\0" in message_name:
        raise ValueError("content types, channel and message names must not contain NUL")
    route = "\0".join((content_type, channel, message_name)).encode()
    if len(route) > 0xFFFF:
        raise ValueError("content type, channel and message name are over 64 KiB together")
    return route


def unpack_route(route: bytes) -> tuple[str, str, str]:
    """(content type, channel, message name); `ProtocolError` when it is none."""
    try:
        content_type, channel, message_name = route.decode().split("\0")
    except ValueError:
        raise ProtocolError("the record's route cannot be read") from None
    return content_type, channel, message_name


def pack_extras(address: Address, metadata: Mapping[str, bytes]) -> bytes:
    """`ValueError` for an id over 64 KiB, too much metadata, or metadata that is not str to bytes."""
    if address is NOBODY and not metadata:
        return b""
    owner = address.id.encode()
    if len(owner) > 0xFFFF:
        raise ValueError("a key may have at most 64 KiB")
    if len(metadata) > MOST_METADATA:
        raise ValueError(f"at most {MOST_METADATA} metadata entries, not {len(metadata)}")
    parts = [_OWNER.pack(address.kind, len(owner)), owner]
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise ValueError("metadata must map str to bytes")
        label = name.encode()
        if len(label) > 0xFF:
            raise ValueError(f"metadata name {name[:20]!r}... is over 255 bytes")
        parts += (_NAME.pack(len(label), len(value)), label, value)
    return b"".join(parts)


def unpack_extras(extras: bytes) -> tuple[Address, Mapping[str, bytes]]:
    """(address, metadata); `ProtocolError` when they cannot be read."""
    if not extras:
        return NOBODY, NO_METADATA
    metadata: dict[str, bytes] = {}
    try:
        kind, size = _OWNER.unpack_from(extras)
        at = _OWNER.size + size
        address = Address(_OWNER_KINDS[kind], _exactly(extras, _OWNER.size, at).decode())
        while at < len(extras):
            label_size, value_size = _NAME.unpack_from(extras, at)
            label_at = at + _NAME.size
            value_at = label_at + label_size
            at = value_at + value_size
            metadata[_exactly(extras, label_at, value_at).decode()] = _exactly(extras, value_at, at)
    except (struct.error, ValueError, KeyError) as error:
        raise ProtocolError(f"the record's owner or metadata cannot be read: {error}") from None
    return address, metadata


def _exactly(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise ValueError(f"{end - len(data)} bytes are missing")
    return data[start:end]


def pack_error(error: ZLinkError) -> bytes:
    """The payload of an ERROR record; a long message is cut, so that it is never over a peer's `max_record_bytes`."""
    if isinstance(error, NotHere):
        return bytes((_NOT_HERE, error.address.kind)) + error.address.id.encode()
    accepted = isinstance(error, Unavailable) and error.accepted
    message = error.message[:MOST_ERROR_TEXT].encode(errors="replace")
    return bytes((error.kind | (_ACCEPTED if accepted else 0),)) + message


def unpack_error(payload: bytes) -> ZLinkError:
    try:
        if payload[0] == _NOT_HERE:
            return NotHere(Address(OwnerKind(payload[1]), payload[2:].decode()))
        kind = ErrorKind(payload[0] & ~_ACCEPTED)
    except (IndexError, ValueError):
        return ProtocolError("an error reply that cannot be read")
    message = payload[1:].decode(errors="replace")
    if kind is ErrorKind.Unavailable:
        return Unavailable(message, accepted=bool(payload[0] & _ACCEPTED))
    return ZLinkError.of(kind, message)
