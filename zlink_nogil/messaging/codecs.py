"""Codecs: from typed payload to bytes and back (design 4.6).

For sending a codec is chosen by the *declared* message type, the last registration first, JSON when none matches; for
receiving by the content type in the header, exactly. No sniffing, no fallback.

Ownership
    `_rules` and `_by_content_type` are written under `_lock` and replaced, never changed; `_chosen` is a cache of at most
    `MOST_CACHED` types, whose single operations are atomic
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, MutableSequence, Sequence
from types import NoneType
from typing import Any, Final, Protocol

import cattrs
from cattrs.cols import (
    homogenous_tuple_structure_factory,
    is_any_set,
    is_frozenset,
    is_mapping,
    list_structure_factory,
    mapping_structure_factory,
)
from cattrs.errors import BaseValidationError, CattrsError
from cattrs.gen import make_hetero_tuple_structure_fn
from cattrs.strategies import configure_union_passthrough
from cattrs.v import format_exception, transform_error

from zlink_nogil import _sync
from zlink_nogil.errors import AlreadyExists, ProtocolError
from zlink_nogil.messaging import _json

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
        self._converter = _strict_converter()

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
            raise ValueError("; ".join(transform_error(error, format_exception=_reason))) from None
        except (CattrsError, RecursionError) as error:
            raise TypeError(f"{_name(declared)} cannot be read from JSON: {error}") from None


def _strict_converter() -> cattrs.Converter:
    """A converter that takes from each JSON value only the types it stands for."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    configure_union_passthrough(str | int | float | None, converter)  # with bool, int would take it too
    for exact in (str, int, bool):
        converter.register_structure_hook(exact, _exactly(exact))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(bytes, _never)  # bytes(10_000_000_000) is not what a number means
    converter.register_structure_hook_func(lambda declared: declared in (None, NoneType), _nothing)
    shapes: list[tuple[Callable[[Any], bool], type, Any]] = [
        (lambda declared: _origin(declared) in (tuple, Sequence), list, homogenous_tuple_structure_factory),
        (lambda declared: _origin(declared) in (list, MutableSequence), list, list_structure_factory),
        (_is_record_tuple, list, make_hetero_tuple_structure_fn),
        (is_any_set, list, _set_structure_factory),
        (_is_plain_mapping, dict, mapping_structure_factory),
        (_is_class, dict, lambda declared, converter: converter.gen_structure_attrs_fromdict(declared)),
    ]
    for predicate, wanted, make in shapes:
        converter.register_structure_hook_factory(predicate, _shaped(wanted, make))
    return converter


def _shaped(wanted: type, make: Any) -> Any:
    def factory(declared: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
        structure = make(declared, converter)

        def check(value: Any, declared: Any) -> Any:
            if type(value) is not wanted:
                raise TypeError(_expected("array" if wanted is list else "object", value))
            return structure(value, declared)

        return check

    return factory


def _origin(declared: Any) -> Any:
    return typing.get_origin(declared) or declared


def _is_class(declared: Any) -> bool:
    return dataclasses.is_dataclass(_origin(declared))


def _is_record_tuple(declared: Any) -> bool:
    return typing.get_origin(declared) is tuple and typing.get_args(declared)[-1:] != (...,)


def _is_plain_mapping(declared: Any) -> bool:
    return is_mapping(declared) and not typing.is_typeddict(_origin(declared))


def _set_structure_factory(declared: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    structure = list_structure_factory(declared, converter)
    make = frozenset if is_frozenset(declared) else set
    return lambda value, declared: make(structure(value, declared))


def _exactly(wanted: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        if type(value) is not wanted:
            raise TypeError(_expected(wanted.__name__, value))
        return value

    return check


def _number(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(_expected("float", value))
    return float(value)


def _nothing(value: Any, _: Any) -> None:
    if value is not None:
        raise TypeError(_expected("null", value))


def _never(value: Any, _: Any) -> Any:
    raise TypeError(_expected("bytes", value))


_JSON_NAMES: Final = {dict: "object", list: "array", NoneType: "null"}


def _expected(wanted: str, value: Any) -> str:
    return f"expected {wanted}, not {_JSON_NAMES.get(type(value), type(value).__name__)}"


def _reason(error: BaseException, declared: Any) -> str:
    """One line of what is wrong at a path; our own checks say it themselves."""
    text = str(error)
    return text if isinstance(error, TypeError) and text.startswith("expected ") else format_exception(error, declared)


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
            known = self._by_content_type.get(codec.content_type)
            if known is not None and known is not codec:
                raise AlreadyExists(f"content type {codec.content_type!r} has a codec already")
            self._by_content_type = {**self._by_content_type, codec.content_type: codec}
            self._rules = ((matches, codec), *self._rules)
            self._chosen = {}

    def for_sending(self, declared: Any) -> Codec:
        chosen = self._chosen
        codec = chosen.get(declared)
        if codec is None:
            codec = next((codec for matches, codec in self._rules if matches(declared)), self._default)
            if len(chosen) < MOST_CACHED:
                chosen[declared] = codec
        return codec

    def for_receiving(self, content_type: str) -> Codec:
        """`ProtocolError` when no codec has exactly this content type."""
        codec = self._by_content_type.get(content_type)
        if codec is None:
            raise ProtocolError(f"no codec for content type {content_type!r}")
        return codec


def _is_raw(declared: Any) -> bool:
    return declared in (bytes, bytearray, memoryview)
