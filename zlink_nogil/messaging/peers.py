"""What one node knows of another: `Introduction`, `Link`, `Peer` (decisions 5, 6).

An `Introduction` is what a node says of itself in hello and welcome. A `Link` is the outgoing half of a pairing: a data and
a completion connection to one node, made again when lost. A `Peer` is the frozen view of a link that is ready: senders
use it without asking anybody, and a stale one is refused by the socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from zlink_nogil.errors import ProtocolError

__all__ = ["ANY_MESH", "CLIENT_SERVER", "DEFAULT_WEIGHT", "ENDPOINT", "MOST_NAME_BYTES", "Introduction", "Link", "Peer"]
__all__ += ["Source", "checked_bind", "checked_name", "checked_weight", "reachable"]

_PORT = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ENDPOINT = re.compile(rf"tcp://[^\s:/]+:{_PORT}|tcp://\[[0-9A-Fa-f:.]+\]:{_PORT}|ipc://\S+")
"""What a node can be reached at."""
MOST_NAME_BYTES: Final = 200
"""Of the name of a mesh, a node or a channel."""
CLIENT_SERVER: Final = "client-server:"
"""What the name of a channel's mesh begins with: no mesh of nodes has such a name."""
ANY_MESH: Final = "*"
"""What a guest calls its mesh: it may call, wherever it is let in."""
DEFAULT_WEIGHT: Final = 100
MOST_WEIGHT: Final = 1_000_000


def checked_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > MOST_NAME_BYTES:
        raise ValueError(f"{what} must be 1 to {MOST_NAME_BYTES} bytes of text, not {name!r}")
    return name


def checked_weight(weight: int) -> int:
    if not isinstance(weight, int) or not 0 <= weight <= MOST_WEIGHT:
        raise ValueError(f"a weight must be from 0 to {MOST_WEIGHT}, not {weight!r}")
    return weight


def reachable(endpoint: str, advertise: str | None) -> str:
    """What others are told: the bound endpoint, with the advertised host in place of a wildcard."""
    if advertise is None:
        return endpoint
    _, _, port = endpoint.rpartition(":")
    return f"tcp://{advertise}:{port}"


def checked_bind(bind: str, advertise: str | None) -> str:
    """`ValueError` for what is no endpoint, or one that others could not be told."""
    if not ENDPOINT.fullmatch(bind.replace("*", "0.0.0.0")):
        raise ValueError(f"bind must be an endpoint like tcp://127.0.0.1:7001, not {bind!r}")
    if advertise is None and ("*" in bind or "//0.0.0.0:" in bind):
        raise ValueError(f"other nodes cannot reach {bind!r}: give advertise= the host name they should use")
    return bind


@dataclass(frozen=True, slots=True)
class Introduction:
    """`token` names the sender's link; `answers` the receiver's link this replies to, 0 for none."""

    mesh: str
    node: str
    generation: int
    data_endpoint: str
    completion_endpoint: str
    channels: Mapping[str, int]
    max_record_bytes: int
    token: int = 0
    answers: int = 0

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(payload: bytes) -> Introduction:
        """`ProtocolError` when the payload is none."""
        try:
            said: dict[str, Any] = json.loads(payload)
            introduction = Introduction(**said)
            texts = (introduction.mesh, introduction.node, introduction.data_endpoint, introduction.completion_endpoint)
            numbers = (
                introduction.generation,
                introduction.max_record_bytes,
                introduction.token,
                introduction.answers,
                *introduction.channels.values(),
            )
            if not all(isinstance(text, str) for text in (*texts, *introduction.channels)):
                raise TypeError("a text is missing")
            if not all(0 < len(name.encode()) <= MOST_NAME_BYTES for name in (*texts[:2], *introduction.channels)):
                raise ValueError("a name is empty or too long")
            if not all(type(number) is int and 0 <= number < 2**64 for number in numbers):
                raise TypeError("a number is missing")
            if not all(ENDPOINT.fullmatch(endpoint) for endpoint in texts[2:]):
                raise ValueError("an endpoint is none")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"an introduction that cannot be read: {error}") from None
        return introduction


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A node that may be chosen as a target."""

    node: str
    identifier: bytes
    generation: int
    data_alias: bytes
    channels: Mapping[str, int]
    max_record_bytes: int


@dataclass(slots=True, eq=False)
class Link:
    """Belongs to the topology lane. Each (re)connection has a new token.

    `failures` counts connections in a row that did not last; at `open_at` the next one is made (None: there is one). Until
    the node is ready hello is said again at `hello_at`, and a link that is not `static` is given up at `give_up_at`.
    """

    endpoint: str
    static: bool
    node: str | None = None
    """Who has to be there, where that is known."""
    token: int = 0
    data_alias: bytes = b""
    completion_alias: bytes | None = None
    them: Introduction | None = None
    welcomed: bool = False
    was_ready: bool = False
    leaving: bool = False
    give_up_at: float | None = None
    opened_at: float = 0.0
    hello_at: float | None = None
    hellos: int = 0
    failures: int = 0
    open_at: float | None = None
    peer: Peer | None = None
    left: bool = field(default=False)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Who is behind a routing id of the data-in socket: known from its hello."""

    node: str
    generation: int
    max_record_bytes: int
    link: Link
