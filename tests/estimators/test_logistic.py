# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression as Plain
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_decision_proba_consistency

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators import LogisticRegression
from sfumato.estimators.logistic import METHODS
from sfumato.estimators.minimum import LEAST_REGULARIZATION
from sfumato.ledger import Budget, Ledger

RELATIONS = ["add-remove", "replace-one"]


def blobs(rows: int = 4000, classes: int = 2, seed: int = 0):
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=rows)
    angles = 2 * np.pi * y / classes
    X = np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.5 * random.normal(size=(rows, 2))
    return X, y


def made(**options):
    return LogisticRegression(
        **{"epsilon": 1.0, "clip_norm": 2.0, "classes": (0, 1), "random_state": 0, **options}
    )


def of_method(method, **options):
    needs = {"delta": 1e-5, "public_size": 4000, "steps": 20} if method == "dp-sgd" else {}
    return made(method=method, **{**needs, **options})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("relation", RELATIONS)
def test_it_learns_and_promises_what_was_asked_for(method, classes, delta, relation):
    if method == "dp-sgd" and delta == 0:
        return
    X, y = blobs(classes=classes)
    model = of_method(method, classes=range(classes), delta=delta, relation=relation, epsilon=4.0)
    model.fit(X[:3000], y[:3000]) if relation == "add-remove" else model.set_params(public_size=None).fit(
        X, y
    )
    plain = Plain().fit(X, y).score(X, y)
    assert model.score(X, y) > plain - (0.03 if method != "output" else 0.15)
    assert model.guarantee_.epsilon == pytest.approx(4.0, rel=1e-3) and model.guarantee_.epsilon <= 4.0
    assert (model.guarantee_.delta, model.guarantee_.relation) == (delta, Relation.parse(relation))
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
    assert (model.classes_[model.predict_proba(X).argmax(axis=1)] == model.predict(X)).all()


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_not_finite_or_of_no_class_contribute_nothing(method):
    X, y = blobs(rows=400)
    odd = np.array([[np.nan, 1.0], [np.inf, 0.0], [0.5, 0.5]])
    with_odd = of_method(method).fit(np.vstack([X, odd]), np.append(y, [0, 1, 7]))
    without = of_method(method).fit(np.vstack([X, np.full((3, 2), np.nan)]), np.append(y, [0, 0, 0]))
    assert np.array_equal(with_odd.coef_, without.coef_)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one_row_give_a_model_too(method, rows):
    X, y = blobs(rows=rows)
    assert np.isfinite(of_method(method).fit(X, y).coef_).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_row_of_any_size_moves_a_fit_with_the_same_noise_no_further_than_one_at_the_clip_norm(method):
    X, y = blobs(rows=300)
    far, near = np.vstack([X, [[3e200, 4e200]]]), np.vstack([X, [[1.2, 1.6]]])
    one, two = (of_method(method).fit(rows, np.append(y, 0)).coef_ for rows in (far, near))
    assert one == pytest.approx(two, rel=1e-6, abs=1e-9)


def test_the_weights_move_within_the_stated_bound_between_neighbors():
    X, y = blobs(rows=200)
    model = made(method="output", regularization=3.0)
    one, two = model.fit(X, y), made(method="output", regularization=3.0).fit(X[1:], y[1:])
    moved = np.append(one.coef_ - two.coef_, (one.intercept_ - two.intercept_) / 1.0)
    assert np.linalg.norm(moved) <= np.hypot(2.0, 1.0) / 3.0 * (1 + 1e-6)


def audited(epsilon_of_noise: float, claimed: float) -> bool:
    """Whether the sign of the weight tells the two labels of one row apart better than `claimed` allows."""
    runs, X = 500, np.array([[2.0]])
    model = made(
        epsilon=epsilon_of_noise,
        method="output",
        regularization=1.0,
        relation="replace-one",
        fit_intercept=False,
    )
    positive = [
        [model.set_params(random_state=2 * i + k).fit(X, [k]).coef_[0, 0] > 0 for i in range(runs)]
        for k in (0, 1)
    ]
    lower = binomtest(sum(positive[1]), runs).proportion_ci(0.999).low
    upper = binomtest(sum(positive[0]), runs).proportion_ci(0.999).high
    return bool(np.log(lower / upper) > claimed)


def test_an_audit_stays_below_the_claim_and_catches_noise_that_is_too_small():
    assert not audited(1.0, claimed=1.0)
    assert audited(8.0, claimed=1.0)


def test_the_price_is_known_before_a_fit_and_does_not_depend_on_the_data():
    model = made(epsilon=0.7, delta=1e-6)
    before = model.event()
    assert model.fit(*blobs(rows=50)).event_ == before


def test_it_is_charged_to_an_account(tmp_path):
    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=3, delta=1e-5))
    made(epsilon=0.5, delta=1e-6, account=account).fit(*blobs(rows=100))
    made(epsilon=0.5, account=account).fit(*blobs(rows=100))
    assert [r.purpose for r in account.releases()] == ["fit of LogisticRegression"] * 2
    assert 0.5 < account.spent().epsilon < 3


def test_classes_are_never_read_from_the_labels():
    X, _ = blobs(rows=50)
    model = made(classes=("no", "yes", "perhaps")).fit(X, ["no"] * 50)
    assert model.classes_.tolist() == ["no", "yes", "perhaps"] and model.coef_.shape == (3, 2)


def test_it_can_be_cross_validated_as_any_classifier():
    X, y = blobs(rows=600)
    assert cross_val_score(made(epsilon=5.0), X, y, cv=3).mean() > 0.85


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"classes": (1,)},
        {"classes": (1, 1)},
        {"classes": None},
        {"method": "sgd"},
        {"regularization": -1.0},
        {"public_size": 0},
        {"epsilon": 1e-12},
        {"epsilon": 1e4, "delta": 1e-5},
        {"epsilon": 1e4, "delta": 1e-5, "method": "output"},
        {"regularization": 1e101},
        {"method": "dp-sgd"},
        {"method": "dp-sgd", "delta": 1e-5},
        {"method": "dp-sgd", "delta": 1e-5, "public_size": 9, "regularization": 1.0},
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_is_spent(wrong):
    with pytest.raises(InvalidParameterError):
        made(**wrong).event()


def test_a_public_size_that_is_wrong_under_replace_one_is_refused():
    with pytest.raises(InvalidParameterError, match="public_size"):
        made(relation="replace-one", public_size=7).fit(*blobs(rows=8))


def test_scores_and_probabilities_of_two_classes_have_one_order():
    check_decision_proba_consistency("LogisticRegression", made(epsilon=100.0, clip_norm=50.0))


@pytest.mark.parametrize("method", ["objective", "output"])
def test_a_regularization_that_no_solver_can_certify_is_never_found_out_from_the_data(method, tmp_path):
    """It is refused before anything is read or spent; left out, or raised, it is large enough."""

    class Trap:
        def __array__(self, *arguments, **options):
            raise AssertionError("the data was read")

    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=3, delta=1e-5))
    tiny = made(method=method, regularization=1e-9, account=account)
    if method == "output":
        with pytest.raises(InvalidParameterError, match="regularization"):
            tiny.fit(Trap(), Trap())
        assert account.releases() == []
    else:
        assert tiny.fit(*blobs(rows=20)).regularization_ > 1e-4
    for epsilon in (30.0, 1e3, 1e5):
        fitted = made(method=method, epsilon=epsilon).fit(*blobs(rows=20))
        assert fitted.regularization_ >= LEAST_REGULARIZATION * (2.0**2 + 1.0**2)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-8, 1e4, 1e9])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_at_the_ends_of_what_epsilon_may_be_no_fit_fails(epsilon, rows):
    X, y = blobs(rows=rows)
    for clip_norm in (1e-100, 1.0, 1e100):
        for method in ("objective", "output"):
            for seed in range(10):
                fitted = made(epsilon=epsilon, clip_norm=clip_norm, method=method, random_state=seed).fit(
                    X, y
                )
                assert np.isfinite(fitted.coef_).all()


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.1])
def test_the_largest_epsilon_with_a_delta_has_a_price(delta):
    assert made(epsilon=500.0, delta=delta).fit(*blobs(rows=5)).guarantee_.epsilon <= 500.0


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)], ids=str)
def test_no_row_makes_a_prediction_warn(classes):
    """Warnings are errors here."""
    fitted = made(classes=classes).fit(*blobs(rows=20))
    fitted.coef_, fitted.intercept_ = fitted.coef_ * 1e307, np.full(len(fitted.coef_), -1e5)
    rows = [[1e308, -1e308], [np.inf, 0.0], [np.nan, 1.0], [0.0, 5e-324]]
    for method in ("decision_function", "predict", "predict_proba", "predict_log_proba"):
        assert len(getattr(fitted, method)(rows)) == 4
    assert np.isfinite(fitted.predict_proba(rows[2:])).all()  # where all chances are as good as 0, too


@pytest.mark.parametrize("classes", [(0, None), ("a", 1), (0, math.nan), (1, 1.0), ("a", b"a"), (0,), "ab"])
def test_classes_are_of_one_kind(classes):
    with pytest.raises(InvalidParameterError, match="all of them text or all of them numbers"):
        LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=classes).event()
