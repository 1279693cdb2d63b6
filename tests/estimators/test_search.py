# SPDX-License-Identifier: Apache-2.0
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, geom, kstest, laplace, logser
from sklearn.base import ClassifierMixin, clone, is_classifier
from sklearn.pipeline import Pipeline, make_pipeline

from sfumato.accounting.events import ParallelDpEvent, PureDpEvent, SelectionDpEvent
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.estimators import (
    LogisticRegression,
    NoisyStats,
    Normalizer,
    PrivateEstimator,
    Search,
    StandardScaler,
)
from sfumato.estimators.search import draw_trials
from sfumato.ledger import Budget, Ledger
from sfumato.mechanisms.random import words
from sfumato.testing import seeded

ALPHA = 1e-6
CANDIDATES = [{"fit_intercept": True}, {"fit_intercept": False}]


def data(rows: int = 3000):
    X = np.random.default_rng(0).normal(size=(rows, 2))
    return X, (X[:, 0] > 1.0).astype(int)


def search(estimator=None, **options):
    inner = LogisticRegression(epsilon=1.0, clip_norm=2.0, classes=(0, 1))
    options = {"candidates": CANDIDATES, "epsilon": 3.0, "random_state": 0, **options}
    return Search(inner if estimator is None else estimator, **options)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.0])
def test_the_number_of_trials_has_the_stated_law(shape):
    stop, generator, runs = 0.2, seeded(1), 4000
    drawn = np.array([draw_trials(shape, stop, generator=generator) for _ in range(runs)])
    places = np.arange(1, 9)
    if shape == 2.0:  # P[K = k] = (1 - stop)^k (k + 1) / (stop^-2 - 1)
        chances = 0.8**places * (places + 1) / (25 - 1)
    else:
        chances = geom(0.2).pmf(places) if shape == 1 else logser(0.8).pmf(places)
    seen = np.array([(drawn == k).sum() for k in places])
    expected = np.append(chances, 1 - chances.sum()) * runs
    assert chisquare(np.append(seen, runs - seen.sum()), expected).pvalue > ALPHA
    off = np.append(geom(0.25).pmf(places), 1 - geom(0.25).pmf(places).sum()) * runs
    assert chisquare(np.append(seen, runs - seen.sum()), off).pvalue < ALPHA


def test_pure_trials_share_a_third_of_epsilon_each():
    made = search()
    event = made.event()
    assert isinstance(event, SelectionDpEvent)
    (trial,) = event.events
    assert isinstance(trial, ParallelDpEvent) and trial.events[0].epsilon == pytest.approx(1.0)
    logarithmic = search(shape=0.0).event().events[0]
    assert logarithmic.events[0].epsilon == pytest.approx(1.5)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_it_finds_the_better_candidate_and_promises_what_was_asked_for(relation):
    X, y = data()
    found = search(relation=relation, mean_trials=20.0).fit(X, y)
    assert found.best_params_ == CANDIDATES[0] and found.score(X, y) > 0.9
    assert found.guarantee_.epsilon == pytest.approx(3.0) and found.guarantee_.epsilon <= 3.0
    assert is_classifier(found) and found.predict_proba(X).shape == (3000, 2)
    assert not hasattr(found.best_estimator_, "guarantee_")  # one trial's would be too small


def test_with_a_delta_the_whole_search_costs_epsilon_and_delta():
    inner = LogisticRegression(epsilon=1.0, delta=1e-6, clip_norm=2.0, classes=(0, 1))
    found = search(inner, delta=1e-5, epsilon=2.0, candidates=CANDIDATES[:1]).fit(*data())
    assert 1.9 < found.guarantee_.epsilon <= 2.0 and found.guarantee_.delta == 1e-5


def test_one_row_moves_a_score_by_at_most_one_whatever_the_scorer_says():
    X, y = data(50)
    made = search(row_score=lambda model, X, y: np.where(np.arange(len(X)) == 0, np.inf, -np.inf))
    made.event()
    scored = made._noisy_score(None, X, y, 1.0, seeded(0)) - made._noisy_score(
        None, X[1:], y[1:], 1.0, seeded(0)
    )
    assert abs(scored) <= 1.0


def test_a_scorer_that_fails_or_is_of_the_wrong_shape_says_nothing_of_the_data():
    with pytest.raises(InvalidParameterError, match="each row"):
        search(row_score=lambda model, X, y: np.zeros(3)).fit(*data(200))

    def failing(model, X, y):
        raise KeyError("row 4711")

    with pytest.raises(QueryFailedError) as caught:
        search(row_score=failing).fit(*data(200))
    assert "4711" not in str(caught.value)


def test_a_pipeline_keeps_the_shares_of_its_steps(tmp_path):
    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=3.0, delta=0.0))
    inner = make_pipeline(
        StandardScaler(epsilon=0.25, bounds=(-4.0, 4.0)),
        LogisticRegression(epsilon=0.75, clip_norm=2.0, classes=(0, 1)),
    )
    candidates = [{"logisticregression__regularization": 1.0}]
    found = search(inner, candidates=candidates, account=account).fit(*data())
    assert account.spent().epsilon == pytest.approx(3.0)
    epsilons = [step.epsilon for step in found.best_estimator_]
    assert epsilons == pytest.approx([0.25, 0.75])
    assert len(account.releases()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"candidates": []},
        {"candidates": [{"epsilon": 9.0}]},
        {"mean_trials": 1.0},
        {"shape": -0.5},
        {"validation": 1.0},
    ],
    ids=str,
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidParameterError):
        search(**wrong).event()


def test_an_account_inside_is_refused(tmp_path):
    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=3.0, delta=0.0))
    inner = LogisticRegression(epsilon=1.0, clip_norm=2.0, classes=(0, 1), account=account)
    with pytest.raises(InvalidParameterError, match="as a whole"):
        search(inner).event()


def test_a_search_that_fails_leaves_nothing_of_its_trials():
    calls = []

    def raising(model, X, y):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("secret 4711")
        return np.ones(len(X))

    X, y = np.random.Generator(np.random.PCG64(0)).normal(size=(300, 2)), np.arange(300) % 2
    search = Search(
        LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=(0, 1)),
        candidates=[{"regularization": 1.0}],
        epsilon=3.0,
        mean_trials=200,
        row_score=raising,
        random_state=0,
    )
    with pytest.raises(QueryFailedError) as error:
        search.fit(X, y)
    assert len(calls) == 3 and "4711" not in str(error.value)
    assert not [name for name in vars(search) if name.startswith("best_")]


def test_estimators_without_a_delta_can_be_searched():
    X = np.linspace(0, 1, 400)[:, None]
    line = NoisyStats(epsilon=1.0, feature_bounds=(0, 1), target_bounds=(0, 1), fallback=0.5)
    search = Search(
        line,
        candidates=[{"fallback": 0.5}],
        epsilon=30.0,
        mean_trials=2,
        row_score=lambda m, X, y: np.ones(len(X)),
    )
    assert search.fit(X, X[:, 0]).guarantee_.epsilon <= 30.0 + 1e-9


@given(st.lists(st.floats(), min_size=1, max_size=8), st.sampled_from(["add-remove", "replace-one"]))
@settings(max_examples=40, deadline=None)
def test_one_row_of_any_score_moves_the_sum_by_at_most_one(scores, relation):
    """Replay: the same noise on both sums, so what is left is how far they are apart."""
    made = search(relation=relation, row_score=lambda model, X, y: X[:, 0])
    X = np.array(scores)[:, None]
    other = X[1:] if relation == "add-remove" else np.vstack([X[1:], [[1.0]]])
    one, two = (made._noisy_score(None, each, each, 1.0, seeded(0)) for each in (X, other))
    assert abs(one - two) <= 1.0 + 1e-9


@pytest.mark.parametrize(("relation", "scale"), [("add-remove", 1.0), ("replace-one", 5.0)])
def test_scores_have_the_stated_noise(relation, scale):
    """Of all of a trial's epsilon, 1 here, or a fifth of it where fit and score are both charged."""
    made, generator, nothing = search(relation=relation), seeded(4), np.zeros((0, 2))
    noise = [made._noisy_score(None, nothing, nothing, 1.0, generator) for _ in range(1500)]
    assert kstest(noise, laplace(scale=scale).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=0.7 * scale).cdf).pvalue < ALPHA


class Always(ClassifierMixin, PrivateEstimator):
    """A toy that learns nothing: it predicts its parameter."""

    def __init__(self, *, answer=0, epsilon=1.0, delta=0.0, relation="add-remove", privacy_unit="row",
                 account=None, purpose=None, random_state=None):  # fmt: skip
        super().__init__(epsilon=epsilon, delta=delta, relation=relation, privacy_unit=privacy_unit,
                         account=account, purpose=purpose, random_state=random_state)  # fmt: skip
        self.answer = answer

    def event(self):
        return PureDpEvent(self.epsilon)

    def _learn(self, X, y, *, generator):
        self.rows_ = len(self._matrix(X, reset=True))

    def predict(self, X):
        return np.full(len(X), self.answer)


def test_with_a_huge_epsilon_it_finds_what_a_loop_over_all_candidates_finds():
    y = np.random.default_rng(0).choice(5, size=400, p=[0.1, 0.2, 0.15, 0.4, 0.15])
    X, candidates = np.zeros((400, 1)), [{"answer": k} for k in range(5)]
    made = Search(
        Always(), candidates=candidates, epsilon=1e6, mean_trials=60, validation=0.5, random_state=1
    )
    found = made.fit(X, y)
    held = words(400, seeded(1)) < np.uint64(2**63)  # the coins of the rows are drawn first
    right = {k: sum(1 for label in y[held] if label == k) for k in range(5)}
    assert found.best_params_ == {"answer": max(right, key=right.get)}
    assert found.best_score_ == pytest.approx(max(right.values()), abs=0.01)
    assert found.best_estimator_.rows_ == (~held).sum()


@pytest.mark.parametrize("row", [0, 1, 2, 3, 4, 5])
def test_neighbors_reach_every_noise_of_a_search_within_its_sensitivity(row, neighbors):
    """Replay: every mechanism answers the neighbor as before; then nothing else may differ."""
    harness, X = neighbors, np.linspace(0, 1, 40)[:, None]
    line = NoisyStats(epsilon=1.0, feature_bounds=(0, 1), target_bounds=(0, 1), fallback=0.5)
    made = Search(
        line,
        candidates=[{"fallback": 0.5}, {"fallback": 0.0}],
        epsilon=30.0,
        mean_trials=4,
        validation=0.5,
        relation="replace-one",
        row_score=lambda model, X, y: 1 - np.abs(model.predict(X) - y),
        random_state=0,
    )
    other_X, y = X.copy(), X[:, 0].copy()
    other_y = y.copy()
    other_X[row], other_y[row] = 1.0, 0.0
    with harness.watched(harness.Tape()) as first:
        one = clone(made).fit(X, y)
    with harness.watched(harness.Tape(answers=[call.returned for call in first.calls])) as second:
        two = clone(made).fit(other_X, other_y)
    assert len(first.calls) == len(second.calls) > 3
    for before, after in zip(first.calls, second.calls, strict=True):
        harness.check_call(before, after)
    assert (one.best_params_, one.best_score_) == (two.best_params_, two.best_score_)
    assert one.best_estimator_.coef_ == two.best_estimator_.coef_


# --- candidates that are estimators -----------------------------------------------------------------------


def replacing(**options):
    """A search whose candidates replace a step."""
    steps = [("model", Always(epsilon=0.5))]
    candidates = [{"model": Always(epsilon=0.5, answer=k)} for k in range(3)]
    return Search(Pipeline(steps), **{"candidates": candidates, "epsilon": 1e5, "random_state": 1, **options})


def test_an_estimator_that_is_a_candidate_is_copied_for_each_trial():
    made = replacing()
    one, two = (made._model(made.candidates[0], 2.0) for _ in range(2))
    assert one[0] is not two[0] and one[0] is not made.candidates[0]["model"]
    assert one[0].epsilon == two[0].epsilon == 1.0
    assert made.event() == made.event() and made.candidates[0]["model"].epsilon == 0.5


def test_what_is_found_belongs_to_the_trial_that_won():
    models = []

    def last_best(model, X, y):
        models.append(model)
        return np.full(len(X), 1.0 if len(models) == 2 else 0.0)

    made = replacing(mean_trials=40.0, row_score=last_best).fit(np.zeros((200, 1)), np.zeros(200))
    assert len(models) > 5 and len({id(model[0]) for model in models}) == len(models)
    assert made.best_estimator_ is models[1] and made.best_params_["model"].answer == models[1][0].answer
    assert {model[0].epsilon for model in models} == {made._found * 0.5}


def test_what_a_trial_would_refuse_or_charge_is_refused_before_the_search_pays(tmp_path):
    account = Ledger(tmp_path / "l.db").open("t", privacy_unit="row", budget=Budget(epsilon=3.0, delta=0.0))
    line = NoisyStats(epsilon=1.0, feature_bounds=(0, 1), target_bounds=(0, 1))
    for estimator, candidate in (
        (Pipeline([("model", Always())]), {"model": Always(account=account)}),
        (Pipeline([("model", Always())]), {"model": Always(epsilon=-1.0)}),
        (Pipeline([("model", Always())]), {"model": StandardScaler(epsilon=1.0, bounds=(1, 0))}),
        (Pipeline([("model", Always())]), {"memory": str(tmp_path)}),
        (make_pipeline(Normalizer(), Always()), {"normalizer__norm": "l3"}),
        (line, {"purpose": "a purpose"}),
    ):
        with pytest.raises(InvalidParameterError):
            search(estimator, candidates=[candidate], account=account).fit(*data(10))
    assert account.releases() == []


@pytest.mark.parametrize("odd", [pd.NA, None, "x", Decimal("sNaN"), 10**400, [0], np.array([0])], ids=repr)
def test_a_label_of_any_kind_does_not_stop_a_search(odd):
    X, y = data(100)
    for seed in range(4):
        fitted = search(validation=0.95, random_state=seed).fit(X, [*y.tolist()[:-1], odd])
        assert fitted.guarantee_.epsilon == pytest.approx(3.0)
