"""`dumps` and `loads`, by orjson where importing it cannot turn the GIL on, else by the standard library (design 1.4, 4.6).

Both give the same bytes and refuse the same: UTF-8, no spaces, no NaN or infinity, integers of 64 bits at most. Only the
exponent of a very small float is spelled differently (1e-7, 1e-07), and only orjson refuses to read more than
1,024 levels.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, Final

__all__ = ["dumps", "implementation", "loads"]

_LEAST_INT: Final = -(2**63)
_MOST_INT: Final = 2**64 - 1
_SAFE_DIGITS: Final = 19
"""Texts of fewer characters are integers of 64 bits."""
DEEPEST: Final = 200
"""Lists and dicts within each other that are written; orjson stops at 254."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def gil_cannot_come_on() -> bool:
    """On a GIL build there is nothing to lose; on a free-threaded one only if the GIL was forced off."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return True
    option = sys._xoptions.get("gil")
    if option is None and not sys.flags.ignore_environment:
        option = os.environ.get("PYTHON_GIL")
    return option == "0"


def standard_dumps(value: Any) -> bytes:
    """JSON of dicts with str keys, lists, tuples, str, int, float, bool and None; `TypeError` or `ValueError` otherwise."""
    _check(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"a str that is not valid UTF-8: {error.reason}") from None


def standard_loads(data: bytes) -> Any:
    """`ValueError` for anything that is not JSON. An integer of more than 64 bits becomes a float."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # a pair is one character, half of one is an error
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a JSON number that is too large")
    return number


def _integer(text: str) -> int | float:
    if len(text) < _SAFE_DIGITS:
        return int(text)
    number = int(text) if len(text) < 2 * _SAFE_DIGITS else _MOST_INT + 1
    return number if _LEAST_INT <= number <= _MOST_INT else _finite(text)


def _check(value: Any, depth: int = 0) -> None:
    """Only what both implementations write alike: no subclasses, no NaN, no big integers, no deep nests and no cycles."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int:
        if not _LEAST_INT <= value <= _MOST_INT:
            raise ValueError("JSON integers are limited to 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError("JSON has no NaN and no infinity")
    elif depth == DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    elif kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"JSON keys must be str, not {type(key).__name__}")
            _check(inner, depth + 1)
    elif kind is list or kind is tuple:
        for inner in value:
            _check(inner, depth + 1)
    else:
        raise TypeError(f"{kind.__name__} is not JSON serializable")


def _orjson() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | None:
    if not gil_cannot_come_on():
        return None
    try:
        orjson = importlib.import_module("orjson")
    except ImportError:
        return None

    def dumps(value: Any) -> bytes:
        _check(value)  # orjson would write null for NaN, and has types of its own
        encoded: bytes = orjson.dumps(value)
        return encoded

    return dumps, orjson.loads


_found = _orjson()
implementation: Final = "orjson" if _found else "json"
dumps, loads = _found or (standard_dumps, standard_loads)
