"""Selection: smooth weighted round robin, prepared for a cycle and never different from the procedure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zlink_nogil.messaging import selection
from zlink_nogil.messaging.selection import LONGEST_CYCLE, Selector

quick = settings(max_examples=100, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Node:
    identifier: bytes


def candidates(weights: Mapping[bytes, int]) -> dict[bytes, tuple[Node, int]]:
    return {name: (Node(name), weight) for name, weight in weights.items()}


def selector(weights: Mapping[bytes, int]) -> Selector[Node]:
    made: Selector[Node] = Selector("test")
    made.replace(candidates(weights))
    return made


def choose(made: Selector[Node], times: int) -> list[bytes | None]:
    chosen = (made.choose() for _ in range(times))
    return [None if node is None else node.identifier for node in chosen]


class Procedure:
    """Design 4.4 word for word: a step per call, nothing prepared."""

    def __init__(self) -> None:
        self.weights: dict[bytes, int] = {}
        self.accumulators: dict[bytes, int] = {}

    def replace(self, weights: Mapping[bytes, int]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.accumulators = {name: self.accumulators.get(name, 0) for name in self.weights}

    def choose(self) -> bytes | None:
        if not self.weights:
            return None
        for name, weight in self.weights.items():
            self.accumulators[name] += weight
        best = min(self.weights, key=lambda name: (-self.accumulators[name], name))
        self.accumulators[best] -= sum(self.weights.values())
        return best


# -- the order ----------------------------------------------------------------------------------------------------------


def test_weights_100_and_300_give_b_a_b_b():
    assert choose(selector({b"A": 100, b"B": 300}), 8) == [b"B", b"A", b"B", b"B"] * 2


def test_one_candidate_is_always_chosen_and_none_gives_none():
    assert choose(selector({b"A": 7}), 3) == [b"A"] * 3
    assert choose(selector({}), 2) == [None, None]


def test_equal_weights_take_turns_by_identifier_as_unsigned_bytes():
    assert choose(selector({b"\xff": 1, b"\x7f": 1, b"\x80": 1}), 6) == [b"\x7f", b"\x80", b"\xff"] * 2


def test_a_tie_goes_to_the_prefix_before_the_longer():
    assert choose(selector({b"ab": 5, b"a": 5, b"": 5}), 3) == [b"", b"a", b"ab"]


def test_weight_0_is_out():
    assert set(choose(selector({b"A": 0, b"B": 1}), 5)) == {b"B"}
    assert choose(selector({b"A": 0}), 1) == [None]


def test_the_same_candidates_give_the_same_order_on_every_run_in_whatever_order_they_come():
    weights = {b"x": 3, b"y": 5, b"z": 2}
    backwards = dict(reversed(weights.items()))
    assert choose(selector(weights), 50) == choose(selector(weights), 50) == choose(selector(backwards), 50)


@quick
@given(st.dictionaries(st.binary(max_size=2), st.integers(1, 9), min_size=1, max_size=5))
def test_a_cycle_has_every_candidate_by_its_weight(weights):
    total = sum(weights.values())
    assert Counter(choose(selector(weights), 3 * total)) == {name: 3 * weight for name, weight in weights.items()}


@quick
@given(st.dictionaries(st.binary(max_size=2), st.integers(1, 50), min_size=2, max_size=5), st.integers(1, 200))
def test_at_any_moment_nobody_is_more_than_one_turn_off_its_share_per_rival(weights, times):
    counts = Counter(choose(selector(weights), times))
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(counts[name] - Fraction(times * weight, total)) < len(weights)


# -- changes ------------------------------------------------------------------------------------------------------------

changes = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 12), max_size=4), st.integers(0, 40)
    ),
    min_size=1,
    max_size=5,
)


@quick
@given(changes)
def test_through_any_changes_the_prepared_order_is_the_procedures(steps):
    made: Selector[Node] = Selector("test")
    procedure = Procedure()
    for weights, times in steps:
        made.replace(candidates(weights))
        procedure.replace(weights)
        assert choose(made, times) == [procedure.choose() for _ in range(times)]


@quick
@given(changes)
def test_through_any_changes_an_order_that_is_too_long_to_prepare_is_the_procedures(steps):
    made: Selector[Node] = Selector("test")
    procedure = Procedure()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "LONGEST_CYCLE", 6)
        for weights, times in steps:
            made.replace(candidates(weights))
            procedure.replace(weights)
            assert choose(made, times) == [procedure.choose() for _ in range(times)]


def test_accumulators_of_those_that_stay_are_kept():
    made = selector({b"A": 100, b"B": 300})
    assert choose(made, 1) == [b"B"]
    made.replace(candidates({b"A": 100, b"B": 300}))  # the same again: the order goes on
    assert choose(made, 7) == [b"A", b"B", b"B", b"B", b"A", b"B", b"B"]


def test_who_has_had_its_turns_early_waits_after_a_change_and_is_not_left_out_for_ever():
    made = selector({b"A": 100, b"B": 1000})
    while choose(made, 1) != [b"A"]:
        pass
    made.replace(candidates({b"A": 100, b"C": 100}))  # A owes B's share still
    chosen = choose(made, 40)
    assert chosen[0] == b"C"
    assert Counter(chosen[20:]) == {b"A": 10, b"C": 10}


def test_a_change_of_weights_moves_the_share():
    made = selector({b"A": 1, b"B": 1})
    choose(made, 3)
    made.replace(candidates({b"A": 3, b"B": 1}))
    assert Counter(choose(made, 40)) == {b"A": 30, b"B": 10}


def test_who_comes_back_starts_anew():
    made = selector({b"A": 1, b"B": 3})
    choose(made, 1)
    made.replace(candidates({b"A": 1}))
    made.replace(candidates({b"A": 1, b"B": 3}))
    fresh = Procedure()
    fresh.replace({b"A": 1, b"B": 3})
    fresh.accumulators[b"A"] = made._accumulators[b"A"]
    assert choose(made, 12) == [fresh.choose() for _ in range(12)]


# -- cost ---------------------------------------------------------------------------------------------------------------


def test_a_cycle_up_to_the_limit_is_prepared_and_a_longer_one_is_not():
    assert len(selector({b"A": LONGEST_CYCLE - 1, b"B": 1})._order) == LONGEST_CYCLE
    assert (
        len(selector({b"A": 1000 * (LONGEST_CYCLE - 1), b"B": 1000})._order) == LONGEST_CYCLE
    )  # what divides all is taken out
    assert not selector({b"A": LONGEST_CYCLE, b"B": 1})._order


def test_a_cycle_longer_than_the_limit_gives_the_procedures_sequence():
    weights = {b"A": 4999, b"B": 3001, b"C": 7}
    procedure = Procedure()
    procedure.replace(weights)
    assert choose(selector(weights), 3000) == [procedure.choose() for _ in range(3000)]


def test_choosing_from_a_prepared_order_takes_no_step(monkeypatch):
    made = selector({b"A": 100, b"B": 300})
    monkeypatch.setattr(Selector, "_step", lambda *_: pytest.fail("a step was taken"))
    assert choose(made, 9) == [b"B", b"A", b"B", b"B", b"B", b"A", b"B", b"B", b"B"]
