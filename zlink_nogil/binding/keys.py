"""`Keys`: who a node is, and whom it knows (decision 19). CURVE keys, written as 40 characters of Z85.

A key file is TOML, for its owner's eyes only:

    name = "node-a"
    public = "..."
    secret = "..."

and a file of peers has one line per node: `node-b = "public key"`.
"""

from __future__ import annotations

import json
import os
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from zlink_nogil.errors import NotConfigured

__all__ = ["ANY_NODE", "Keys", "name_in", "public_in"]

KEY_CHARACTERS: Final = 40
ANY_NODE: Final = "*"
"""In place of the only node known: whoever has its key, whatever he calls himself."""


@dataclass(frozen=True, slots=True)
class Keys:
    """One node's pair, and the public keys of the nodes it knows, by node id. Nobody else is let in.

    A guest that knows one node by its key alone has `*` for its id.
    """

    public: str
    secret: str = field(repr=False)
    peers: Mapping[str, str]

    def __post_init__(self) -> None:
        for key in (self.public, self.secret, *self.peers.values()):
            if not _is_key(key):
                raise ValueError(f"a key is {KEY_CHARACTERS} characters of Z85 text")
        if len({*self.peers.values()}) != len(self.peers):
            raise ValueError("two nodes have one key: it could not tell them apart")
        if ANY_NODE in self.peers and len(self.peers) > 1:
            raise ValueError(f"who is known as {ANY_NODE!r} could call himself by any of the other names")

    @staticmethod
    def generate(peers: Mapping[str, str]) -> Keys:
        """A fresh pair; `NotConfigured` where this build of ZeroMQ has no CURVE."""
        _check_curve()
        public, secret = zmq.curve_keypair()
        return Keys(public.decode(), secret.decode(), dict(peers))

    @staticmethod
    def load(path: str | os.PathLike[str], peers: Mapping[str, str] | str | os.PathLike[str]) -> Keys:
        """The pair of a key file, with the peers given, or of a file; `ValueError` for what is no such file, `OSError`."""
        _check_curve()
        pair = _read(path)
        if not isinstance(pair.get("public"), str) or not isinstance(pair.get("secret"), str):
            raise ValueError(f"{path}: a key file has `public` and `secret`")
        known = _read(peers) if isinstance(peers, str | os.PathLike) else peers
        return Keys(pair["public"], pair["secret"], dict(known))

    def line(self, name: str) -> str:
        """What the others put in their file of peers, for this pair to be node `name`."""
        return f"{_quoted(name)} = {_quoted(self.public)}"

    def save(self, path: str | os.PathLike[str], name: str) -> None:
        """Write the pair, readable by its owner only; `FileExistsError` when there is a file."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"name = {_quoted(name)}\npublic = {_quoted(self.public)}\nsecret = {_quoted(self.secret)}\n")


def name_in(path: str | os.PathLike[str]) -> str:
    """The node id in a key file; `ValueError`, `OSError`."""
    name = _read(path).get("name")
    if not isinstance(name, str):
        raise ValueError(f"{path}: there is no `name`, by which the others know the key")
    return name


def public_in(given: str) -> str:
    """A public key: itself, or that of the key file or of the one node in the file of peers with this path.

    `ValueError`, `OSError`.
    """
    if not Path(given).is_file() and _is_key(given):
        return given
    found = _read(given)
    if "public" in found:
        return found["public"]
    if len(found) != 1:
        raise ValueError(f"{given}: one public key is wanted, and there are {len(found)}")
    return next(iter(found.values()))


def _is_key(key: object) -> bool:
    if not isinstance(key, str) or len(key) != KEY_CHARACTERS:
        return False
    try:
        z85.decode(key)  # type: ignore[no-untyped-call]
    except (ValueError, LookupError, struct.error):
        return False
    return True


def _quoted(text: str) -> str:
    """As TOML writes it: JSON's way but for what is outside of ASCII, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_curve() -> None:
    if not zmq.has("curve"):
        raise NotConfigured("this build of ZeroMQ has no CURVE, which keys need")
