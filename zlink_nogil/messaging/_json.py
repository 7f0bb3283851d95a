"""`dumps` and `loads`, by orjson where importing it cannot turn the GIL on, else by the standard library (design 1.4, 4.6).

Both give the same bytes and the same errors: UTF-8, no spaces, no NaN or infinity, integers of 64 bits at most.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, Final

__all__ = ["dumps", "implementation", "loads"]

_LEAST_INT: Final = -(2**63)
_MOST_INT: Final = 2**64 - 1


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
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def standard_loads(data: bytes) -> Any:
    """`ValueError` for anything that is not JSON."""
    return json.loads(data.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"JSON keys must be str, not {type(key).__name__}")
            _check(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("JSON has no NaN and no infinity")
    elif isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT:
        raise ValueError("JSON integers are limited to 64 bits")


def _orjson() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | None:
    if not gil_cannot_come_on():
        return None
    try:
        orjson = importlib.import_module("orjson")
    except ImportError:
        return None

    def dumps(value: Any) -> bytes:
        _check(value)  # orjson would write null for NaN
        encoded: bytes = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME)
        return encoded

    return dumps, orjson.loads


_found = _orjson()
implementation: Final = "orjson" if _found else "json"
dumps, loads = _found or (standard_dumps, standard_loads)
