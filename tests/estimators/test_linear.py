# SPDX-License-Identifier: Apache-2.0
"""What must hold for every private linear regression: paying first, replay on neighbors, bad input."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.estimators import ada_ssp, base, noisy_stats, theil_sen, tukey_em
from sfumato.estimators.ada_ssp import AdaSSP
from sfumato.estimators.linear import exact_gram, public_bounds
from sfumato.estimators.noisy_stats import NoisyStats
from sfumato.estimators.theil_sen import TheilSen
from sfumato.estimators.tukey_em import TukeyEM
from sfumato.ledger import Budget, Ledger
from sfumato.statistics.columns.columns import STEPS

UNIT = (-1.0, 1.0)
ONE_FEATURE = {
    "NoisyStats": NoisyStats(epsilon=1.0, feature_bounds=UNIT, target_bounds=UNIT),
    "TheilSen": TheilSen(epsilon=1.0, feature_bounds=UNIT, target_bounds=UNIT, matchings=3),
}
MANY_FEATURES = {
    "AdaSSP": AdaSSP(epsilon=1.0, delta=1e-6, clip_norm=1.0, target_bounds=UNIT),
    "TukeyEM": TukeyEM(epsilon=20.0, delta=1e-2, num_models=30, fallback=0.0),
}
ALL = ONE_FEATURE | MANY_FEATURES
RELATIONS = ["add-remove", "replace-one"]
ODD = ["secret", None, [1.0], 1j, 10**400, Decimal("sNaN"), pd.NA, pd.NaT, np.array([0.5])]
any_float = st.one_of(st.floats(), st.sampled_from([-1.0, 1.0, 0.0]), st.floats(-1, 1))
rows = st.lists(st.tuples(any_float, any_float), min_size=2, max_size=7)


def of(name: str, **changes):
    return clone(ALL[name]).set_params(random_state=0, **changes)


def line_data(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 1))
    return x, 0.5 * x[:, 0] + rng.normal(0, 0.05, n)


def replay(harness, estimator, data, neighbor):
    """Fit on both with the same noise; check what reached it, and that nothing else left."""
    with harness.watched(harness.Tape()) as first:
        one = clone(estimator).fit(*data)
    with harness.watched(harness.Tape(answers=[call.returned for call in first.calls])) as second:
        two = clone(estimator).fit(*neighbor)
    assert len(first.calls) == len(second.calls) > 0
    for before, after in zip(first.calls, second.calls, strict=True):
        harness.check_call(before, after)
    np.testing.assert_array_equal([*one.coef_, one.intercept_], [*two.coef_, two.intercept_])
    return first.calls, second.calls


def split(pairs) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, :1], table[:, 1]


def neighbor_of(pairs, relation: str):
    return pairs[:-1] if relation == "add-remove" else [*pairs[:-1], (1.0, -1.0)]


# --- paying -----------------------------------------------------------------------------------------------


class Untouchable:
    """Data that remember whether anybody looked."""

    def __init__(self) -> None:
        self.seen = False

    def __array__(self, dtype=None, copy=None):
        self.seen = True
        raise RuntimeError("secret 42")


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open("p", privacy_unit="row", budget=Budget(epsilon=25, delta=0.1))


@pytest.mark.parametrize("name", ALL)
def test_a_fit_is_charged_before_the_data_is_read_and_stays_charged(name, account):
    data = Untouchable()
    with pytest.raises((QueryFailedError, InvalidParameterError)) as caught:
        of(name, account=account).fit(data, [1.0])
    assert data.seen and len(account.releases()) == 1
    assert "42" not in str(caught.value) and account.spent().epsilon > 0


@pytest.mark.parametrize("name", ALL)
def test_a_fit_that_the_budget_refuses_never_reads_the_data(name, tmp_path):
    small = Ledger(tmp_path / "l.db").open("p", privacy_unit="row", budget=Budget(epsilon=1e-3, delta=1e-9))
    data = Untouchable()
    with pytest.raises(BudgetExceededError):
        of(name, account=small).fit(data, [1.0])
    assert not data.seen


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ALL)
def test_a_fit_promises_its_epsilon_and_its_event_costs_no_more(name, relation):
    fitted = of(name, relation=relation).fit(*line_data())
    assert fitted.guarantee_.relation is Relation.parse(relation)
    assert 0.99 * fitted.epsilon < fitted.guarantee_.epsilon <= fitted.epsilon
    assert fitted.guarantee_.delta == fitted.delta
    cost = price(fitted.event_, delta=max(fitted.delta, 1e-9), relation=fitted.guarantee_.relation)
    assert cost.epsilon <= fitted.epsilon
    assert fitted.notes_[0] == "for study only: the noise was seeded"


@pytest.mark.parametrize("name", ALL)
def test_other_relations_are_refused_before_anything_is_spent(name, account):
    for relation in ("zero-out", "replace-label"):
        with pytest.raises(InvalidParameterError, match="add-remove or replace-one"):
            of(name, relation=relation, account=account).fit(*line_data())
    assert account.releases() == []


# --- replay on neighbors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
@settings(deadline=None, max_examples=60)
@given(pairs=rows)
def test_one_row_moves_noisy_stats_within_its_sensitivity(neighbors, relation, pairs):
    estimator = of("NoisyStats", relation=relation)
    first, _ = replay(neighbors, estimator, split(pairs), split(neighbor_of(pairs, relation)))
    assert len(first) in (2, 3 if relation == "replace-one" else 4)


@settings(deadline=None, max_examples=60)
@given(pairs=rows)
def test_one_row_moves_the_medians_of_theil_sen_within_their_sensitivity(neighbors, pairs):
    estimator = of("TheilSen", relation="replace-one")
    first, _ = replay(neighbors, estimator, split(pairs), split(neighbor_of(pairs, "replace-one")))
    assert len(first) == 2


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("fit_intercept", [True, False])
@settings(deadline=None, max_examples=60)
@given(pairs=rows)
def test_one_row_moves_all_sums_of_ada_ssp_within_one_gaussian(neighbors, relation, fit_intercept, pairs):
    estimator = of("AdaSSP", relation=relation, fit_intercept=fit_intercept)
    calls = replay(neighbors, estimator, split(pairs), split(neighbor_of(pairs, relation)))
    assert distance(*calls) <= 1 / stddev_for(1.0, 1e-6, 1.0)


def distance(first, second) -> float:
    """How far neighbors are apart, in stddevs, over all numbers together: mu of Gaussian DP."""
    moved = [(a.given[0] - b.given[0]) / a.mechanism.stddev for a, b in zip(first, second, strict=True)]
    return float(np.linalg.norm(moved))


def test_the_distance_of_worst_neighbors_of_ada_ssp_is_nearly_the_stated_one(neighbors):
    """Nothing is wasted but the eigenvalue's share: one more extreme row, where there are plenty."""
    pairs = [(1.0, 1.0), (-1.0, 1.0)] * 50
    calls = replay(neighbors, of("AdaSSP", fit_intercept=False), split([*pairs, (1.0, 1.0)]), split(pairs))
    assert distance(*calls) > 0.99 / stddev_for(1.0, 1e-6, 1.0)


@pytest.mark.parametrize("relation", RELATIONS)
@settings(deadline=None, max_examples=40)
@given(hostile=rows, seed=st.integers(0, 2**32))
def test_one_row_moves_the_margin_of_tukey_em_by_at_most_one(neighbors, relation, hostile, seed):
    x, y = line_data(60, seed)
    pairs = [*zip(x[:, 0], y, strict=True), *hostile]
    estimator = of("TukeyEM", relation=relation)
    with pytest.MonkeyPatch.context() as patch:  # the choice itself: tests/estimators/test_tukey_em.py
        patch.setattr(tukey_em.DeepPoint, "choose", lambda self, boxes, generator: [0.0, 0.0])
        patch.setattr(base, "guarantee_of", lambda event, **terms: None)  # 0.1 s each time
        replay(neighbors, estimator, split(pairs), split(neighbor_of(pairs, relation)))


WEAKENED = {
    "NoisyStats": (noisy_stats.Sums, "sensitivity", lambda self, relation: 3 * STEPS),
    "TheilSen": (TheilSen, "_median", lambda self: _weak_median(self)),
    "AdaSSP": (ada_ssp.Sums, "sensitivities", lambda self, relation: (STEPS / 2,) * 3),
    "TukeyEM": (tukey_em.DeepPoint, "margin", lambda self, volumes: int(volumes[0] > 3) * 2),
}
FLAT = [(x, -1.0) for x in np.linspace(-1, 1, 20)]
LONG = [(x, -1.0) for x in np.linspace(-1, 1, 90)]
WORST = {
    "NoisyStats": ([(-1.0, -1.0)] * 200 + [(1.0, 1.0)], [(-1.0, -1.0)] * 201),
    "TheilSen": (FLAT, [*FLAT[:-1], (1.0, 1.0)]),
    "AdaSSP": ([(1.0, 1.0)] * 20, [*[(1.0, 1.0)] * 19, (0.0, 0.0)]),
    "TukeyEM": (LONG, [*LONG[:-1], (1.0, 9.0)]),
}


def _weak_median(estimator):
    return theil_sen.IntervalExponential(
        epsilon=estimator.epsilon / 2, sensitivity=1.0, relation=Relation.REPLACE_ONE, bounds=(-2.0, 2.0)
    )


@pytest.mark.parametrize("name", ALL)
def test_the_replay_sees_a_sensitivity_that_is_understated(neighbors, name, monkeypatch):
    estimator = of(name, relation="replace-one")
    monkeypatch.setattr(*WEAKENED[name])
    monkeypatch.setattr(tukey_em.DeepPoint, "choose", lambda self, boxes, generator: [0.0, 0.0])
    with pytest.raises(neighbors.LeakError, match="sensitivity"):
        replay(neighbors, estimator, *(split(pairs) for pairs in WORST[name]))


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NoisyStats", "TheilSen"])
def test_bounds_that_are_missing_reversed_or_endless_are_refused_before_paying(name, account):
    for wrong in (None, (1.0, -1.0), (0.0, np.inf), (0.0, np.nan), (-1e308, 1e308), 3.0):
        for which in ("feature_bounds", "target_bounds"):
            with pytest.raises(InvalidParameterError, match="bounds"):
                of(name, account=account, **{which: wrong}).fit(*line_data())
    assert account.releases() == []


@pytest.mark.parametrize("name", ALL)
def test_arrays_of_text_are_refused_without_being_shown(name):
    for X, y in (np.array([["secret"], ["1"]]), [1.0, 2.0]), ([[1.0], [2.0]], np.array(["secret", "1"])):
        with pytest.raises(InvalidParameterError) as caught:
            of(name).fit(X, y)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("name", ALL)
def test_one_entry_that_is_no_number_leaves_out_its_row_and_no_other(name, odd):
    x, y = line_data(40)
    missing = of(name).fit(np.append(x, [[0.5]], axis=0), np.append(y, np.nan))
    fitted = of(name).fit([[value] for value in [*x[:, 0].tolist(), 0.5]], [*y.tolist(), odd])
    other = of(name).fit([*x.tolist(), [odd]], [*y.tolist(), 0.5])
    for found in (fitted, other):
        np.testing.assert_array_equal(found.coef_, missing.coef_)
        assert found.intercept_ == missing.intercept_


@pytest.mark.parametrize("name", ALL)
def test_predictions_for_any_row_come_without_a_warning(name):
    """Warnings are errors here."""
    fitted = of(name).fit(*line_data())
    fitted.coef_, fitted.intercept_, fitted.failed_ = np.array([1e300]), -np.inf, False
    assert fitted.predict([[1e308], [-np.inf], [np.nan], [5e-324]]).shape == (4,)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("name", ALL)
def test_no_row_and_one_row_are_answered_like_any_others(name, size, relation):
    fitted = of(name, relation=relation).fit(np.full((size, 1), 0.5), np.full(size, 0.5))
    if not fitted.failed_:
        assert np.isfinite(fitted.coef_).all() and np.isfinite(fitted.intercept_)


@pytest.mark.parametrize("name", ["NoisyStats", "AdaSSP"])
def test_rows_that_are_not_finite_contribute_nothing(name):
    x, y = line_data(50)
    wrong_x, wrong_y = np.array([[np.nan], [np.inf], [0.5]]), np.array([0.0, 0.5, -np.inf])
    clean = of(name).fit(x, y)
    dirty = of(name).fit(np.concatenate([x, wrong_x]), np.concatenate([y, wrong_y]))
    assert dirty.coef_ == clean.coef_ and dirty.intercept_ == clean.intercept_


def test_where_the_number_of_rows_is_public_a_row_that_is_not_finite_stands_in_the_middle():
    x, y = line_data(50)
    estimator = of("NoisyStats", relation="replace-one", feature_bounds=(-1, 3), target_bounds=(-1, 5))
    dirty = clone(estimator).fit(np.append(x, [[np.nan]], axis=0), np.append(y, 1.0))
    middle = clone(estimator).fit(np.append(x, [[1.0]], axis=0), np.append(y, 2.0))
    assert dirty.coef_ == middle.coef_ and dirty.intercept_ == middle.intercept_


@pytest.mark.parametrize("name", ONE_FEATURE)
def test_one_feature_may_be_a_plain_list_and_two_are_refused(name):
    x, y = line_data()
    listed = of(name).fit(x[:, 0].tolist(), y)
    assert listed.coef_ == of(name).fit(x, y).coef_
    assert listed.predict([0.0, 1.0]).shape == (2,)
    with pytest.raises(InvalidParameterError, match="2 features"):
        of(name).fit(np.ones((5, 2)), np.ones(5))


@pytest.mark.parametrize("name", ALL)
def test_an_estimator_works_in_a_pipeline(name):
    x, y = line_data()
    fitted = make_pipeline(MinMaxScaler(feature_range=UNIT), of(name)).fit(x, y)
    assert fitted.predict(x).shape == y.shape


# --- exact sums, bounds -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(-STEPS, STEPS)] * 3), max_size=6), st.integers(1, 4000))
def test_sums_are_those_of_whole_numbers(table, times):
    steps = np.array(table * times, dtype=np.float64).reshape(-1, 3)
    expected = [[times * sum(row[i] * row[j] for row in table) for j in range(3)] for i in range(3)]
    assert exact_gram(steps).tolist() == expected


def test_sums_that_float64_would_round_are_exact():
    """Odd products add up to more than 2^53 here, where float64 holds even numbers only."""
    rows = 30_001
    assert exact_gram(np.full((rows, 1), STEPS - 1.0)).tolist() == [[rows * (STEPS - 1) ** 2]]


def test_bounds_are_returned_as_floats():
    assert public_bounds("target_bounds", [0, 1]) == (0.0, 1.0)
