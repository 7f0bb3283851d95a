"""Checks of the ownership an upper layer promised (seed 000 section 8, design 3.2).

`debug_assert_*` are active when `__debug__` is true and do nothing under `python -O`. `assert_on_lane` is never
compiled out: for components in which a re-entry has really happened once.
"""

from __future__ import annotations

from typing import Protocol

from zlink_nogil.state.lane import StateLane

__all__ = ["assert_on_lane", "debug_assert_current", "debug_assert_not_on_lane", "debug_assert_on_lane"]


class _Serial(Protocol):
    def is_current(self) -> bool: ...


def assert_on_lane(lane: StateLane) -> None:
    """`AssertionError` unless the calling thread is inside a turn of `lane`; in every build."""
    if not lane.is_on_lane:
        raise AssertionError(f"must run on state lane {lane.name!r}")


def debug_assert_on_lane(lane: StateLane) -> None:
    """As `assert_on_lane`, in debug builds only."""
    if __debug__:
        assert_on_lane(lane)


def debug_assert_not_on_lane(lane: StateLane) -> None:
    """`AssertionError` in debug builds if the calling thread is inside a turn of `lane`."""
    if __debug__ and lane.is_on_lane:
        raise AssertionError(f"must not run on state lane {lane.name!r}")


def debug_assert_current(queue: _Serial) -> None:
    """`AssertionError` in debug builds unless the calling thread is in a turn of the serial queue."""
    if __debug__ and not queue.is_current():
        raise AssertionError(f"must run in a turn of {queue!r}")
