"""State lanes: one component's mutable state, touched by one turn at a time (seed 000, design 3.1-3.2)."""

from zlink_nogil.state.assertions import (
    assert_on_lane,
    debug_assert_current,
    debug_assert_not_on_lane,
    debug_assert_on_lane,
)
from zlink_nogil.state.lane import StateLane

__all__ = [
    "StateLane",
    "assert_on_lane",
    "debug_assert_current",
    "debug_assert_not_on_lane",
    "debug_assert_on_lane",
]
