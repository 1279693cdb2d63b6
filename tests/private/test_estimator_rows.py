# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import Pipeline, make_pipeline

import sfumato as sf
from sfumato import Budget, Ledger, estimators
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.estimators import (
    PCA,
    AdaSSP,
    DecisionTreeClassifier,
    GaussianNB,
    HistGradientBoostingClassifier,
    KMeans,
    LogisticRegression,
    NoisyStats,
    RandomForestClassifier,
    Search,
    StandardScaler,
    TheilSen,
    TukeyEM,
)
from sfumato.estimators.base import PrivateEstimator
from sfumato.private import fit
from sfumato.statistics import private_table

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RNG.normal(size=400), "b": RNG.normal(size=400)})
FRAME["paid"] = np.where(FRAME["a"] > 0, "yes", "no")
MODEL = LogisticRegression(epsilon=20.0, clip_norm=3.0, classes=["no", "yes"], random_state=0)


def test_an_estimator_learns_from_all_columns_of_numbers_and_is_not_changed():
    fitted = fit(private_table(FRAME), MODEL, target="paid")
    assert not hasattr(MODEL, "coef_") and fitted.coef_.shape[1] == 2
    assert (fitted.predict(FRAME[["a", "b"]].to_numpy()) == FRAME["paid"]).mean() > 0.8


def test_named_columns_alone_are_read():
    scaler = StandardScaler(epsilon=5.0, bounds=(-3.0, 3.0), random_state=0)
    assert fit(private_table(FRAME), scaler, features=["b"]).mean_.shape == (1,)


def test_a_fit_is_charged_before_rows_are_read(tmp_path, monkeypatch):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))

    def fail(self):
        raise AssertionError("rows were read")

    monkeypatch.setattr("sfumato.statistics.columns.table_columns.TableRows.batches", fail)
    with pytest.raises(BudgetExceededError):
        fit(private_table(FRAME), MODEL, target="paid", account=account, purpose="test")
    assert account.releases() == []


def test_a_unit_of_several_rows_is_refused():
    table = private_table(FRAME.assign(who=1), privacy_unit="who", contribution_bound=2)
    with pytest.raises(InvalidParameterError, match="contribution_bound=1"):
        fit(table, MODEL, target="paid")


# --- mistakes that are public -----------------------------------------------------------------------------

CLASSES, OTHER, LINE = ("no", "yes"), [(-3, 3)] * 3, {"feature_bounds": (-3, 3), "target_bounds": (-3, 3)}
MISTAKES = {  # of a table with two columns of numbers: the estimator, and the target
    "bounds of k-means": (KMeans(n_clusters=2, epsilon=0.1, bounds=OTHER), None),
    "clusters": (KMeans(n_clusters=10**7, epsilon=0.1, bounds=(-3, 3)), None),
    "bounds of naive Bayes": (GaussianNB(epsilon=0.1, classes=CLASSES, bounds=OTHER), "paid"),
    "bounds of a tree": (DecisionTreeClassifier(epsilon=0.1, classes=CLASSES, bounds=OTHER), "paid"),
    "features of a forest": (
        RandomForestClassifier(epsilon=0.1, classes=CLASSES, bounds=(-3, 3), max_features=3),
        "paid",
    ),
    "a place of categories": (
        RandomForestClassifier(epsilon=0.1, classes=CLASSES, bounds=(-3, 3), categories={2: 4}),
        "paid",
    ),
    "a name of categories": (
        HistGradientBoostingClassifier(epsilon=0.1, classes=CLASSES, bounds=(-3, 3), categories={"a": 4}),
        "paid",
    ),
    "bounds of a scaler": (StandardScaler(epsilon=0.1, bounds=OTHER), None),
    "bounds that are too wide": (StandardScaler(epsilon=0.1, bounds=(-8e307, 8e307)), None),
    "components": (PCA(epsilon=0.1, clip_norm=1.0, n_components=3), None),
    "no target": (LogisticRegression(epsilon=0.1, clip_norm=1.0, classes=CLASSES), None),
    "an absent target": (LogisticRegression(epsilon=0.1, clip_norm=1.0, classes=CLASSES), "payed"),
    "an option": (LogisticRegression(epsilon=0.1, clip_norm=1.0, classes=CLASSES, method="none"), "paid"),
    "no target of a plane": (AdaSSP(epsilon=0.1, delta=1e-8, clip_norm=1.0, target_bounds=(0, 1)), None),
    "no target of deep points": (TukeyEM(epsilon=1.0, delta=1e-6, num_models=1000), None),
    "a line over two features": (NoisyStats(epsilon=0.1, **LINE), "cost"),
    "another line over two features": (TheilSen(epsilon=0.1, **LINE), "cost"),
    "a candidate of a search": (
        Search(
            GaussianNB(epsilon=1.0, classes=CLASSES, bounds=(-3, 3)),
            candidates=[{}, {"bounds": OTHER}],
            epsilon=0.1,
        ),
        "paid",
    ),
    "the second step": (
        make_pipeline(
            StandardScaler(epsilon=0.1, bounds=(-3, 3)),
            LogisticRegression(epsilon=0.1, clip_norm=1.0, classes=CLASSES, method="none"),
        ),
        "paid",
    ),
    "bounds of what the first step returns": (
        make_pipeline(
            PCA(epsilon=0.1, clip_norm=1.0, n_components=1),
            GaussianNB(epsilon=0.1, classes=CLASSES, bounds=[(-1, 1)] * 2),
        ),
        "paid",
    ),
    "the seed of the second step": (
        make_pipeline(
            StandardScaler(epsilon=0.1, bounds=(-3, 3)),
            GaussianNB(epsilon=0.1, classes=CLASSES, bounds=(-3, 3), random_state="seed"),
        ),
        "paid",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_is_public_is_told_before_it_is_charged(mistake):
    model, target = MISTAKES[mistake]
    features = ["a", "b"]
    data = sf.open("people", FRAME.assign(cost=1.0), budget=Budget(epsilon=1.0, delta=1e-6))
    with pytest.raises(InvalidParameterError):
        data.fit(model, target=target, features=features)
    assert data.account.releases() == []


def test_every_estimator_is_among_the_mistakes():
    seen = [step for model, _ in MISTAKES.values() for step in _steps(model)]
    public = [getattr(estimators, name) for name in estimators.__all__]
    private = {kind for kind in public if isinstance(kind, type) and issubclass(kind, PrivateEstimator)}
    assert private - {PrivateEstimator} == {type(step) for step in seen}


def _steps(model):
    return [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]


def test_columns_that_are_none_are_told_before_they_are_charged():
    data = sf.open("people", FRAME, budget=Budget(epsilon=1.0, delta=1e-6))
    with pytest.raises(InvalidParameterError, match="0 feature"):
        data.fit(GaussianNB(epsilon=0.1, classes=CLASSES, bounds=(-3, 3)), target="paid", features=[])
    assert data.account.releases() == []


def test_a_pipeline_whose_second_step_cannot_be_paid_is_refused_as_a_whole():
    data = sf.open("people", FRAME, budget=Budget(epsilon=1.0, delta=1e-6))
    naive = GaussianNB(epsilon=0.9, classes=CLASSES, bounds=(-3, 3))
    with pytest.raises(BudgetExceededError, match="steps of the pipeline"):
        data.fit(make_pipeline(StandardScaler(epsilon=0.5, bounds=(-3, 3)), naive), target="paid")
    assert data.account.releases() == []
    data.fit(make_pipeline(StandardScaler(epsilon=0.1, bounds=(-3, 3)), naive), target="paid")
    assert len(data.account.releases()) == 2


@pytest.mark.parametrize("rows", [FRAME[["a", "b"]], FRAME[["a", "b"]].to_numpy()], ids=["frame", "array"])
def test_columns_of_arrays_and_frames_are_looked_at_before_the_charge(rows):
    account = Ledger.temporary().open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))
    with pytest.raises(InvalidParameterError, match="3 pairs, but X has 2"):
        StandardScaler(epsilon=0.1, bounds=OTHER, account=account).fit(rows)
    assert account.releases() == []


def test_names_of_categories_are_those_of_the_frame():
    settings = {"epsilon": 0.1, "classes": CLASSES, "bounds": (-3, 3)}
    named = DecisionTreeClassifier(**settings, categories={"b": 4})
    assert named.fit(FRAME[["a", "b"]], FRAME["paid"]).bins_.categorical.tolist() == [False, True]
    with pytest.raises(InvalidParameterError, match="'c'"):
        DecisionTreeClassifier(**settings, categories={"c": 4}).fit(FRAME[["a", "b"]], FRAME["paid"])
