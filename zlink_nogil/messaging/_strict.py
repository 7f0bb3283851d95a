"""A cattrs converter that takes from each JSON value only the types it stands for: nothing is coerced (design 4.6)."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, MutableSequence, Sequence
from types import NoneType
from typing import Any, Final

import cattrs
from cattrs.cols import (
    homogenous_tuple_structure_factory,
    is_any_set,
    is_frozenset,
    is_mapping,
    list_structure_factory,
    mapping_structure_factory,
)
from cattrs.gen import make_hetero_tuple_structure_fn
from cattrs.strategies import configure_union_passthrough
from cattrs.v import format_exception

__all__ = ["reason", "strict_converter"]


def strict_converter() -> cattrs.Converter:
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


def reason(error: BaseException, declared: Any) -> str:
    """One line of what is wrong at a path; our own checks say it themselves."""
    text = str(error)
    return text if isinstance(error, TypeError) and text.startswith("expected ") else format_exception(error, declared)
