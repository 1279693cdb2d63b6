# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks of an estimator: all pass but those listed, each for a reason.

A check that fails unlisted fails the test, and so does one that is listed and passes.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

from sfumato.estimators import (
    PCA,
    AdaSSP,
    Binarizer,
    DecisionTreeClassifier,
    GaussianNB,
    HistGradientBoostingClassifier,
    KMeans,
    LogisticRegression,
    NoisyStats,
    Normalizer,
    RandomForestClassifier,
    Search,
    StandardScaler,
    TheilSen,
    TukeyEM,
    base,
    expected_failed_checks,
    row_steps,
)
from sfumato.estimators.checks import UNMET
from sfumato.estimators.linear import LinearRegressor

UNIT = (-1.0, 1.0)


class FirstColumn:
    """Makes a line through the first of several features: scikit-learn has few checks of one alone."""

    _FLAT = False

    def _matrix(self, X, *, reset):
        return LinearRegressor._matrix(self, X, reset=reset)[:, :1]

    def _check_features(self, features, names):
        pass

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


class FirstNoisyStats(FirstColumn, NoisyStats):
    pass


class FirstTheilSen(FirstColumn, TheilSen):
    pass


CLASSIFIER = {"clip_norm": 50.0, "classes": (0, 1, 2)}
DESCENT = {"method": "dp-sgd", "delta": 1e-5, "public_size": 100, "steps": 3}
BINNED = {"classes": (0, 1, 2), "bounds": (-10.0, 10.0)}
ESTIMATORS = {
    "objective": LogisticRegression(epsilon=100.0, **CLASSIFIER),
    "output": LogisticRegression(epsilon=100.0, method="output", **CLASSIFIER),
    "dp-sgd": LogisticRegression(epsilon=100.0, **DESCENT, **CLASSIFIER),
    "NoisyStats": NoisyStats(epsilon=20.0, feature_bounds=UNIT, target_bounds=UNIT, fallback=0.0),
    "TheilSen": TheilSen(epsilon=20.0, feature_bounds=UNIT, target_bounds=UNIT, matchings=1),
    "kMatch": TheilSen(epsilon=20.0, feature_bounds=UNIT, target_bounds=UNIT, matchings=3),
    "NoisyStats, first column": FirstNoisyStats(
        epsilon=20.0, feature_bounds=UNIT, target_bounds=UNIT, fallback=0.0
    ),
    "TheilSen, first column": FirstTheilSen(
        epsilon=20.0, feature_bounds=UNIT, target_bounds=UNIT, matchings=1
    ),
    "AdaSSP": AdaSSP(epsilon=20.0, delta=1e-6, clip_norm=1.0, target_bounds=UNIT),
    "TukeyEM": TukeyEM(epsilon=20.0, delta=1e-2, num_models=30, fallback=0.0),
    "DecisionTree": DecisionTreeClassifier(epsilon=100.0, **BINNED),
    "RandomForest": RandomForestClassifier(epsilon=100.0, n_estimators=2, **BINNED),
    "HistGradientBoosting": HistGradientBoostingClassifier(epsilon=100.0, delta=1e-5, **BINNED),
    "GaussianNB": GaussianNB(epsilon=100.0, **BINNED),
    "KMeans": KMeans(n_clusters=3, epsilon=100.0, bounds=(-10.0, 10.0)),
    "StandardScaler": StandardScaler(epsilon=100.0, bounds=(-10.0, 10.0)),
    "StandardScaler, no mean": StandardScaler(epsilon=100.0, bounds=(-10.0, 10.0), with_mean=False),
    "PCA": PCA(epsilon=100.0, clip_norm=2.0, n_components=1),
    "Normalizer": Normalizer(),
    "Binarizer": Binarizer(),
    "Search": Search(
        LogisticRegression(epsilon=1.0, **CLASSIFIER),
        candidates=[{"regularization": 1.0}],
        epsilon=300.0,
        mean_trials=2,
    ),
}

LINES = ("NoisyStats", "TheilSen", "kMatch")
SKIPPED = {"check_array_api_input"}  # needs a package that nothing else here does


def expected(estimator):
    """Return what must fail; a line through the first of several features is checked as all others are."""
    alike = ESTIMATORS["AdaSSP"] if isinstance(estimator, FirstColumn) else estimator
    return expected_failed_checks(alike)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_exactly_the_checks_that_are_listed_fail(name, monkeypatch):
    if name == "TukeyEM":
        monkeypatch.setattr(base, "guarantee_of", lambda event, **terms: None)  # 0.1 s for each of many fits
    estimator = ESTIMATORS[name]
    if isinstance(estimator, base.PrivateEstimator):
        estimator.set_params(random_state=0)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    passed, failed, skipped = (
        [result["check_name"] for result in results if result["status"] == status]
        for status in ("passed", "failed", "skipped")
    )
    assert set(failed) == set(expected(estimator))
    assert set(skipped) == (set() if name in LINES else SKIPPED)
    assert len(passed) >= (1 if name in LINES else 32)


def test_the_page_on_estimators_lists_these_checks_and_no_others():
    page = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text()
    rows = [
        f"| {', '.join(f'`{check}`' for check in unmet.checks)} | {unmet.of} | {unmet.why} |"
        for unmet in UNMET
    ]
    shown = [line for line in page.splitlines() if line.startswith("| `check_")]
    assert shown == rows
    assert all(any(unmet.concerns(e) for e in ESTIMATORS.values()) for unmet in UNMET)


TRANSFORMERS = ["StandardScaler", "StandardScaler, no mean", "PCA"]
OF_OUTPUT = [
    "check_get_feature_names_out_error",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
]


@pytest.mark.filterwarnings(
    "ignore:X (does not have valid|has) feature names"
)  # checks mix frames and arrays
@pytest.mark.parametrize("check", OF_OUTPUT)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_name_what_they_return_and_return_what_is_set(name, check):
    getattr(estimator_checks, check)(name, ESTIMATORS[name].set_params(random_state=0))


def test_names_of_features_go_through_a_pipeline():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["age", "income"])
    scaler = StandardScaler(epsilon=9.0, bounds=(-3.0, 3.0))
    pipeline = make_pipeline(Normalizer(), scaler, PCA(epsilon=9.0, clip_norm=3.0, n_components=1))
    pipeline.fit(X)
    assert pipeline[:1].get_feature_names_out().tolist() == ["age", "income"]
    assert pipeline[-1].get_feature_names_out().tolist() == ["pca0"]
    frame = StandardScaler(epsilon=9.0, bounds=(-3.0, 3.0)).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == ["age", "income"] and frame.index.equals(X.index)
    free = Normalizer().fit(X).set_output(transform="pandas")
    assert free.get_feature_names_out().tolist() == list(free.transform(X).columns) == ["age", "income"]


def test_no_output_that_is_set_reads_rows_before_anybody_has_paid():
    class Rows:
        def __array__(self, dtype=None, copy=None):
            raise AssertionError("the rows were read")

    for step in (Normalizer(), Binarizer()):
        with config_context(transform_output="pandas"):
            assert isinstance(step.fit_transform(Rows()), row_steps.Unread)
        assert isinstance(step.set_output(transform="pandas").fit_transform(Rows()), row_steps.Unread)


def test_a_free_step_refuses_by_shape_and_type_and_forgets_an_earlier_fit():
    step = Normalizer().fit(np.ones((3, 2)))
    assert step.n_features_in_ == 2
    with pytest.raises(ValueError, match="X has 3 features"):
        step.transform(np.ones((1, 3)))
    assert not hasattr(step.fit(None), "n_features_in_")
    for X in (np.ones(3), np.ones((2, 2), dtype=complex), np.array([["a"]])):
        with pytest.raises(ValueError, match="must be a"):
            step.fit(X)
