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
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq

from zlink_nogil.errors import NotConfigured

__all__ = ["Keys"]

KEY_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Keys:
    """One node's pair, and the public keys of the nodes it knows, by node id. Nobody else is let in."""

    public: str
    secret: str = field(repr=False)
    peers: Mapping[str, str]

    def __post_init__(self) -> None:
        for key in (self.public, self.secret, *self.peers.values()):
            if not isinstance(key, str) or len(key) != KEY_CHARACTERS:
                raise ValueError(f"a key is {KEY_CHARACTERS} characters of Z85 text")
        if len({*self.peers.values()}) != len(self.peers):
            raise ValueError("two nodes have one key: it could not tell them apart")

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
