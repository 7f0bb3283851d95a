"""What can go wrong, told apart by type and kind, never by message text (seed 004; design 4.5).

Every failure of the runtime is a `ZLinkError` with an `ErrorKind`. Each kind has a subclass that also inherits the
built-in a Python user would catch, so `except TimeoutError` works. Cancelling is not an error kind: `Cancelled`
derives from `BaseException` so that `except Exception` does not swallow it (decision 13).
"""

from __future__ import annotations

import enum
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "CapacityExceeded",
    "DataLost",
    "DeadlineExceeded",
    "ErrorKind",
    "InternalFailure",
    "InvalidOperation",
    "NotConfigured",
    "NotFound",
    "ProtocolError",
    "Rejected",
    "ShuttingDown",
    "TypeMismatch",
    "Unavailable",
    "ZLinkError",
]


class ErrorKind(enum.IntEnum):
    """The stable numbers travel on the wire."""

    NotFound = 0
    AlreadyExists = 1
    TypeMismatch = 2
    NotConfigured = 3
    Rejected = 4
    Unavailable = 5
    CapacityExceeded = 6
    DeadlineExceeded = 7
    ShuttingDown = 8
    ProtocolError = 9
    InvalidOperation = 10
    DataLost = 11
    InternalFailure = 12


class ZLinkError(Exception):
    """Base of the runtime's errors. `ZLinkError.of(kind, message)` makes the subclass of a kind."""

    kind: ClassVar[ErrorKind]
    _by_kind: ClassVar[dict[ErrorKind, type[ZLinkError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            ZLinkError._by_kind[cls.kind] = cls

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    @staticmethod
    def of(kind: ErrorKind, message: str) -> ZLinkError:
        return ZLinkError._by_kind[kind](message)


class NotFound(ZLinkError, LookupError):
    kind = ErrorKind.NotFound


class AlreadyExists(ZLinkError, ValueError):
    kind = ErrorKind.AlreadyExists


class TypeMismatch(ZLinkError, TypeError):
    kind = ErrorKind.TypeMismatch


class NotConfigured(ZLinkError, RuntimeError):
    kind = ErrorKind.NotConfigured


class Rejected(ZLinkError, RuntimeError):
    kind = ErrorKind.Rejected


class Unavailable(ZLinkError, ConnectionError):
    """`accepted` tells "never accepted" (False: the caller may try again) from "accepted, fate unknown" (True)."""

    kind = ErrorKind.Unavailable

    def __init__(self, message: str = "", *, accepted: bool = False) -> None:
        super().__init__(message)
        self.accepted = accepted


class CapacityExceeded(ZLinkError, RuntimeError):
    kind = ErrorKind.CapacityExceeded


class DeadlineExceeded(ZLinkError, TimeoutError):
    kind = ErrorKind.DeadlineExceeded


class ShuttingDown(ZLinkError, RuntimeError):
    kind = ErrorKind.ShuttingDown


class ProtocolError(ZLinkError, ValueError):
    kind = ErrorKind.ProtocolError


class InvalidOperation(ZLinkError, RuntimeError):
    kind = ErrorKind.InvalidOperation


class DataLost(ZLinkError, RuntimeError):
    kind = ErrorKind.DataLost


class InternalFailure(ZLinkError, RuntimeError):
    kind = ErrorKind.InternalFailure


class Cancelled(BaseException):
    """The operation or task was cancelled. A `BaseException`, as in asyncio and trio."""
