# SPDX-License-Identifier: Apache-2.0
"""PATE in one call: right answers at large epsilon, one charge before a row is read, nothing else leaves."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
    QueryFailedError,
    SfumatoError,
    UnsupportedModelError,
)
from sfumato.pate import Partition
from sfumato.pate.pipeline import label, train
from sfumato.pate.run import PateRun, ReleasedAnswers
from sfumato.pate.students.semi_supervised import SemiSupervisedStudent
from sfumato.pate.students.supervised import SupervisedStudent
from sfumato.pate.votes.aggregators import NO_ANSWER, ConfidentGNMax, GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.interaction import InteractiveGNMax
from sfumato.pate.votes.stability import StableLabeling
from sfumato.testing import seeded

X, Y = load_digits(return_X_y=True)
PRIVATE, PUBLIC, TEST = slice(0, 1200), slice(1200, 1500), slice(1500, None)
NEAREST = KNeighborsClassifier(1)
TERMS = {"public": X[PUBLIC], "classes": 10, "teachers": 12, "progress": False}
LARGE = {"epsilon": 2000.0, "delta": 1e-5, "aggregator": GNMax(stddev=0.6)}


class Constant:
    """A student that learns the most frequent answer."""

    def __init__(self) -> None:
        self.fitted: list[np.ndarray] = []

    def fit(self, features, answers, *, classes, progress=True):
        self.fitted.append(answers.copy())
        self.likely = int(np.bincount(answers[answers >= 0], minlength=classes).argmax())
        self.classes = classes
        return self

    def predict(self, features):
        return np.full(len(features), self.likely)

    def predict_proba(self, features):
        return np.eye(self.classes)[self.predict(features)]


class Linear(Constant):
    """A student that learns from the answered rows alone."""

    def fit(self, features, answers, *, classes, progress=True):
        known = answers >= 0
        return LogisticRegression(max_iter=500).fit(features[known], answers[known])


class FailsLater(Constant):
    """A student that works on made-up answers and fails on real ones, or as it is kept."""

    def fit(self, features, answers, *, classes, progress=True):
        if (answers != np.arange(len(answers)) % classes).any():
            raise RuntimeError("no memory")
        return super().fit(features, answers, classes=classes)


def run(**changed):
    return label(NEAREST, X[PRIVATE], Y[PRIVATE], **{**TERMS, **LARGE, **changed})


# --- right answers ------------------------------------------------------------------------------------------


def test_answers_are_right_at_a_large_epsilon():
    found = run()
    assert found.asked == found.answered == 300
    assert (found.classes == Y[PUBLIC]).mean() > 0.85


def test_a_student_learns_from_answers_alone():
    done = train(NEAREST, Linear(), X[PRIVATE], Y[PRIVATE], evaluation=(X[TEST], Y[TEST]), **TERMS, **LARGE)
    assert done.accuracy > 0.8
    assert done.guarantee.epsilon <= 2000
    assert json.loads(done.to_json())["answered"] == 300


def test_labels_of_any_type_are_classes():
    names = np.array([f"digit {i}" for i in range(10)])
    found = label(NEAREST, X[PRIVATE], names[Y[PRIVATE]], **{**TERMS, "classes": names.tolist()}, **LARGE)
    assert (found.classes == Y[PUBLIC]).mean() > 0.85


def test_fewer_rows_are_asked_if_the_budget_covers_no_more():
    found = run(epsilon=3.0, aggregator=GNMax(stddev=4.0))
    assert 0 < found.asked < 300
    assert (found.classes != NO_ANSWER).sum() == found.answered == found.asked
    assert found.guarantee.epsilon <= 3.0


def test_which_rows_are_asked_differs_from_run_to_run():
    """Their order must not depend on private data, and is drawn anew."""
    one, two = (np.flatnonzero(run(queries=20).classes != NO_ANSWER) for _ in range(2))
    assert one.tolist() != two.tolist()


def test_interaction_trains_a_student_between_rounds():
    student = Constant()
    rule = InteractiveGNMax(threshold=4.0, threshold_stddev=0.5, stddev=0.5, confidence=0.9, max_answers=250)
    found = run(aggregator=rule, epsilon=1e5, student=student, rounds=3)
    assert len(student.fitted) == 2
    assert [int((seen >= 0).sum()) > 0 for seen in student.fitted] == [True, True]
    known = found.classes != NO_ANSWER
    assert known.sum() > 100 and (found.classes == Y[PUBLIC])[known].mean() > 0.8


def test_interaction_needs_a_student():
    rule = InteractiveGNMax(threshold=4.0, threshold_stddev=1.0, stddev=1.0, confidence=0.9)
    with pytest.raises(InvalidParameterError, match="student"):
        run(aggregator=rule)


# --- groups -------------------------------------------------------------------------------------------------

BUDGETS = {"epsilons": (100.0, 2000.0), "shares": (0.5, 0.5), "delta": 1e-5}


@pytest.mark.parametrize("method", ["weighting", "upsampling", "vanishing"])
def test_groups_have_their_own_guarantees_and_answers_stay_right(method):
    individual = IndividualBudgets(**BUDGETS, method=method)
    groups = np.arange(1200) % 2
    found = run(epsilon=None, individual=individual, groups=groups, aggregator=GNMax(stddev=1.0))
    assert len(found.guarantees) == 2
    for promise, most in zip(found.guarantees, individual.epsilons, strict=True):
        assert promise.epsilon <= most
    known = found.classes != NO_ANSWER
    assert (found.classes[known] == Y[PUBLIC][known]).mean() > 0.7
    assert "group 0: " in found.statement() and "group 2" not in found.statement()


@pytest.mark.parametrize("method", ["weighting", "upsampling", "vanishing"])
def test_a_group_that_there_is_not_raises_nothing(method):
    individual = IndividualBudgets(**BUDGETS, method=method)
    groups = ["someone's diagnosis", None, math.nan, -1, 7, 0.5, *[1] * 1194]
    found = run(epsilon=None, individual=individual, groups=groups, aggregator=GNMax(stddev=1.0))
    assert found.answered > 0


def test_groups_and_budgets_belong_together():
    individual = IndividualBudgets(**BUDGETS)
    with pytest.raises(InvalidParameterError, match="groups"):
        run(epsilon=None, individual=individual)
    with pytest.raises(InvalidParameterError, match="individual"):
        run(groups=np.zeros(1200))


def test_accounts_of_groups_are_charged_for_their_own_group(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    accounts = [
        ledger.open(name, privacy_unit="row", budget=Budget(epsilon=3000, delta=1e-4)) for name in ("a", "b")
    ]
    individual = IndividualBudgets(**BUDGETS)
    found = run(
        epsilon=None,
        individual=individual,
        groups=np.arange(1200) % 2,
        aggregator=GNMax(stddev=1.0),
        account=accounts,
        purpose="labels",
    )
    spent = [account.costs()[0].epsilon for account in accounts]
    assert spent[0] < spent[1]
    assert found.account == "'a', 'b'"


def test_if_one_account_refuses_no_other_pays(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    rich = ledger.open("rich", privacy_unit="row", budget=Budget(epsilon=3000, delta=1e-4))
    poor = ledger.open("poor", privacy_unit="row", budget=Budget(epsilon=0.1, delta=1e-4))
    with pytest.raises(BudgetExceededError):
        run(
            epsilon=None,
            individual=IndividualBudgets(**BUDGETS),
            groups=np.arange(1200) % 2,
            aggregator=GNMax(stddev=1.0),
            account=[rich, poor],
            purpose="labels",
        )
    assert rich.spent().epsilon == 0


# --- the ledger ---------------------------------------------------------------------------------------------


def account_of(tmp_path, epsilon=3000.0):
    return Ledger(tmp_path / "ledger.db").open(
        "digits", privacy_unit="row", budget=Budget(epsilon=epsilon, delta=1e-4)
    )


def test_a_job_is_one_release(tmp_path):
    account = account_of(tmp_path)
    found = run(account=account, purpose="labels of public digits")
    (release,) = account.releases()
    assert release.purpose == "labels of public digits"
    assert account.costs()[0].epsilon <= found.guarantee.epsilon + 1e-6
    assert "'digits'" in found.statement()


def test_a_refused_job_reads_nothing(tmp_path):
    class Secret:
        shape, ndim, dtype = (1200, 64), 2, X.dtype

        def __array__(self, *_, **__):
            raise AssertionError("private rows were read")

        def __len__(self):
            return 1200

    with pytest.raises((BudgetExceededError, InvalidParameterError)):
        label(
            NEAREST,
            Secret(),
            Secret(),
            **TERMS,
            **LARGE,
            account=account_of(tmp_path, epsilon=0.1),
            purpose="x",
        )


@pytest.mark.parametrize("wrong", [{"labels": Y[:7]}, {"units": Y[:7]}, {"groups": Y[:7]}])
def test_wrong_lengths_cost_nothing(tmp_path, wrong):
    account = account_of(tmp_path)
    given = {"labels": Y[PRIVATE], **wrong}
    with pytest.raises(InvalidParameterError, match="one entry for each row"):
        label(NEAREST, X[PRIVATE], **given, **TERMS, **LARGE, account=account, purpose="x")
    assert account.releases() == []


def test_wrong_settings_cost_nothing(tmp_path):
    account = account_of(tmp_path)
    for wrong in ({"queries": 301}, {"teachers": 0}, {"rounds": 0}, {"agreement": 7.0}, {"epsilon": -1.0}):
        with pytest.raises(InvalidParameterError):
            run(account=account, purpose="x", **wrong)
    with pytest.raises(UnsupportedModelError):
        label("no estimator", X[PRIVATE], Y[PRIVATE], **TERMS, **LARGE, account=account, purpose="x")
    assert account.releases() == []


WRONG_STUDENTS = {
    "no student": (lambda: LogisticRegression(), {}),
    "text": (lambda: "svm", {}),
    "wrong settings": (lambda: SupervisedStudent(LogisticRegression(C=-1.0)), {}),
    "another network": (lambda: SemiSupervisedStudent(model=nn.Linear(3, 10)), {}),
    "narrow evaluation": (Linear, {"evaluation": (X[TEST][:, :9], Y[TEST])}),
    "missing numbers": (Linear, {"evaluation": (np.full((2, 64), math.nan), [0, 1])}),
    "no class": (Linear, {"evaluation": (X[TEST], Y[TEST] + 1)}),
    "other columns": (Linear, {"student_public": X[PUBLIC][:, :9], "evaluation": (X[TEST], Y[TEST])}),
    "proc": (Linear, {"folder": "/proc/foo"}),
}


@pytest.mark.parametrize("wrong", WRONG_STUDENTS)
def test_a_student_evaluation_or_folder_that_cannot_work_costs_nothing(tmp_path, wrong):
    student, changed = WRONG_STUDENTS[wrong]
    account = account_of(tmp_path)
    with pytest.raises(SfumatoError) as error:
        train(
            NEAREST,
            student(),
            X[PRIVATE],
            Y[PRIVATE],
            **{**TERMS, **LARGE, "account": account, "purpose": "x", **changed},
        )
    assert account.releases() == [] and not hasattr(error.value, "answers")


def test_a_folder_with_paid_answers_is_refused_before_the_charge(tmp_path):
    first = run(folder=tmp_path / "run", queries=20)
    account = account_of(tmp_path)
    with pytest.raises(InvalidParameterError, match="paid for"):
        run(folder=tmp_path / "run", account=account, purpose="x")
    assert account.releases() == []
    assert np.array_equal(ReleasedAnswers.load_classes(tmp_path / "run"), first.classes)


def test_columns_are_matched_by_their_names():
    names = [f"p{i}" for i in range(64)]
    private, public = (pd.DataFrame(X[part], columns=names) for part in (PRIVATE, PUBLIC))
    test = pd.DataFrame(X[TEST], columns=names)[names[::-1]]
    done = train(
        NEAREST,
        SupervisedStudent(LogisticRegression(max_iter=500)),
        private,
        Y[PRIVATE],
        evaluation=(test, Y[TEST]),
        **{**TERMS, **LARGE, "public": public[names[::-1]]},
    )
    assert (done.answers.classes == Y[PUBLIC]).mean() > 0.85 and done.accuracy > 0.8


def test_labels_that_can_be_no_class_cost_nothing(tmp_path):
    account = account_of(tmp_path)
    with pytest.raises(InvalidParameterError, match="every class is text"):
        run(classes=[f"n{i}" for i in range(10)], account=account, purpose="x")
    assert account.releases() == []


def test_a_student_is_for_interaction_alone():
    with pytest.raises(InvalidParameterError, match="InteractiveGNMax alone"):
        run(student=Constant())


def test_an_account_of_people_asks_whose_the_rows_are(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "people", privacy_unit="person", budget=Budget(epsilon=3000, delta=1e-4)
    )
    with pytest.raises(InvalidParameterError, match="whose the rows are"):
        run(account=account, purpose="x")
    found = run(account=account, purpose="x", units=np.arange(1200) // 3)
    assert found.guarantee.privacy_unit == "person"


# --- what is kept -------------------------------------------------------------------------------------------


def take_away(folder):
    for name in ("answers.npy", "answers.json"):
        (folder / name).unlink()


def test_a_folder_keeps_partition_teachers_and_answers(tmp_path):
    units = np.arange(1200)
    first = run(folder=tmp_path, units=units)
    key = (tmp_path / "teachers" / "partition.key").read_bytes()
    files = {f.name: f.stat().st_mtime_ns for f in (tmp_path / "teachers").glob("*.joblib")}
    take_away(tmp_path)
    second = run(folder=tmp_path, units=units)
    assert (tmp_path / "teachers" / "partition.key").read_bytes() == key
    assert {f.name: f.stat().st_mtime_ns for f in (tmp_path / "teachers").glob("*.joblib")} == files
    assert len(files) == 12
    assert np.array_equal(ReleasedAnswers.load_classes(tmp_path), second.classes)
    assert (first.classes == second.classes).mean() > 0.95  # the same teachers, other noise


def test_rows_that_are_only_numbered_get_a_new_key_for_each_job(tmp_path):
    run(folder=tmp_path)
    files = {f.name: f.read_bytes() for f in (tmp_path / "teachers").glob("*.joblib")}
    take_away(tmp_path)
    run(folder=tmp_path)
    assert not (tmp_path / "teachers" / "partition.key").exists()
    again = {f.name: f.read_bytes() for f in (tmp_path / "teachers").glob("*.joblib")}
    assert again.keys() == files.keys() and all(again[name] != files[name] for name in files)
    with pytest.raises(InvalidParameterError, match="pass units"):
        run(partition=Partition.draw(12))


def test_a_key_is_for_its_owner_alone(tmp_path):
    run(folder=tmp_path, units=np.arange(1200))
    assert (tmp_path / "teachers" / "partition.key").stat().st_mode & 0o777 == 0o600


def test_a_folder_without_answers_is_told(tmp_path):
    with pytest.raises(InvalidParameterError, match="no answers"):
        ReleasedAnswers.load_classes(tmp_path)


def test_a_folder_keeps_the_student(tmp_path):
    done = train(NEAREST, Linear(), X[PRIVATE], Y[PRIVATE], folder=tmp_path, **TERMS, **LARGE)
    loaded = PateRun.load_student(tmp_path)
    assert np.array_equal(loaded.predict(X[TEST]), done.student.predict(X[TEST]))
    with pytest.raises(InvalidParameterError, match="no student"):
        PateRun.load_student(tmp_path / "teachers")


def test_answers_survive_a_student_that_fails(tmp_path):
    with pytest.raises(RuntimeError, match="no memory") as error:
        train(NEAREST, FailsLater(), X[PRIVATE], Y[PRIVATE], folder=tmp_path, **TERMS, **LARGE)
    assert (error.value.answers.classes == Y[PUBLIC]).mean() > 0.85
    assert "was charged" in error.value.__notes__[0]
    assert (ReleasedAnswers.load_classes(tmp_path) == Y[PUBLIC]).mean() > 0.85


# --- statements and bad input -------------------------------------------------------------------------------


def test_a_statement_names_everything_that_counts():
    done = train(NEAREST, Constant(), X[PRIVATE], Y[PRIVATE], **TERMS, **LARGE)
    told = done.statement()
    for part in (
        "12 teachers",
        "disjoint",
        "300 public rows",
        "GNMax",
        "add-remove",
        "not recorded",
        "Tuning",
    ):
        assert part.lower() in told.lower()


def test_seeded_noise_is_for_study():
    assert "study" in run(generator=seeded(0)).statement()


def test_agreement_that_is_not_tested_is_said():
    found = run(queries=20, agreement=0.9)
    assert "Agreement was not tested" in found.statement()
    assert "greement" not in run(queries=20).statement()


def test_a_test_of_agreement_is_in_the_statement():
    job = StableLabeling(
        aggregator=GNMax(stddev=1.0),
        queries=50,
        teachers=12,
        epsilon=20.0,
        delta=1e-3,
        order=8.0,
        test_stddev=2.5,
        test_delta=1e-4,
    )
    found = label(NEAREST, X[PRIVATE], Y[PRIVATE], public=X[PUBLIC], classes=10, job=job, progress=False)
    assert "noisy test" in found.statement()


def test_no_confident_query_is_an_error_that_stays_spent(tmp_path):
    account = account_of(tmp_path)
    never = ConfidentGNMax(threshold=1e6, threshold_stddev=1.0, stddev=1.0)
    with pytest.raises(QueryFailedError, match=r"none of 300 queries.*stays spent") as error:
        train(
            NEAREST,
            Constant(),
            X[PRIVATE],
            Y[PRIVATE],
            **{**TERMS, **LARGE, "epsilon": 1e5, "aggregator": never},
            account=Ledger(tmp_path / "b.db").open(
                "b", privacy_unit="row", budget=Budget(epsilon=1e6, delta=1e-4)
            ),
            purpose="x",
        )
    assert account.releases() == [] and error.value.answers.answered == 0


def test_a_class_that_no_teacher_knows_gets_no_votes():
    few = Y[PRIVATE] < 5
    found = label(NEAREST, X[PRIVATE][few], Y[PRIVATE][few], **TERMS, **LARGE)
    assert found.classes.max() < 5


def test_more_teachers_than_units_abstain():
    found = (
        run(teachers=3000, queries=20, workers=1)
        if False
        else label(NEAREST, X[:30], Y[:30], **{**TERMS, "teachers": 60}, **LARGE)
    )
    assert found.answered == 300


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"epsilom": 1.0}, "Did you mean 'epsilon'"),
        ({"public": X[:0]}, "public"),
        ({"public": X[PUBLIC][:, :9]}, "public must be at least 2 public rows of shape"),
        ({"classes": 1}, "classes"),
        ({"purpose": "x"}, "account"),
        ({"rounds": 3}, "rounds are for InteractiveGNMax"),
        ({"delta": None}, "delta"),
        ({"partition": Partition.draw(5), "units": np.arange(1200)}, "the partition has"),
        ({"public": np.vstack([X[PUBLIC], [[math.nan] * X.shape[1]]])}, "missing"),
        ({"workers": 0}, "workers"),
        ({"epsilon": 1e-3}, "does not cover"),
    ],
)
def test_wrong_arguments_are_told(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        run(**wrong)


def test_rows_that_are_poison_raise_nothing_and_show_nothing(capfd):
    rows, labels = X[PRIVATE].copy(), Y[PRIVATE].astype(float)
    rows[0], rows[1], labels[2], labels[3] = math.nan, 1e300, 99.0, math.nan
    found = label(NEAREST, rows, labels, **TERMS, **LARGE)
    assert found.answered == 300
    assert capfd.readouterr() == ("", "")
