"""What a handler's annotations say (design 4.7): read once, at registration."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

__all__ = ["message_name", "read_annotations"]


def message_name(message_type: Any) -> str:
    name: str = getattr(message_type, "__name__", None) or str(message_type)
    return name


def read_annotations(function: Callable[..., Any], *, method: bool, more: bool = False) -> tuple[Any, Any]:
    """(message type, reply type) of `function(message, ctx)`, or of a method's; reply None: it is for sends.

    With `more`, further parameters are dependencies.
    `TypeError` naming the function when it is no handler.
    """
    label = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function)
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ][method:]
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(f"the annotations of handler {label} cannot be read: {error}") from None
    if len(parameters) < 2 or parameters[0].name not in hints:
        raise TypeError(f"handler {label} must take (message, ctx), the message annotated with its type")
    if any(not more or parameter.name not in hints for parameter in parameters[2:]):
        raise TypeError(f"handler {label} must take (message, ctx), and annotated dependencies where it may have them")
    reply_type = hints.get("return")
    return hints[parameters[0].name], None if reply_type is type(None) else reply_type
