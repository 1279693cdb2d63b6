# SPDX-License-Identifier: Apache-2.0
"""Noise on cells, and all estimators made of it: replayed on neighbors, and fed with hostile rows."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, laplace, norm
from sklearn.base import clone

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.estimators import (
    DecisionTreeClassifier,
    GaussianNB,
    HistGradientBoostingClassifier,
    KMeans,
    RandomForestClassifier,
    cell_noise,
    k_means,
    naive_bayes,
)
from sfumato.estimators.cell_noise import CellNoise, Part, Reach, counts, signed
from sfumato.estimators.trees import boosting, forest
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
RELATIONS = ["add-remove", "replace-one"]
GAUSSIAN = 3.7306  # stddev over sensitivity at (1, 1e-5): root of Balle and Wang 2018, Theorem 8
DOMAINS = {"bounds": (0.0, 1.0), "categories": {1: 3}}
MODELS = {
    "boosting": HistGradientBoostingClassifier(
        epsilon=1.0, classes=(0, 1), max_bins=4, max_iter=2, **DOMAINS
    ),
    "boosting, 3 classes": HistGradientBoostingClassifier(
        epsilon=1.0, classes=("a", "b", "c"), max_bins=4, max_iter=2, **DOMAINS
    ),
    "tree": DecisionTreeClassifier(epsilon=1.0, classes=(0, 1), max_bins=4, max_depth=2, **DOMAINS),
    "forest": RandomForestClassifier(
        epsilon=1.0, classes=(0, 1), max_bins=4, max_depth=2, n_estimators=2, max_features=1, **DOMAINS
    ),
    "naive Bayes": GaussianNB(epsilon=1.0, classes=(0, 1), bounds=(0.0, 1.0)),
    "k-means": KMeans(n_clusters=2, epsilon=1.0, bounds=[(0.0, 1.0), (0.0, 4.0)]),
}


def of(name, **options):
    return clone(MODELS[name]).set_params(**{"random_state": 0, **options})


def labels_of(name):
    return MODELS[name].classes if hasattr(MODELS[name], "classes") else (0, 1)


def told(model, X):
    """Return what a model tells of rows: probabilities, or distances."""
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.transform(X)


def some_rows(name, count=60):
    random = np.random.default_rng(0)
    X = np.column_stack([random.uniform(0, 1, count), random.integers(0, 3, count)])
    return X, np.array(labels_of(name))[random.integers(0, 2, count)]


# --- noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("relation", "factor"), [(ADD, 1), (REPLACE, 2)])
def test_noise_has_the_stated_law(relation, factor):
    reach = signed(3.0, 2.0, relation)
    pure = CellNoise(epsilon=0.5, delta=0.0, relation=relation).part(0.25, reach)
    noise = pure.add(np.zeros(5000), generator=seeded(0))
    assert kstest(noise, laplace(scale=24 * factor).cdf).pvalue > ALPHA  # 3 / (0.5 / 4)
    assert kstest(noise, laplace(scale=18 * factor).cdf).pvalue < ALPHA
    part = CellNoise(epsilon=1.0, delta=1e-5, relation=relation).part(0.25, reach)
    noise = part.add(np.zeros(5000), generator=seeded(0))
    assert kstest(noise, norm(scale=GAUSSIAN * 4 * factor).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=GAUSSIAN * 3.5 * factor).cdf).pvalue < ALPHA
    assert part.stddev == pytest.approx(GAUSSIAN * 4 * factor, rel=1e-4)
    assert pure.stddev == pytest.approx(24 * factor * math.sqrt(2), rel=1e-4)


def test_counts_of_a_replaced_row_are_nearer_than_two_lengths():
    assert counts(4, ADD) == (4, 2.0) and counts(4, REPLACE) == (8, math.sqrt(8))
    assert signed(4.0, 2.0, REPLACE) == (8.0, 4.0)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 500.0])
def test_parts_that_share_a_budget_cost_no_more_than_it(epsilon, relation):
    """From the very noise: sums of l1 / scale, and of (l2 / stddev)^2."""
    reach, shares = counts(7, relation), (0.1, 0.2, 0.7)
    pure = CellNoise(epsilon=epsilon, delta=0.0, relation=relation)
    parts = [pure.part(share, reach) for share in shares]
    assert sum(part.steps * reach.l1 / part.size for part in parts) <= epsilon
    noise = CellNoise(epsilon=epsilon, delta=1e-6, relation=relation)
    parts = [noise.part(share, reach) for share in shares]
    together = math.sqrt(sum((part.steps * reach.l2 / part.size) ** 2 for part in parts))
    assert min(part.size for part in parts) >= 2**10  # for the lemma
    assert together * (1 + 2.0**-21) <= 1 / noise._multiplier()
    assert price(noise.event(), delta=1e-6, relation=relation).upper <= epsilon * (1 + 1e-9)
    assert price(noise.event(), delta=1e-6, relation=relation).upper >= epsilon * 0.999


def test_sums_of_whole_steps_keep_what_they_are_at_large_epsilon():
    for delta, near in ((0.0, 1e-5), (1e-5, 0.3)):
        part = CellNoise(epsilon=500.0 if delta else 1e9, delta=delta, relation=ADD).part(1.0, Reach(1, 1))
        noisy = part.count(np.array([0, 0, 2]), (3,), None)
        assert noisy == pytest.approx([2, 0, 1], abs=near)
        assert part.whole(np.array([0.5, -1 / 3])).tolist() == [part.steps / 2, -(part.steps // 3)]


def test_a_budget_that_has_no_noise_is_refused():
    with pytest.raises(InvalidParameterError, match="neighbors"):
        CellNoise(epsilon=1.0, delta=0.0, relation=Relation.ZERO_OUT)
    with pytest.raises(InvalidParameterError, match="epsilon"):
        CellNoise(epsilon=501.0, delta=1e-5, relation=ADD)
    with pytest.raises(InvalidParameterError, match="overflow"):
        CellNoise(epsilon=1e-9, delta=0.0, relation=ADD).part(1e-6, Reach(10.0, 10.0))


# --- estimators -------------------------------------------------------------------------------------------


@contextmanager
def taped(monkeypatch, given=None):
    """Note every part and the sums it is added to; return known noise, or the numbers that are given."""
    calls, random = [], np.random.default_rng(0)

    def add(self, sums, *, generator):
        noisy = sums / self.steps + random.normal(size=sums.shape) if given is None else given[len(calls)][2]
        calls.append((self, sums, noisy))
        return noisy

    with monkeypatch.context() as patch:
        patch.setattr(Part, "add", add)
        yield calls


def released(model):
    """Return all that a fit stored, as text: arrays in full."""
    with np.printoptions(threshold=10**6, precision=17):
        return repr({name: value for name, value in vars(model).items() if name.endswith("_")})


def replay(monkeypatch, model, data, neighbor):
    """Fit to both with the same noisy numbers: nothing else may differ, and sums by their reach at most."""
    with taped(monkeypatch) as one:
        first = clone(model).fit(*data)
    with taped(monkeypatch, given=one) as two:
        second = clone(model).fit(*neighbor)
    assert [part for part, _, _ in one] == [part for part, _, _ in two]
    assert released(first) == released(second)
    assert sum(part.share for part, _, _ in one) <= 1 + 1e-9
    for (part, sums, _), (_, others, _) in zip(one, two, strict=True):
        moved = np.abs(sums - others)
        assert np.array_equal(sums, np.rint(sums))
        assert moved.sum() <= part.reach.l1 * part.steps * (1 + 1e-12)
        assert np.linalg.norm(moved) <= part.reach.l2 * part.steps * (1 + 1e-12)
    return one


any_row = st.tuples(st.floats(), st.one_of(st.integers(-1, 4), st.floats()), st.integers(0, 3))


@pytest.mark.parametrize("name", MODELS)
@given(row=any_row, other=any_row, delta=st.sampled_from([0.0, 1e-5]))
@settings(max_examples=25, deadline=None)
def test_one_row_of_anything_moves_each_part_within_its_reach(name, row, other, delta):
    X, y = some_rows(name, 12)
    odd = [*labels_of(name), "none"]
    y = y.astype(object)
    longer, replaced = (
        (np.vstack([X, one[:2]]), np.append(y, [odd[min(one[2], len(odd) - 1)]])) for one in (row, other)
    )
    with pytest.MonkeyPatch.context() as patch:
        replay(patch, of(name, delta=delta), (X, y), longer)
        replay(patch, of(name, delta=delta, relation="replace-one"), longer, replaced)


@pytest.mark.parametrize("name", MODELS)
def test_a_part_with_half_of_its_reach_is_noticed(name, monkeypatch):
    for module in (boosting, forest, k_means, naive_bayes):
        for known in ("counts", "signed"):
            if hasattr(module, known):
                whole = getattr(cell_noise, known)
                half = lambda *terms, whole=whole: Reach(*(0.49 * norm for norm in whole(*terms)))  # noqa: E731
                monkeypatch.setattr(module, known, half)
    X, y = some_rows(name, 12)
    with pytest.raises(AssertionError):
        replay(monkeypatch, of(name), (X, y), (X[1:], y[1:]))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_fit_costs_what_was_asked_for(name, delta, relation, tmp_path):
    budget = Budget(epsilon=1.0 + 1e-6, delta=delta)
    account = Ledger(tmp_path / "ledger.db").open(
        "rows", privacy_unit="row", budget=budget, relation=relation
    )
    model = of(name, delta=delta, relation=relation, account=account, random_state=None)
    fitted = model.fit(*some_rows(name))
    assert 0.999 <= fitted.guarantee_.epsilon <= 1.0 + 1e-9
    assert fitted.event_ == model.event() and fitted.notes_ == ()
    with pytest.raises(BudgetExceededError):
        model.fit(*some_rows(name))


ODD_ROWS = {
    "NaN": [math.nan, math.nan],
    "infinity": [math.inf, -math.inf],
    "huge": [1e308, -1e308],
    "tiny": [5e-324, -0.0],
    "text": ["secret", "secret"],
    "none": [None, None],
    "unseen category": [0.5, 17],
    "half a category": [0.5, 1.5],
    "a list": [[1.0], [2.0]],
}
ODD_LABELS = [None, math.nan, "secret", 17, [0]]


@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("name", MODELS)
def test_no_row_raises_warns_or_changes_a_shape(name, odd):
    X, y = some_rows(name)
    clean = of(name).fit(X, y)
    for label in [y[0], *ODD_LABELS]:
        rows = [*X.tolist(), ODD_ROWS[odd]]
        fitted = of(name).fit(rows, [*y.tolist(), label])
        assert shapes(fitted) == shapes(clean)
        assert np.isfinite(told(fitted, rows)).all()
        assert len(fitted.predict(rows)) == len(rows)


def shapes(model):
    """Return the shape of all that a fit stored; of trees, whose size follows from noise, how many."""
    found = {}
    for name, value in vars(model).items():
        if name.endswith("_"):
            parts = value if isinstance(value, list) else [value]
            found[name] = [getattr(part, "shape", None) for part in parts]
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", ["none", "one", "one class", "constant", "one feature"])
def test_poor_data_is_answered_like_any_other(name, rows):
    X, y = some_rows(name)
    data = {
        "none": (X[:0], y[:0]),
        "one": (X[:1], y[:1]),
        "one class": (X, np.full(len(y), y[0])),
        "constant": (np.full_like(X, 0.5), y),
        "one feature": (X[:, :1], y),
    }[rows]
    model = of(name, bounds=(0.0, 1.0))
    if rows == "one feature" and hasattr(model, "categories"):
        model.set_params(categories={})
    found = told(model.fit(*data), data[0])
    assert np.isfinite(found).all() and found.shape == (len(data[0]), len(labels_of(name)))


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_rows_are_refused(name):
    X, y = some_rows(name)
    with pytest.raises(TypeError, match="sample_weight"):
        of(name).fit(X, y, sample_weight=np.ones(len(y)))
