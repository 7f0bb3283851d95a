"""`Scope`: what was made for one dispatch, or one activation, and how it is cleaned up.

Guarantees
    `close` cleans up once, the latest first; a clean-up that raises is logged and keeps no other from running.

Ownership
    belongs to whoever made it; one thread at a time
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

__all__ = ["Scope"]

_log = logging.getLogger("zlink_nogil.dependencies")


class Scope:
    """Made for one dispatch or activation; `close` ends it."""

    __slots__ = ("_cleanups", "instances")

    def __init__(self) -> None:
        self.instances: dict[object, Any] = {}
        """By provider."""
        self._cleanups: list[Generator[Any]] = []

    def begin(self, resource: Generator[Any]) -> Any:
        """The value of a generator function's resource; what comes after its `yield` is the clean-up."""
        value = next(resource)
        self._cleanups.append(resource)
        return value

    def close(self) -> None:
        """Clean up; harmless a second time."""
        self.instances = {}
        while self._cleanups:
            resource = self._cleanups.pop()
            try:
                next(resource)
            except StopIteration:
                continue
            except BaseException:  # the others are cleaned up all the same
                _log.exception("a clean-up failed: %s", resource)
            else:
                _log.error("%s yields twice: one value is all a dependency has", resource)
                resource.close()
