# SPDX-License-Identifier: Apache-2.0
import math

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.errors import InvalidParameterError

positive = st.floats(1e-300, 1e300)


def make(**changes):
    fields = {"epsilon": 1.0, "delta": 1e-6, "relation": Relation.ADD_REMOVE, "privacy_unit": "user"}
    return Guarantee(**fields | changes)


# --- relations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Relation))
def test_a_relation_is_read_back_from_its_name_in_any_spelling(relation):
    name = relation.value
    for spelling in (name, name.upper(), name.replace("-", "_"), f"  {name} ", relation):
        assert Relation.parse(spelling) is relation


@pytest.mark.parametrize("bad", ["", "bounded", "add or remove", None, 3])
def test_an_unknown_relation_is_refused_with_the_known_ones(bad):
    with pytest.raises(InvalidParameterError, match=r"add-remove, replace-one, zero-out, replace-label"):
        Relation.parse(bad)


def test_replacing_moves_a_clipped_sum_twice_as_far():
    assert {r.value: r.diameter for r in Relation} == {
        "add-remove": 1,
        "replace-one": 2,
        "zero-out": 1,
        "replace-label": 2,
    }


def test_every_relation_has_a_counterpart_in_dp_accounting():
    theirs = dp_accounting.NeighboringRelation
    assert Relation.ADD_REMOVE.to_dp_accounting() is theirs.ADD_OR_REMOVE_ONE
    assert Relation.ZERO_OUT.to_dp_accounting() is theirs.REPLACE_SPECIAL
    assert Relation.REPLACE_ONE.to_dp_accounting() is theirs.REPLACE_ONE
    assert Relation.REPLACE_LABEL.to_dp_accounting() is theirs.REPLACE_ONE


# --- rounding --------------------------------------------------------------------------------------------


@given(positive, st.integers(1, 12))
def test_round_up_never_understates_and_adds_less_than_one_unit_of_the_last_digit(value, digits):
    rounded = round_up(value, digits)
    assert rounded >= value
    assert rounded <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


@given(positive, st.integers(1, 12))
def test_round_up_keeps_no_more_digits_than_asked_and_is_stable(value, digits):
    rounded = round_up(value, digits)
    assert float(f"{rounded:.{digits - 1}e}") == rounded
    assert round_up(rounded, digits) == rounded


@given(positive, positive)
def test_round_up_keeps_the_order(a, b):
    if a <= b:
        assert round_up(a) <= round_up(b)


def test_round_up_leaves_zero_and_infinity_alone():
    assert round_up(0.0) == 0
    assert round_up(math.inf) == math.inf


# --- guarantees ------------------------------------------------------------------------------------------


@given(positive)
def test_a_printed_epsilon_is_never_below_the_computed_one(epsilon):
    printed = str(make(epsilon=epsilon)).split(",")[0].lstrip("(")
    assert float(printed) >= epsilon


def test_a_guarantee_prints_everything_it_depends_on():
    text = str(make(epsilon=0.50001, relation=Relation.REPLACE_ONE))
    assert text == "(0.5001, 1e-06)-differential privacy for one user, replace-one neighbors"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", -0.1),
        ("epsilon", math.nan),
        ("delta", -1e-9),
        ("delta", 1.1),
        ("delta", math.nan),
        ("privacy_unit", ""),
        ("privacy_unit", "  "),
        ("relation", "add-remove"),
    ],
)
def test_an_invalid_guarantee_cannot_exist(field, value):
    with pytest.raises(InvalidParameterError, match=field):
        make(**{field: value})


def test_no_privacy_is_a_guarantee_of_infinite_epsilon():
    assert make(epsilon=math.inf).epsilon == math.inf


@given(st.floats(0, 5), st.floats(0, 1e-3), st.integers(1, 20))
def test_group_privacy_is_what_a_chain_of_neighbors_gives(epsilon, delta, size):
    # P0 <= e^eps P1 + delta, P1 <= e^eps P2 + delta, ...: unrolled one neighbor at a time.
    chained = 0.0
    for _ in range(size):
        chained = math.exp(epsilon) * chained + delta
    group = make(epsilon=epsilon, delta=delta).for_group(size)
    assert group.epsilon == pytest.approx(size * epsilon)
    assert group.delta == pytest.approx(min(1.0, chained), rel=1e-9)


def test_group_privacy_keeps_pure_privacy_pure_and_names_the_group():
    group = make(delta=0.0, epsilon=100.0).for_group(50)
    assert (group.epsilon, group.delta) == (5000.0, 0.0)
    assert group.privacy_unit == "group of 50 x user"
    assert "for group of 50 x user" in str(group)
    assert make().for_group(1) == make()


def test_group_privacy_never_claims_a_delta_above_one():
    assert make(epsilon=100.0).for_group(50).delta == 1.0


@pytest.mark.parametrize("size", [0, -1, 1.0, math.nan, True])
def test_a_group_has_a_whole_number_of_members(size):
    with pytest.raises(InvalidParameterError, match="size"):
        make().for_group(size)
