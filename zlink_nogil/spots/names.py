"""Ids and type names: 1 to 255 bytes of UTF-8, exact and case-sensitive."""

from __future__ import annotations

from typing import Final

__all__ = ["MOST_ID_BYTES", "check_id"]

MOST_ID_BYTES: Final = 255


def check_id(what: str, value: str) -> str:
    """`TypeError` for what is no text, `ValueError` for text that is empty, too long, or not UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be UTF-8, not {value!r}") from None
    if not 0 < size <= MOST_ID_BYTES:
        raise ValueError(f"{what} must be 1 to {MOST_ID_BYTES} bytes of UTF-8, not {size}")
    return value
