# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.stats import chisquare, geom, logser
from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline

from sfumato.accounting.events import ParallelDpEvent, SelectionDpEvent
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.estimators import LogisticRegression, NoisyStats, Search, StandardScaler
from sfumato.estimators.search import draw_trials
from sfumato.ledger import Budget, Ledger
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
