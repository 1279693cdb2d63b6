# SPDX-License-Identifier: Apache-2.0
"""Errors of marginals: right by hand, small for real rows, large for wrong ones."""

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.marginals import column_shares, cut_off, marginal_errors
from sfumato.generative.tables.domain import Category, Number

COLUMNS = {
    "a": Category(values=(0, 1)),
    "b": Category(values=(0, 1)),
    "c": Number(lower=0.0, upper=1.0, bins=2),
}


def table(rows, *, related, seed):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 2, rows)
    second = first if related else rng.integers(0, 2, rows)
    return pd.DataFrame({"a": first, "b": second, "c": rng.random(rows)})


def test_errors_are_those_computed_by_hand():
    synthetic = {"a": [0, 0, 1, 1], "b": [0, 1, 0, 1]}
    holdout = {"a": [0, 0, 1, 1], "b": [0, 0, 1, 7]}
    found = marginal_errors(synthetic, holdout, {name: COLUMNS[name] for name in "ab"})
    assert found.one_way == {"a": 0.0, "b": 0.25}  # the undeclared 7 counts as another value
    # Pairs 00 01 10 11 1x: 1/4 each of the first four against 1/2, 0, 0, 1/4, 1/4.
    assert found.two_way == {("a", "b"): 0.5}
    assert found.mean_one_way == 0.125 and found.worst_one_way == 0.25 and found.worst_two_way == 0.5


def test_shares_are_those_computed_by_hand_and_named_by_value():
    columns = {**COLUMNS, "n": Number(lower=0, upper=3, bins=(0, 1, 3), whole=True, missing=False)}
    made = {"a": [0, 0, 1, None], "b": [0] * 4, "c": [0.1, 0.9, 7, "?"], "n": [0, 1, 2, 3]}
    found = column_shares(made, columns, holdout={name: values[:2] for name, values in made.items()})
    assert found["a"].values == ("0", "1", "missing or other") and found["a"].synthetic == (0.5, 0.25, 0.25)
    assert found["a"].holdout == (1.0, 0.0, 0.0) and found["c"].synthetic == (0.25,) * 4
    assert found["n"].values == ("0", "1 to 3") and found["n"].synthetic == (0.25, 0.75)


def test_real_rows_are_near_the_floor():
    found = marginal_errors(table(2000, related=True, seed=0), table(2000, related=True, seed=1), COLUMNS)
    assert found.mean_one_way < 0.03 and found.mean_two_way < 0.05
    assert found.floor_one_way < 0.03 and found.floor_two_way < 0.04
    assert "worst" in str(found) and "pairs" in str(found)


MANY = {
    "a": Category(values=tuple(range(6)), missing=False),
    "b": Category(values=tuple(range(40)), missing=False),
    "c": Number(lower=0.0, upper=1.0, bins=20, missing=False),
}


def sample(rows, seed, *, related=True):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 6, rows)
    skewed = np.minimum(rng.geometric(0.15, rows), 39)
    second = (skewed + 3 * first * related) % 40
    third = np.where(rng.random(rows) < 0.5 * related, (first + 0.5) / 6, rng.random(rows))
    return pd.DataFrame({"a": first, "b": second, "c": third})


@pytest.mark.parametrize(("rows", "public"), [(4000, 1500), (300, 1500), (1500, 400)])
def test_the_floor_is_the_error_of_as_many_real_rows(rows, public):
    """Real rows in place of synthetic ones, several times; halves of the public rows would differ by more."""
    found = [marginal_errors(sample(rows, s), sample(public, 100 + s), MANY, seed=s) for s in range(8)]
    for ways in ("one_way", "two_way"):
        floor = np.mean([getattr(each, f"floor_{ways}") for each in found])
        assert floor == pytest.approx(np.mean([getattr(each, f"mean_{ways}") for each in found]), rel=0.12)


def test_rows_without_dependence_are_at_the_other_yardstick_and_above_the_floor():
    public, unrelated = sample(1500, 1), sample(4000, 0)
    for name in unrelated:
        unrelated[name] = np.random.default_rng(3).permutation(unrelated[name])
    for column, seed in (("b", 4), ("c", 5)):
        unrelated[column] = np.random.default_rng(seed).permutation(unrelated[column])
    found = marginal_errors(unrelated, public, MANY)
    assert found.no_dependence_two_way == pytest.approx(found.mean_two_way, rel=0.05)
    assert found.no_dependence_two_way > 1.5 * found.floor_two_way
    assert f"{found.no_dependence_two_way:.3f}" in str(found) and "by chance" in str(found)


def test_without_any_relation_both_yardsticks_agree():
    found = [
        marginal_errors(sample(4000, s, related=False), sample(1500, 50 + s, related=False), MANY, seed=s)
        for s in range(4)
    ]
    floors, alone = ([getattr(e, name) for e in found] for name in ("floor_two_way", "no_dependence_two_way"))
    assert np.mean(alone) == pytest.approx(np.mean(floors), rel=0.08)


@pytest.mark.parametrize("rows", [2, 3, 7, 8])
def test_a_few_public_rows_have_yardsticks_too(rows):
    found = marginal_errors(sample(50, 0), sample(rows, 1), MANY)
    assert 0 <= found.floor_two_way <= 1 and 0 <= found.no_dependence_two_way <= 1


def test_a_lost_relation_shows_in_pairs_only():
    found = marginal_errors(table(2000, related=False, seed=0), table(2000, related=True, seed=1), COLUMNS)
    assert found.worst_one_way < 0.04
    assert (
        found.two_way["a", "b"] == pytest.approx(0.5, abs=0.04)
        and found.worst_two_way == found.two_way["a", "b"]
    )
    assert found.two_way["a", "c"] < 0.06 and "a x b" in str(found)


def test_one_column_has_no_pairs():
    found = marginal_errors({"a": [0]}, {"a": [1, 1]}, {"a": COLUMNS["a"]})
    assert found.worst_one_way == 1.0 and found.two_way == {} and found.mean_two_way is None
    assert found.worst_two_way is None and found.floor_two_way is None and "pairs" not in str(found)
    assert found.no_dependence_two_way is None


def test_a_constant_column_is_no_error():
    same = {"a": [1] * 10, "b": [0] * 10, "c": [0.1] * 10}
    assert marginal_errors(same, same, COLUMNS).worst_two_way == 0.0


@pytest.mark.parametrize(
    ("synthetic", "holdout", "match"),
    [
        ({"a": [0]}, {"b": [0, 1]}, "no column 'a'"),
        ({"b": [0]}, {"a": [0, 1]}, "no column 'a'"),
        ({"a": []}, {"a": [0, 1]}, "a synthetic row"),
        ({"a": [0]}, {"a": [0]}, "two holdout rows"),
    ],
)
def test_wrong_tables_are_refused(synthetic, holdout, match):
    with pytest.raises(InvalidParameterError, match=match):
        marginal_errors(synthetic, holdout, {"a": COLUMNS["a"]})


def test_shares_of_an_empty_table_are_refused():
    with pytest.raises(InvalidParameterError, match="at least one row"):
        column_shares({"a": []}, {"a": COLUMNS["a"]})


def test_a_column_that_was_cut_off_is_in_error_by_what_is_beyond():
    columns = {"age": Number(lower=0, upper=64, bins=8, whole=True)}
    holdout = {"age": [*[60] * 60, *[80] * 30, *[-3] * 10]}
    synthetic = {"age": [*[60] * 90, *[2] * 10]}  # what clipping makes of the holdout
    assert marginal_errors(synthetic, holdout, columns).one_way["age"] == pytest.approx(0.4)
    assert cut_off(holdout, columns) == {"age": pytest.approx(0.4)}
    shares = column_shares(synthetic, columns, holdout=holdout)["age"]
    assert shares.values[-3:] == ("missing or other", "below 0", "above 64")
    assert shares.holdout is not None and shares.holdout[-2:] == (0.1, 0.3)


def test_a_number_alone_in_its_bin_is_named_by_itself():
    bins = (0.0, 5e-324, 1.0, 2.0)
    found = column_shares({"a": [0.0]}, {"a": Number(lower=0, upper=2, bins=bins, missing=False)})
    assert found["a"].values == ("0", "4.94066e-324 to 1", "1 to 2")
