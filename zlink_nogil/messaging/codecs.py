"""Codecs: from typed payload to bytes and back (design 4.6).

For sending a codec is chosen by the *declared* message type, the last registration first, JSON when none matches; for
receiving by the content type in the header, exactly. No sniffing, no fallback.

Ownership
    `_rules` and `_by_content_type` are written under `_lock` and replaced, never changed; `_chosen` is a cache of at most
    `MOST_CACHED` types, whose single operations are atomic
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from cattrs.errors import BaseValidationError, CattrsError
from cattrs.v import transform_error

from zlink_nogil import _sync
from zlink_nogil.errors import AlreadyExists, ProtocolError
from zlink_nogil.messaging import _json
from zlink_nogil.messaging._strict import reason, strict_converter

__all__ = ["Codec", "Codecs", "JsonCodec", "RawBytesCodec"]

MOST_CACHED: Final = 1024


class Codec(Protocol):
    """Thread-safe and without state. `content_type` travels in the header."""

    @property
    def content_type(self) -> str: ...

    def encode(self, value: Any, declared: Any) -> bytes:
        """`TypeError` or `ValueError` when `value` cannot be written as `declared`."""
        ...

    def decode(self, payload: bytes, declared: Any) -> Any:
        """`ValueError` or `TypeError` when the payload is no `declared`."""
        ...


class RawBytesCodec:
    """bytes as they are; also takes bytearray and memoryview for sending."""

    content_type = "application/octet-stream"

    def encode(self, value: Any, declared: Any) -> bytes:  # noqa: ARG002 - the protocol's second argument
        return value if type(value) is bytes else bytes(memoryview(value))

    def decode(self, payload: bytes, declared: Any) -> Any:
        if declared not in (bytes, Any):
            raise TypeError(f"raw bytes are not {_name(declared)}")
        return payload


class JsonCodec:
    """Dataclasses, TypedDicts, and what JSON itself has. Wrong shapes are refused by path, nothing is coerced."""

    content_type = "application/json"

    def __init__(self) -> None:
        self._converter = strict_converter()

    def encode(self, value: Any, declared: Any) -> bytes:
        try:
            plain = self._converter.unstructure(value, unstructure_as=declared)
        except (AttributeError, LookupError, RecursionError) as error:
            raise TypeError(f"{type(value).__name__} is no {_name(declared)}: {error}") from None
        return _json.dumps(plain)

    def decode(self, payload: bytes, declared: Any) -> Any:
        value = _json.loads(payload)
        if declared is Any:
            return value
        try:
            return self._converter.structure(value, declared)
        except BaseValidationError as error:
            raise ValueError("; ".join(transform_error(error, format_exception=reason))) from None
        except (CattrsError, RecursionError) as error:
            raise TypeError(f"{_name(declared)} cannot be read from JSON: {error}") from None


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)


class Codecs:
    """The codecs of one host. Thread-safe."""

    def __init__(self) -> None:
        json, raw = JsonCodec(), RawBytesCodec()
        self._default: Codec = json
        self._lock = _sync.Lock()
        self._rules: tuple[tuple[Callable[[Any], bool], Codec], ...] = ((_is_raw, raw),)
        self._by_content_type: dict[str, Codec] = {json.content_type: json, raw.content_type: raw}
        self._chosen: dict[Any, Codec] = {}

    def register(self, codec: Codec, matches: Callable[[Any], bool]) -> None:
        """Use `codec` to send what `matches(declared type)`, before the earlier registrations, and to receive its
        content type. `AlreadyExists` when another codec has that content type."""
        with self._lock:
            known = _sync.look_up(self._by_content_type, codec.content_type)
            if known is not None and known is not codec:
                raise AlreadyExists(f"content type {codec.content_type!r} has a codec already")
            self._by_content_type = {**self._by_content_type, codec.content_type: codec}
            self._rules = ((matches, codec), *self._rules)
            self._chosen = {}

    def for_sending(self, declared: Any) -> Codec:
        chosen = self._chosen
        codec = _sync.look_up(chosen, declared)
        if codec is None:
            codec = next((codec for matches, codec in self._rules if matches(declared)), self._default)
            if len(chosen) < MOST_CACHED:
                chosen[declared] = codec
        return codec

    def for_receiving(self, content_type: str) -> Codec:
        """`ProtocolError` when no codec has exactly this content type."""
        codec = _sync.look_up(self._by_content_type, content_type)
        if codec is None:
            raise ProtocolError(f"no codec for content type {content_type!r}")
        return codec


def _is_raw(declared: Any) -> bool:
    return declared in (bytes, bytearray, memoryview)
