# SPDX-License-Identifier: Apache-2.0
"""Copies of training rows: found with a paid count, not imagined, and no row can do more than be counted."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom

from sfumato import Budget, Ledger
from sfumato.accounting import Relation, price
from sfumato.audit.mechanisms.payment_order import check_paid_first, check_stays_spent
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.generative.evaluation.memorization import TrainingRows, copy_test, near_copies
from sfumato.generative.tables.domain import Category, Number
from sfumato.testing import seeded

RNG = np.random.default_rng(0)
SYNTHETIC, HOLDOUT = RNG.random((40, 3)), RNG.random((100, 3))
TEST = copy_test(SYNTHETIC, HOLDOUT, quantile=0.05)
LARGE = 10_000.0  # an epsilon that adds no noise to speak of


def account_of(tmp_path, epsilon, unit="row"):
    budget = Budget(epsilon=epsilon, delta=0)
    return Ledger(tmp_path / f"{epsilon}.db").open("a", privacy_unit=unit, budget=budget)


def counts(rows, **terms):
    return near_copies(
        TrainingRows(rows=rows, **terms), TEST, epsilon=LARGE, generator=seeded(0)
    ).release.value


def test_a_frame_and_another_test_are_refused_with_what_to_pass():
    frame = pd.DataFrame({"a": [1.0]})
    with pytest.raises(InvalidParameterError, match=r"type DataFrame. Pass TrainingRows\(rows=...\)"):
        near_copies(frame, TEST, epsilon=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidParameterError, match="Pass what copy_test"):
        near_copies(TrainingRows(rows=SYNTHETIC), frame, epsilon=1.0)  # pyright: ignore[reportArgumentType]


# --- power ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [600, 60])
def test_copied_rows_are_found(digits, copied):
    images, _ = digits
    training, holdout, others = images[:600], images[600:1200], images[1200:]
    test = copy_test(np.concatenate([training[:copied], others]), holdout)
    found = near_copies(TrainingRows(rows=training), test, epsilon=1.0, generator=seeded(1))
    assert found.memorized and "MEMORIZATION" in str(found)
    assert found.share == pytest.approx(copied / 600, abs=0.05)
    assert found.interval[0] < found.share < found.interval[1] or found.share == 1.0


def test_slightly_changed_copies_are_found(digits):
    images, _ = digits
    copies = images[:600] + 0.02 * RNG.normal(size=(600, 1, 8, 8))
    found = near_copies(TrainingRows(rows=images[:600]), copy_test(copies, images[600:1200]), epsilon=1.0)
    assert found.memorized


def test_independent_rows_are_not_accused():
    """A false alarm has a chance of at most 0.05 at level 0.95. The check fails by chance once in 1e4."""
    rng, alarms = np.random.default_rng(5), 0
    for seed in range(200):
        synthetic, holdout, training = rng.random((50, 2)), rng.random((300, 2)), rng.random((300, 2))
        test = copy_test(synthetic, holdout, quantile=0.05)
        found = near_copies(TrainingRows(rows=training), test, epsilon=1.0, generator=seeded(seed))
        alarms += found.memorized
        assert "no sign of memorization" in str(found) or found.memorized
    assert binom.sf(alarms - 1, 200, 0.05) > 1e-4


def test_the_interval_covers_the_true_share():
    """A known share of all rows that could be drawn is within the radius of the one synthetic row."""
    rng, missed = np.random.default_rng(6), 0
    test = copy_test(np.array([[0.0]]), np.linspace(0, 1, 100)[:, None], quantile=0.2)
    for seed in range(200):
        found = near_copies(
            TrainingRows(rows=rng.random((150, 1))), test, epsilon=0.5, generator=seeded(seed), level=0.8
        )
        missed += not found.interval[0] <= test.radius <= found.interval[1]
    assert binom.sf(missed - 1, 200, 0.2) > 1e-4


# --- the count --------------------------------------------------------------------------------------------


def test_no_rows_are_counted_as_none():
    assert counts(np.zeros((0, 3))) == (0, 0)
    found = near_copies(TrainingRows(rows=np.zeros((0, 3))), TEST, epsilon=LARGE)
    assert found.share == 0.0 and not found.memorized and found.interval == (0.0, 1.0)


def test_many_rows_are_counted_in_parts():
    rows = np.random.default_rng(3).random((9000, 3))
    slow = np.linalg.norm(rows[:, None] - SYNTHETIC, axis=2).min(axis=1) <= TEST.radius
    assert counts(rows)[0] == pytest.approx(slow.sum(), abs=5)  # the grid moves a few across the radius
    assert sum(counts(rows)) == 9000 and counts(torch.tensor(rows)) == counts(rows)


def test_each_row_is_in_one_count():
    rows = np.concatenate([SYNTHETIC[:7], np.full((5, 3), 50.0) * [1, 0, 1]])
    expected = int(TEST.near(rows).sum())
    assert expected >= 7 and counts(rows) == (expected, len(rows) - expected)


hostile = arrays(np.float64, (3,), elements=st.floats(width=64))


@given(hostile, st.integers(0, 9))
def test_one_row_changes_both_counts_together_by_at_most_1(value, place):
    rows = np.random.default_rng(2).random((10, 3))
    without = np.delete(rows, place, axis=0)
    rows[place] = value
    changes = [abs(a - b) for a, b in zip(_exact(rows), _exact(without), strict=True)]
    assert sum(changes) == 1


def _exact(rows, units=None, bound=1):
    near = TEST.near(rows)
    if units is None:
        return int(near.sum()), int((~near).sum())
    return counts(rows, units=units, rows_per_unit=bound, privacy_unit="person")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, -1e308])
def test_a_poisoned_row_changes_its_own_count_only(value):
    rows = np.concatenate([SYNTHETIC[:5], RNG.random((5, 3))])
    before = TEST.near(rows)
    rows[2] = value
    after = TEST.near(rows)
    assert np.array_equal(np.delete(before, 2), np.delete(after, 2)) and not after[2]
    assert sum(counts(rows)) == 10


def test_cells_that_are_no_numbers_raise_nothing():
    rows = np.array([[0.1, "0.2", None], [object(), [], 3], [0.5, 0.5, 0.5]], dtype=object)
    assert sum(counts(rows)) == 3


def test_a_unit_counts_at_most_its_bound():
    rows = np.concatenate([SYNTHETIC[:6], np.full((6, 3), np.nan)])
    units = ["a"] * 5 + ["b"] + ["a"] * 3 + ["c"] * 3
    assert _exact(rows, units, 1) == (2, 1)
    assert _exact(rows, units, 2) == (3, 2)
    assert _exact(rows, units, 7) == (6, 5)


def test_rows_without_a_unit_are_left_out():
    rows = np.concatenate([SYNTHETIC[:3], SYNTHETIC[:2]])
    assert _exact(rows, [None, "a", float("nan"), [], "b"], 3) == (2, 0)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=8, max_size=8), st.integers(1, 3))
def test_one_unit_changes_both_counts_together_by_at_most_its_bound(units, bound):
    rows = np.concatenate([SYNTHETIC[:4], np.full((4, 3), np.nan)])[[0, 4, 1, 5, 2, 6, 3, 7]]
    left = [place for place, unit in enumerate(units) if unit != "a"]
    whole = _exact(rows, units, bound)
    without = _exact(rows[left], [units[place] for place in left], bound)
    assert sum(abs(a - b) for a, b in zip(whole, without, strict=True)) <= bound


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("bound", [1, 3])
def test_the_event_has_the_price_that_was_asked_for(delta, relation, bound):
    units = {} if bound == 1 else {"units": np.arange(100), "rows_per_unit": 3, "privacy_unit": "person"}
    found = near_copies(
        TrainingRows(rows=HOLDOUT, **units), TEST, epsilon=0.7, delta=delta, relation=relation
    ).release
    assert found.guarantee.epsilon <= 0.7 and found.guarantee.delta == delta
    assert price(found.event, delta=delta or 1e-12, relation=relation).epsilon <= 0.7 * (1 + 1e-6)


def test_noise_grows_with_the_bound_and_the_relation():
    def spread(relation, bound):
        units = {"units": np.arange(100), "rows_per_unit": bound, "privacy_unit": "person"}
        found = [
            near_copies(
                TrainingRows(rows=HOLDOUT, **units), TEST, epsilon=1.0, relation=relation, generator=seeded(k)
            )
            for k in range(150)
        ]
        return np.std([each.release.value[0] for each in found])

    one = spread("add-remove", 1)
    assert one == pytest.approx(np.sqrt(2), rel=0.4)
    assert spread("add-remove", 4) > 2.5 * one and spread("replace-one", 1) > 1.4 * one


# --- payment ----------------------------------------------------------------------------------------------


def asked(read, account):
    return near_copies(TrainingRows(rows=lambda: read()), TEST, epsilon=1.0, account=account)


def test_nothing_is_read_before_the_charge_or_without_one(tmp_path):
    assert check_paid_first(asked, lambda: HOLDOUT, account_of(tmp_path, 3.0)) == 1
    assert check_paid_first(asked, lambda: HOLDOUT, account_of(tmp_path, 0.5)) == 0


def test_units_are_read_after_the_charge_too(tmp_path):
    def by_unit(units, account):
        rows = TrainingRows(rows=HOLDOUT, units=lambda: units(), rows_per_unit=2, privacy_unit="person")
        return near_copies(rows, TEST, epsilon=1.0, account=account)

    def names():
        return np.arange(100) // 2

    assert check_paid_first(by_unit, names, account_of(tmp_path, 3.0, "person")) == 1


def test_a_failing_read_stays_spent_and_tells_nothing(tmp_path):
    check_stays_spent(asked, lambda: HOLDOUT, account_of(tmp_path, 3.0))

    def fail():
        raise ValueError("row 17 holds a secret")

    account = account_of(tmp_path, 4.0)
    with pytest.raises(QueryFailedError) as caught:
        asked(fail, account)
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    assert [one.spent for one in account.releases()] == [True]


def test_a_charge_is_recorded_with_its_purpose(tmp_path):
    account = account_of(tmp_path, 3.0)
    found = near_copies(TrainingRows(rows=HOLDOUT), TEST, epsilon=1.0, account=account, purpose="copies")
    assert found.release.account == "a" and found.release.recorded
    assert [one.purpose for one in account.releases()] == ["copies"]
    with pytest.raises(BudgetExceededError):
        near_copies(TrainingRows(rows=HOLDOUT), TEST, epsilon=2.5, account=account)


def test_a_seeded_release_is_marked():
    found = near_copies(TrainingRows(rows=HOLDOUT), TEST, epsilon=1.0, generator=seeded(0))
    assert any("for study only" in note for note in found.release.notes)


def test_wrong_arguments_are_refused_before_the_charge(tmp_path):
    account = account_of(tmp_path, 3.0)
    for rows, terms, match in (
        (np.zeros((4, 2)), {}, "has 2 values, but a synthetic row has 3"),
        (np.zeros(4), {}, "values"),
        (HOLDOUT, {"epsilon": 0.0}, "epsilon"),
        (HOLDOUT, {"level": 1.0}, "level"),
    ):
        with pytest.raises(InvalidParameterError, match=match):
            near_copies(TrainingRows(rows=rows), TEST, **{"epsilon": 1.0, **terms}, account=account)
    with pytest.raises(InvalidParameterError, match="privacy unit"):
        rows = TrainingRows(rows=HOLDOUT, privacy_unit="person")
        near_copies(rows, TEST, epsilon=1.0, account=account)
    assert account.releases() == []


def test_deferred_rows_of_another_shape_stay_spent(tmp_path):
    account = account_of(tmp_path, 3.0)
    with pytest.raises(InvalidParameterError, match="another shape"):
        asked(lambda: np.zeros((4, 2)), account)
    assert [one.spent for one in account.releases()] == [True]


def test_units_must_fit_the_rows():
    rows = TrainingRows(rows=HOLDOUT, units=["a"], rows_per_unit=1, privacy_unit="person")
    with pytest.raises(InvalidParameterError, match="one entry for each row"):
        near_copies(rows, TEST, epsilon=1.0)
    with pytest.raises(InvalidParameterError, match="pass units"):
        TrainingRows(rows=HOLDOUT, rows_per_unit=2)
    with pytest.raises(InvalidParameterError, match="name the unit"):
        TrainingRows(rows=HOLDOUT, units=["a"] * 100)


def test_a_repr_shows_no_row():
    assert "0." not in repr(TrainingRows(rows=HOLDOUT)) and "0." not in repr(TEST)


# --- the radius -------------------------------------------------------------------------------------------


def test_the_radius_is_a_quantile_of_the_holdout():
    assert (TEST.holdout_near, TEST.holdout_rows) == (5, 100)
    assert int(TEST.near(HOLDOUT).sum()) == 5
    away = np.sort(np.linalg.norm(HOLDOUT[:, None] - SYNTHETIC, axis=2).min(axis=1))
    assert TEST.radius == pytest.approx(away[4], abs=1e-3)
    wide = copy_test(SYNTHETIC * 200 - 100, HOLDOUT * 200 - 100, quantile=0.05, bounds=(-100.0, 100.0))
    assert wide.radius == pytest.approx(200 * TEST.radius, rel=1e-3)


def test_synthetic_rows_that_are_not_finite_are_left_out():
    broken = np.concatenate([SYNTHETIC, [[np.nan, 0, 0]]])
    assert copy_test(broken, HOLDOUT, quantile=0.05).radius == TEST.radius
    with pytest.raises(InvalidParameterError, match="finite synthetic row"):
        copy_test(np.full((2, 3), np.nan), HOLDOUT)
    with pytest.raises(InvalidParameterError, match="quantile"):
        copy_test(SYNTHETIC, HOLDOUT, quantile=1.0)


def test_copied_rows_of_a_table_are_found():
    columns = {
        "age": Number(lower=0, upper=100),
        "income": Number(lower=0, upper=1e5),
        "sex": Category(values=("f", "m")),
    }

    def table(seed):
        rng = np.random.default_rng(seed)
        return pd.DataFrame(
            {
                "age": 100 * rng.random(400),
                "income": 1e5 * rng.random(400),
                "sex": rng.choice(["f", "m"], 400),
            }
        )

    training, holdout, fresh = (table(seed) for seed in range(3))
    copied = near_copies(
        TrainingRows(rows=training), copy_test(training, holdout, columns=columns), epsilon=1.0
    )
    other = near_copies(TrainingRows(rows=training), copy_test(fresh, holdout, columns=columns), epsilon=1.0)
    assert copied.memorized and copied.share > 0.95 and not other.memorized
