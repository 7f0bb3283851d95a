"""`ExecutionLanePolicy` (design 3.3): its defaults, and that a bad value is refused by name when the policy is made."""

from __future__ import annotations

import dataclasses
import math

import pytest

from zlink_nogil.execution import ExecutionLanePolicy

DEFAULTS = {
    "application_message_capacity": 1024,
    "application_byte_capacity": 64 * 1024 * 1024,
    "lifecycle_message_capacity": 128,
    "lifecycle_byte_capacity": 4 * 1024 * 1024,
    "fixed_work_byte_cost": 256,
    "lifecycle_burst_limit": 8,
    "owner_time_budget_ms": 10,
}
POSITIVE = sorted(set(DEFAULTS) - {"fixed_work_byte_cost"})
WHOLE = sorted(set(DEFAULTS) - {"owner_time_budget_ms"})


def test_the_defaults_are_the_documented_ones():
    assert dataclasses.asdict(ExecutionLanePolicy()) == DEFAULTS


@pytest.mark.parametrize("field", DEFAULTS)
@pytest.mark.parametrize("value", [-1, "8", None, True, [], math.nan, math.inf, -math.inf, 1j])
def test_a_bad_value_raises_naming_the_field(field, value):
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        ExecutionLanePolicy(**{field: value})


@pytest.mark.parametrize("field", POSITIVE)
def test_zero_is_refused(field):
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        ExecutionLanePolicy(**{field: 0})


@pytest.mark.parametrize("field", WHOLE)
def test_a_count_must_be_whole(field):
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        ExecutionLanePolicy(**{field: 1.0})


@pytest.mark.parametrize("field", DEFAULTS)
def test_one_is_enough(field):
    assert getattr(ExecutionLanePolicy(**{field: 1}), field) == 1


def test_the_fixed_cost_may_be_zero_and_the_budget_a_fraction():
    policy = ExecutionLanePolicy(fixed_work_byte_cost=0, owner_time_budget_ms=0.5)
    assert (policy.fixed_work_byte_cost, policy.owner_time_budget_ms) == (0, 0.5)


def test_it_is_immutable_and_compared_by_value():
    policy = ExecutionLanePolicy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.lifecycle_burst_limit = 1
    assert policy == ExecutionLanePolicy()
    assert hash(policy) == hash(ExecutionLanePolicy())


def test_fields_are_named_not_counted():
    with pytest.raises(TypeError):
        ExecutionLanePolicy(1024)
