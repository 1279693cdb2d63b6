# SPDX-License-Identifier: Apache-2.0
import gc
import os

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression as PlainRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from torch import nn

import sfumato as sf
from sfumato import estimators, statistics
from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.estimators import LogisticRegression
from sfumato.ledger.state import Progress
from sfumato.ledger.store import Store
from sfumato.private import PrivateData, fit
from sfumato.statistics.columns import table_columns
from sfumato.statistics.contributions import owned_rows

ROWS = 4000


def clients_frame():
    rng = np.random.Generator(np.random.PCG64(0))
    age = rng.uniform(18, 90, ROWS)
    return pd.DataFrame(
        {
            "client": np.arange(ROWS),
            "age": age,
            "income": 1000 + 20 * age + rng.normal(0, 50, ROWS),
            "city": rng.choice(["Rome", "Oslo", "Lima"], ROWS, p=[0.5, 0.3, 0.2]),
            "default": (age > 50).astype(int),
        }
    )


@pytest.fixture
def clients(tmp_path):
    return sf.open(
        "clients",
        clients_frame(),
        privacy_unit="client",
        budget=sf.Budget(epsilon=100, delta=1e-4),
        ledger=tmp_path / "ledger.db",
    )


def logistic(**more):
    return sf.LogisticRegression(epsilon=5.0, clip_norm=100.0, classes=(0, 1), **more)


DELTA = {"epsilon": 1.0, "delta": 1e-6}
ASKED = {
    "count": lambda d: d.count(epsilon=1.0),
    "sum": lambda d: d.sum("age", bounds=(0, 100), epsilon=1.0),
    "mean": lambda d: d.mean("age", bounds=(0, 100), epsilon=1.0),
    "variance": lambda d: d.variance("age", bounds=(0, 100), epsilon=1.0),
    "standard_deviation": lambda d: d.standard_deviation("age", bounds=(0, 100), epsilon=1.0),
    "clipped_share": lambda d: d.clipped_share("age", bounds=(0, 50), epsilon=1.0),
    "median": lambda d: d.median("age", bounds=(0, 100), epsilon=1.0),
    "quantile": lambda d: d.quantile("age", 0.9, bounds=(0, 100), epsilon=1.0),
    "quantiles": lambda d: d.quantiles("age", [0.1, 0.9], bounds=(0, 100), epsilon=1.0),
    "bounds": lambda d: d.bounds("age", epsilon=1.0),
    "first_above": lambda d: d.first_above("age", ranges=[(0, 20), (0, 90)], threshold=2000, epsilon=1.0),
    "coinpress_mean": lambda d: d.coinpress_mean("age", bounds=(0, 1000), stddev=30.0, **DELTA),
    "karwa_vadhan_mean": lambda d: d.karwa_vadhan_mean("age", bounds=(0, 1000), stddev=30.0, **DELTA),
    "histogram of bins": lambda d: d.histogram("age", edges=[0, 50, 100], epsilon=1.0),
    "histogram of categories": lambda d: d.histogram("city", categories=["Rome", "Oslo"], epsilon=1.0),
    "stable_histogram": lambda d: d.stable_histogram("city", **DELTA),
    "top_k": lambda d: d.top_k("city", k=1, categories=["Rome", "Oslo", "Lima"], epsilon=1.0),
    "keys": lambda d: d.keys("city", **DELTA),
    "left_out_share": lambda d: d.left_out_share(epsilon=1.0),
    "covariance": lambda d: d.covariance(["age", "income"], bounds=[(0, 100), (0, 4000)], **DELTA),
    "correlation": lambda d: d.correlation(["age", "income"], bounds=[(0, 100), (0, 4000)], **DELTA),
    "principal_components": lambda d: d.principal_components(
        ["age", "income"], components=1, bounds=[(0, 100), (0, 4000)], **DELTA
    ),
    "coinpress_means": lambda d: d.coinpress_means(
        ["age", "income"], bounds=[(0, 1000), (0, 10000)], stddev=[30.0, 1000.0], **DELTA
    ),
    "coinpress_covariance": lambda d: d.coinpress_covariance(
        ["age", "income"], bounds=[(0, 1000), (0, 10000)], stddev=[30.0, 1000.0], **DELTA
    ),
    "groups": lambda d: d.release(
        d.table.group_by("city", keys=["Rome", "Oslo"]).mean("age", bounds=(0, 100), epsilon=1.0)
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_question_through_the_door_is_charged_once_for_what_it_states(clients, name):
    release = ASKED[name](clients)
    assert isinstance(release, statistics.Release) and release.value is not None
    (charged,) = clients.account.releases()
    assert sf.accounting.events.from_json(charged.event_json) == release.event
    assert release.guarantee.privacy_unit == "client"
    assert release.guarantee.epsilon <= 1.0 + 1e-9
    assert clients.spent().epsilon > 0


def test_answers_are_about_the_data(clients):
    frame = clients_frame()
    assert clients.mean("age", bounds=(0, 100), epsilon=5.0).value == pytest.approx(
        frame["age"].mean(), abs=0.5
    )
    assert clients.count(epsilon=5.0).value == pytest.approx(ROWS, abs=10)
    assert clients.top_k("city", k=1, categories=["Lima", "Rome"], epsilon=5.0).value == ("Rome",)
    found = clients.histogram("city", categories=["Rome", "Nowhere"], epsilon=5.0).value
    assert found.counts[0] == pytest.approx((frame["city"] == "Rome").sum(), abs=10)
    assert abs(found.counts[1]) < 10
    seniors = clients.filter(lambda row: row.age > 60)
    assert seniors.count(epsilon=5.0).value == pytest.approx((frame["age"] > 60).sum(), abs=10)


def test_what_the_budget_does_not_cover_is_refused_and_costs_nothing(tmp_path):
    few = sf.open("few", clients_frame(), budget=sf.Budget(epsilon=1, delta=1e-6), ledger=tmp_path / "l.db")
    few.mean("age", bounds=(0, 100), epsilon=0.9)
    with pytest.raises(BudgetExceededError):
        few.mean("age", bounds=(0, 100), epsilon=0.2)
    assert len(few.account.releases()) == 1
    assert "mean of age" in few.statement().text


def test_an_account_is_found_again_and_keeps_its_unit(tmp_path):
    where = tmp_path / "ledger.db"
    first = sf.open(
        "a", clients_frame(), privacy_unit="client", budget=sf.Budget(epsilon=1, delta=0), ledger=where
    )
    first.count(epsilon=0.5)
    again = sf.open("a", clients_frame(), privacy_unit="client", ledger=where)
    assert again.spent().epsilon == pytest.approx(0.5)
    with pytest.raises(sf.SfumatoError, match="protects one 'client'"):
        sf.open("a", clients_frame(), ledger=where)


def test_without_a_ledger_the_budget_holds_as_long_as_the_data_is_held():
    data = sf.open("b", clients_frame(), budget=sf.Budget(epsilon=1, delta=1e-6))
    older = data.filter(lambda row: row.age > 30)
    del data
    gc.collect()
    older.count(epsilon=0.75)
    with pytest.raises(BudgetExceededError):
        older.count(epsilon=0.5)


def test_the_account_and_the_relation_cannot_be_changed_at_the_door(clients):
    for more in ({"relation": "replace-one"}, {"account": None}):
        with pytest.raises(TypeError, match="multiple values"):
            clients.mean("age", bounds=(0, 100), epsilon=0.1, **more)
    with pytest.raises(TypeError, match="unexpected keyword"):
        clients.mean("age", bounds=(0, 100), epsilon=0.1, epsilom=2)
    assert not clients.account.releases()


# --- models ----------------------------------------------------------------------------------------------


def test_a_fit_is_charged_to_the_account_and_leaves_the_estimator_alone(clients):
    estimator = logistic()
    fitted = clients.fit(estimator, target="default", features=["age"], purpose="who defaults")
    assert not hasattr(estimator, "coef_") and estimator.account is None
    assert fitted.guarantee_.privacy_unit == "client" and fitted.guarantee_.epsilon <= 5.0 + 1e-9
    (charged,) = clients.account.releases()
    assert charged.purpose == "who defaults"
    assert fitted.predict([[20.0], [89.0]]).tolist() == [0, 1]


def test_features_are_all_numbers_but_target_and_unit_unless_named(clients):
    assert clients.fit(logistic(), target="default").n_features_in_ == 2  # age and income
    assert clients.fit(logistic(), target="default", features=["age"]).n_features_in_ == 1


def test_a_pipeline_is_charged_step_by_step(clients):
    scaler = estimators.StandardScaler(epsilon=1.0, bounds=[(0.0, 100.0)])
    model = clients.fit(make_pipeline(scaler, logistic()), target="default", features=["age"])
    assert len(clients.account.releases()) == 2
    assert model.predict([[20.0], [89.0]]).tolist() == [0, 1]


def test_rows_are_read_after_the_charge_and_once(clients, monkeypatch):
    seen = []
    read = table_columns.TableRows.batches

    def watched(self):
        seen.append(len(clients.account.releases()))
        return read(self)

    monkeypatch.setattr(table_columns.TableRows, "batches", watched)
    clients.fit(logistic(), target="default", features=["age"])
    assert seen == [1]


@pytest.mark.parametrize(
    "estimator",
    [
        PlainRegression(),
        make_pipeline(MinMaxScaler(), logistic()),
        make_pipeline(FunctionTransformer(lambda x: x - x.mean(0)), logistic()),
        OneVsRestClassifier(logistic()),
        BaggingClassifier(logistic()),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_what_learns_without_paying_is_refused(clients, estimator):
    with pytest.raises(InvalidParameterError, match=r"pays nothing|has no price"):
        clients.fit(estimator, target="default")
    assert not clients.account.releases()


@pytest.mark.parametrize("odd", [7.0, np.inf, 0.5, -1.0])
def test_labels_that_are_no_class_are_left_out_and_not_quoted(odd):
    frame = clients_frame().astype({"default": float})
    frame.loc[3, "default"] = odd
    data = sf.open("t", frame, privacy_unit="client", budget=sf.Budget(epsilon=30, delta=1e-5))
    settings = {"public_size": ROWS, "expected_batch_size": 4000, "steps": 2, "progress": False}
    run = data.train(
        nn.Linear(1, 2),
        features=["age"],
        target="default",
        classes=2,
        noise_multiplier=5.0,
        delta=1e-5,
        **settings,
    )
    assert run.guarantee.epsilon > 0


def replaced(last):
    return pd.DataFrame({"x": [0.1, 0.5, 0.9, 0.3], "y": [0.2, 0.4, 0.8, last], "k": ["a", "b", "a", "b"]})


ONE_FOR_ANOTHER = {
    "NoisyStats": lambda noise: (
        estimators.NoisyStats(
            epsilon=1.0,
            feature_bounds=(0, 1),
            target_bounds=(0, 1),
            relation="replace-one",
            random_state=noise,
        ),
        {"features": ["x"], "target": "y"},
    ),
    "LogisticRegression": lambda noise: (
        LogisticRegression(
            epsilon=1.0, clip_norm=1.0, classes=("a", "b"), relation="replace-one", random_state=noise
        ),
        {"features": ["x", "y"], "target": "k"},
    ),
}


@pytest.mark.parametrize("last", [1.0, 1e9, None])
@pytest.mark.parametrize("name", ONE_FOR_ANOTHER)
def test_a_replaced_row_leaves_the_number_of_rows_as_it_was_also_if_a_value_is_missing(name, last):
    def release(frame, generator):
        model, named = ONE_FOR_ANOTHER[name](generator)
        fitted = fit(statistics.private_table(frame), model, **named)
        return fitted.coef_.tolist(), fitted.intercept_

    if name == "NoisyStats":
        assert replay(release, replaced(0.1), replaced(last))
    seen = []
    for frame in (replaced(0.1), replaced(last)):
        model, named = ONE_FOR_ANOTHER[name](0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(model), "_learn", lambda self, X, y, **_: seen.append((np.array(X), np.array(y)))
            )
            fit(statistics.private_table(frame), model, **named)
    assert [len(X) for X, _ in seen] == [len(y) for _, y in seen] == [4, 4]


def test_the_number_of_rows_that_a_filter_leaves_is_not_public():
    model, named = ONE_FOR_ANOTHER["NoisyStats"](0)
    table = statistics.private_table(replaced(0.1))
    for private in (
        table.filter(lambda row: row.x > 0.2),
        statistics.private_table(replaced(0.1), privacy_unit="k"),
    ):
        with pytest.raises(
            InvalidParameterError, match="number of rows is public, but how many a filter leaves"
        ):
            fit(private, model, **named)


def test_units_of_several_rows_cannot_be_fitted(tmp_path):
    frame = clients_frame().assign(client=lambda f: f["client"] // 3)
    data = sf.open(
        "k", frame, privacy_unit="client", contribution_bound=3, budget=sf.Budget(epsilon=9, delta=0)
    )
    with pytest.raises(InvalidParameterError, match="contribution_bound=1"):
        data.fit(logistic(), target="default")


@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_a_network_is_trained_for_the_units_of_the_data(rows_per_unit):
    frame = clients_frame().assign(client=lambda f: f["client"] // rows_per_unit)
    data = sf.open(
        "t",
        frame,
        privacy_unit="client",
        contribution_bound=rows_per_unit,
        budget=sf.Budget(epsilon=30, delta=1e-5),
    )
    torch.manual_seed(0)
    run = data.train(
        nn.Linear(1, 2),
        features=["age"],
        target="default",
        classes=2,
        public_size=ROWS // rows_per_unit,
        expected_batch_size=100,
        steps=5,
        epsilon=2.0,
        delta=1e-5,
        progress=False,
    )
    assert run.guarantee.privacy_unit == "client" and run.guarantee.epsilon <= 2.0
    assert len(data.account.releases()) == 1


@pytest.mark.parametrize("kind", [OSError, OverflowError])
def test_rows_that_cannot_be_read_are_not_quoted_and_the_run_stays_spent(clients, monkeypatch, kind):
    def fail(self):
        raise kind("row 17: secret 4711")

    monkeypatch.setattr(table_columns.TableRows, "read", fail)
    with pytest.raises(QueryFailedError) as error:
        clients.train(
            nn.Linear(1, 2),
            features=["age"],
            target="default",
            classes=2,
            public_size=9,
            expected_batch_size=3,
            steps=1,
        )
    assert "4711" not in str(error.value) and "Error" not in str(error.value)
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert [release.progress for release in clients.account.releases()] == [Progress.BEGUN]


def test_a_run_that_the_budget_does_not_cover_reads_nothing(clients, monkeypatch):
    def fail(self):
        raise AssertionError("rows were read")

    monkeypatch.setattr(table_columns.TableRows, "read", fail)
    with pytest.raises(BudgetExceededError):
        clients.train(
            nn.Linear(1, 2),
            features=["age"],
            target="default",
            classes=2,
            public_size=9,
            expected_batch_size=3,
            steps=1,
            noise_multiplier=0.01,
        )


def test_an_estimator_keeps_its_own_account_where_none_is_given(tmp_path):
    ledger = sf.Ledger(tmp_path / "ledger.db")
    account = ledger.open("own", privacy_unit="client", budget=sf.Budget(epsilon=9, delta=1e-4))
    table = statistics.private_table(clients_frame(), privacy_unit="client")
    model = LogisticRegression(epsilon=1.0, clip_norm=3.0, classes=(0, 1), account=account, purpose="own")
    fit(table, model, target="default", features=["age", "income"])
    assert [release.purpose for release in account.releases()] == ["own"]


def test_a_forked_process_that_ends_leaves_the_passing_ledger_to_its_parent():
    data = sf.open("people", pd.DataFrame({"age": [20.0] * 9}), budget=sf.Budget(epsilon=9, delta=1e-6))
    child = os.fork()
    if child == 0:
        del data.account  # the last reference, in this process
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    data.mean("age", bounds=(0, 100), epsilon=1.0)
    assert data.spent().epsilon == pytest.approx(1.0)


def test_an_engine_that_dies_midway_leaves_the_release_spent_and_says_nothing(clients, monkeypatch, tmp_path):
    def die(self, expression):
        raise RuntimeError("while reading client 4711")

    monkeypatch.setattr(owned_rows.OwnedRows, "row", die)
    with pytest.raises(QueryFailedError) as error:
        clients.mean("age", bounds=(0, 100), epsilon=1.0)
    assert "4711" not in str(error.value)
    assert clients.spent().epsilon == pytest.approx(1.0)
    sf.Ledger(tmp_path / "ledger.db").verify()


def test_nothing_of_the_rows_is_in_the_repr(clients):
    assert isinstance(clients, PrivateData)
    said = repr(clients)
    assert "clients" in said and "4000" not in said and "Rome" not in said


def test_one_statistic_through_the_door_takes_three_transactions(clients, monkeypatch):
    """To reserve, begin and commit: each is a write that must be on disk before the next step."""
    opened = []
    for kind in ("reading", "writing"):
        whole = getattr(Store, kind)
        monkeypatch.setattr(Store, kind, lambda store, k=kind, w=whole: opened.append(k) or w(store))
    clients.mean("age", bounds=(0, 100), epsilon=0.1)
    assert opened == ["writing"] * 3
