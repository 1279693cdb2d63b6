# SPDX-License-Identifier: Apache-2.0
"""PATE through the door: one charge before a row is read, units in one teacher, and nothing quoted."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.tree import DecisionTreeClassifier

import sfumato as sf
from sfumato import Budget
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.ledger.state import Progress
from sfumato.pate.planning import plan
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.private.voting_rows import public_matrix, voting_rows
from sfumato.statistics import private_table
from sfumato.statistics.columns import table_columns

ROWS = 600
PUBLIC = pd.DataFrame({"income": [5.0, 6.0, 5.0, 6.0] * 5, "age": [10.0, 30.0, 70.0, 90.0] * 5})
TRUTH = np.array(["no", "no", "yes", "yes"] * 5)
TREE = DecisionTreeClassifier(random_state=0)


class Tree:
    """A student that learns from the answered rows."""

    def fit(self, features, answers, *, classes, progress=True):
        known = answers >= 0
        return DecisionTreeClassifier(random_state=0).fit(features[known], answers[known])


def frame():
    number = np.arange(ROWS)
    age = (number * 7 % 100).astype(float)
    return pd.DataFrame(
        {
            "who": [f"person {i // 2}" for i in number],
            "age": age,
            "income": (number % 13).astype(float),
            "default": np.where(age > 50, "yes", "no"),
            "paid": (age > 50).astype(int),
            "level": number // 2 % 2,
        }
    )


def opened(data=None, *, epsilon=3000.0, **terms):
    return sf.open(
        "d", frame() if data is None else data, budget=Budget(epsilon=epsilon, delta=1e-4), **terms
    )


def asked(data, **changed):
    terms = {
        "features": ["age", "income"],
        "target": "default",
        "classes": ["no", "yes"],
        "public": PUBLIC,
        "epsilon": 2000.0,
        "teachers": 6,
        "aggregator": GNMax(stddev=0.3),
        "progress": False,
    }
    return data.pate(TREE, Tree(), **{**terms, **changed})


# --- the run ------------------------------------------------------------------------------------------------


def test_answers_and_student_are_right_and_charged_once():
    data = opened()
    run = asked(data, evaluation=(PUBLIC, TRUTH))
    assert run.accuracy == 1.0 and run.answers.answered == 20
    (release,) = data.account.releases()
    assert release.progress is Progress.COMMITTED
    assert run.guarantee.privacy_unit == "row" and run.answers.account == "'d'"


def test_classes_may_be_numbers():
    run = asked(opened(), target="paid", classes=2, evaluation=(PUBLIC, (TRUTH == "yes").astype(int)))
    assert run.accuracy == 1.0


def test_public_rows_may_be_a_frame_a_table_or_an_array():
    matrix = PUBLIC[["age", "income"]].to_numpy()
    for public in (PUBLIC, pa.Table.from_pandas(PUBLIC), matrix, matrix.tolist()):
        assert public_matrix(public, ("age", "income")).tolist() == matrix.tolist()
        assert asked(opened(), public=public).answers.answered == 20


def test_a_job_may_be_planned_before():
    job = plan(epsilon=2000.0, delta=1e-5, teachers=6, aggregator=GNMax(stddev=0.3), queries=20)
    run = asked(opened(), job=job, epsilon=None, teachers=None, aggregator=None)
    assert run.answers.asked == 20


def test_a_student_may_see_other_features():
    other = np.stack([PUBLIC["age"], PUBLIC["age"]], axis=1)
    run = asked(opened(), student_public=other, evaluation=(other, TRUTH))
    assert run.accuracy == 1.0


# --- units --------------------------------------------------------------------------------------------------


def test_a_unit_is_known_by_its_entry_in_the_column():
    table = private_table(frame(), privacy_unit="who", contribution_bound=2)
    read = voting_rows(table, ("age",), "default", ["no", "yes"]).read()
    assert sorted(set(read.units)) == sorted(frame()["who"].unique()) and len(read.units) == ROWS
    by_unit = frame().groupby("who")["age"].apply(set).to_dict()
    assert all(age in by_unit[who] for who, (age,) in zip(read.units, read.features, strict=True))


def test_without_a_unit_column_each_row_is_one():
    read = voting_rows(private_table(frame()), ("age",), "paid", 2).read()
    assert read.units is None and read.groups is None and len(read.features) == ROWS


def test_rows_beyond_the_contribution_bound_are_left_out():
    table = private_table(frame(), privacy_unit="who", contribution_bound=1)
    assert len(voting_rows(table, ("age",), "paid", 2).read().features) == ROWS // 2


def test_the_privacy_unit_is_that_of_the_data():
    run = asked(opened(privacy_unit="who", contribution_bound=2))
    assert run.guarantee.privacy_unit == "who" and run.answers.answered == 20


def test_groups_come_from_a_column():
    data = opened(privacy_unit="who", contribution_bound=2)
    individual = IndividualBudgets(epsilons=(1000.0, 2000.0), shares=(0.5, 0.5), delta=1e-5)
    run = asked(data, groups="level", epsilon=None, individual=individual)
    assert len(run.answers.guarantees) == 2 and len(data.account.releases()) == 1
    with pytest.raises(InvalidParameterError, match="groups"):
        asked(data, epsilon=None, individual=individual)


# --- what is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", ["account", "relation", "privacy_unit", "units"])
def test_what_the_data_was_opened_with_is_refused(own):
    data = opened()
    with pytest.raises(InvalidParameterError, match=f"{own} is fixed"):
        asked(data, **{own: None})


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"features": ["age", "nosuch"]}, "nosuch"),
        ({"features": []}, "features"),
        ({"features": ["age", "who"]}, "who"),
        ({"target": "nosuch"}, "nosuch"),
        ({"classes": ["no"]}, "classes"),
        ({"classes": 2}, "default"),
        ({"groups": "nosuch"}, "nosuch"),
        ({"public": PUBLIC[["age"]]}, "lack the column 'income'"),
        ({"public": np.zeros((3, 3))}, "2 columns"),
        ({"public": PUBLIC.assign(age="old")}, "must be numbers"),
        ({"public": PUBLIC.assign(age=math.nan)}, "missing"),
        ({"public": PUBLIC[:0]}, "public"),
        ({"evaluation": (PUBLIC[["age"]], TRUTH)}, "evaluation"),
        ({"evaluation": PUBLIC}, "evaluation"),
        ({"epsilom": 1.0}, "Did you mean 'epsilon'"),
        ({"epsilon": 1e-4}, "does not cover"),
        ({"workers": 0}, "workers must be"),
    ],
)
def test_wrong_settings_cost_nothing(changed, said):
    data = opened()
    with pytest.raises(InvalidParameterError, match=said):
        asked(data, **changed)
    assert data.account.releases() == []


# --- privacy ------------------------------------------------------------------------------------------------


def test_rows_are_read_once_and_after_the_charge(monkeypatch):
    data, seen = opened(), []
    read = table_columns.TableRows.read_with_units

    def watched(self):
        seen.append([release.progress for release in data.account.releases()])
        return read(self)

    monkeypatch.setattr(table_columns.TableRows, "read_with_units", watched)
    asked(data)
    assert seen == [[Progress.BEGUN]]


def test_a_refused_budget_reads_nothing(monkeypatch):
    def fail(self, *_):
        raise AssertionError("rows were read")

    monkeypatch.setattr(table_columns.OwnedRows, "batches", fail)
    data = opened(epsilon=1.0)
    with pytest.raises(BudgetExceededError):
        asked(data)
    assert data.account.releases() == []


@pytest.mark.parametrize("kind", [OSError, OverflowError, KeyError])
def test_a_failing_read_stays_spent_and_quotes_nothing(monkeypatch, kind):
    def fail(self):
        raise kind("row 17: secret 4711")

    monkeypatch.setattr(table_columns.TableRows, "read_with_units", fail)
    data = opened()
    with pytest.raises(QueryFailedError) as error:
        asked(data)
    assert "4711" not in str(error.value) and error.value.__cause__ is None
    assert error.value.__context__ is None
    assert [release.progress for release in data.account.releases()] == [Progress.BEGUN]


@pytest.mark.parametrize("classes, target", [(["no", "yes"], "default"), (2, "paid")])
def test_poison_rows_raise_nothing_and_show_nothing(classes, target, capfd):
    rows = frame().astype({"paid": float})
    rows.loc[0, "age"], rows.loc[1, "age"], rows.loc[2, "age"] = math.nan, math.inf, 1e300
    rows.loc[3, "default"], rows.loc[4, "default"] = "4711", None
    rows.loc[3, "paid"], rows.loc[4, "paid"], rows.loc[5, "paid"] = 4711.0, math.nan, 0.5
    rows.loc[6, "who"] = None
    for terms in ({}, {"privacy_unit": "who", "contribution_bound": 2}):
        run = asked(opened(rows, **terms), target=target, classes=classes)
        assert run.answers.answered == 20
    assert capfd.readouterr() == ("", "")


def test_a_table_without_usable_rows_is_no_error():
    rows = frame().assign(age=math.nan)
    assert asked(opened(rows)).answers.answered == 20  # teachers abstain, and noise answers
