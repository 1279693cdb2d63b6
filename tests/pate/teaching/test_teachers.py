# SPDX-License-Identifier: Apache-2.0
import gc
import importlib.util
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError, QueryFailedError, UnsupportedModelError
from sfumato.pate import Partition, TorchClassifier, train_teachers

SCRIPT = Path(__file__).parent / "teacher_runs.py"
SPEC = importlib.util.spec_from_file_location("teacher_runs_alone", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)

TEACHERS = 6
PARTITION = Partition(teachers=(TEACHERS,), key=bytes(range(32)))
X, Y, QUERIES = runs.rows()
UNITS = [f"unit {i // 2}" for i in range(len(X))]


def trained(estimator=None, x=X, y=Y, **settings):
    estimator = DecisionTreeClassifier() if estimator is None else estimator
    return train_teachers(estimator, x, y, **{"partition": PARTITION, "classes": 2, **settings})


def votes(*args, queries=QUERIES, **settings):
    with trained(*args, **settings) as ensemble:
        return np.stack(list(ensemble.predictions(queries)))


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


class Fails(BaseEstimator):
    """Fails in one way on rows that hold a large number, and says so in every way it can."""

    def __init__(self, how="fit"):
        self.how = how

    def fit(self, X, y):
        self.bad_ = bool((X > 1000).any())
        self._speak()
        if self.bad_ and self.how == "fit":
            raise ValueError(f"a private value: {X.max()}")
        if self.bad_ and self.how == "exit":
            sys.exit(3)
        if self.bad_ and self.how == "panic":
            raise Panic("a private value")
        if self.bad_ and self.how == "keep":
            self.function_ = lambda: None
        return self

    def predict(self, X):
        self._speak()
        wrong = {
            "raise": lambda: 1 / 0,
            "exit later": lambda: sys.exit(3),
            "long": lambda: np.zeros(len(X) + 1),
            "scalar": lambda: 0,
            "nan": lambda: np.full(len(X), np.nan),
            "text": lambda: np.full(len(X), "yes"),
            "class": lambda: np.full(len(X), 7),
            "negative": lambda: np.full(len(X), -1),
            "fraction": lambda: np.full(len(X), 0.5),
            "none": lambda: None,
            "objects": lambda: np.array([None] * len(X)),
        }
        return wrong[self.how]() if self.bad_ and self.how in wrong else np.ones(len(X), dtype=int)

    def _speak(self):
        if self.bad_:
            print("a private value")  # noqa: T201 - what must not be seen
            print("a private value", file=sys.stderr)  # noqa: T201
            os.system("echo a private value; echo a private value >&2")
            warnings.warn("a private value", stacklevel=1)
            logging.getLogger("teacher").critical("a private value")
            np.float64(1.0) / np.float64(0.0)


@pytest.fixture
def silence(capfd, caplog, recwarn):
    """Fail if anything was shown while a test ran."""
    yield
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err == "" and caplog.records == [] and len(recwarn) == 0


def own_teachers(units, count=TEACHERS):
    _, teachers = Partition(teachers=(count,), key=PARTITION.key).assign(units)
    return sorted(set(teachers.tolist()))


def with_poison(values, labels, unit="poison"):
    x = np.concatenate([X, np.asarray(values, dtype=float)])
    y = np.concatenate([Y.astype(object), np.array([*labels, None], dtype=object)[:-1]])
    return x, y, [*UNITS, *[unit] * len(labels)]


POISON = {
    "nan": ([[np.nan, 0, 0]], [1]),
    "inf": ([[np.inf, -np.inf, 0]], [0]),
    "huge": ([[1e308, -1e308, 1e308]] * 2, [0, 1]),
    "missing label": ([[0, 0, 0]], [None]),
    "nan label": ([[0, 0, 0]], [float("nan")]),
    "other label": ([[0, 0, 0]], [2]),
    "text label": ([[0, 0, 0]], ["1"]),
    "list label": ([[0, 0, 0]], [[1]]),
    "huge label": ([[0, 0, 0]], [10**400]),
    "thousands of rows": ([[0.1, 0.2, 0.3]] * 3000, [1] * 3000),
    "none": (np.zeros((0, 3)), []),
}


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize(
    "estimator",
    [DecisionTreeClassifier(), make_pipeline(StandardScaler(), LogisticRegression(max_iter=2))],
    ids=["tree", "pipeline"],
)
def test_poison_is_not_seen_and_changes_its_own_teacher_only(estimator, poison, silence):
    clean = votes(estimator, units=UNITS, rehearsal=QUERIES)
    x, y, units = with_poison(*POISON[poison])
    poisoned = votes(estimator, x, y, units=units, rehearsal=QUERIES)
    others = np.setdiff1d(np.arange(TEACHERS), own_teachers(["poison"]))
    assert len(others) == TEACHERS - 1
    assert (poisoned[others] == clean[others]).all()
    assert ((poisoned >= -1) & (poisoned < 2)).all()
    dropped = poison in {"nan", "inf", "none"} or "label" in poison
    assert not dropped or (poisoned == clean).all()  # the row was left out


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats()), min_size=1, max_size=3), st.integers(-3, 3))
def test_one_unit_changes_the_votes_of_one_teacher(values, label):
    clean = votes(GaussianNB(), units=UNITS)
    x, y, units = with_poison(values, [label] * len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poisoned = votes(GaussianNB(), x, y, units=units)
    others = np.setdiff1d(np.arange(TEACHERS), own_teachers(["poison"]))
    assert (poisoned[others] == clean[others]).all()


def test_the_check_of_poison_has_power():
    """Teachers that share rows, as with a unit in two teachers, would be noticed."""
    clean = votes(units=UNITS)
    x, y, units = with_poison([[0.0, 0.0, 0.0]] * 2000, [1, 0] * 1000)
    changed = votes(x=x, y=y, units=units, copies=np.repeat([1, TEACHERS], [len(X), 2000]))
    assert (changed != clean).any(axis=1).sum() > 1


@pytest.mark.parametrize("kind", [np.float32, object])
def test_a_value_that_changes_the_type_of_an_array_changes_one_teacher_only(kind, silence):
    """None in an array of numbers makes it an array of objects, for all teachers."""
    public = QUERIES.astype(np.float32)
    clean = votes(GaussianNB(), X.astype(np.float32), units=UNITS, rehearsal=public, queries=public)
    x = np.concatenate([X.astype(np.float32).astype(kind), np.array([[None, 1.0, 2.0]], dtype=object)])
    poisoned = votes(GaussianNB(), x, [*Y, 1], units=[*UNITS, "poison"], rehearsal=public, queries=public)
    assert (poisoned == clean).all()


@pytest.mark.parametrize(
    "how",
    [
        "fit",
        "exit",
        "panic",
        "exit later",
        "keep",
        "raise",
        "long",
        "scalar",
        "nan",
        "text",
        "class",
        "negative",
        "fraction",
        "none",
        "objects",
    ],
)
def test_a_teacher_that_fails_abstains_and_says_nothing(how, silence):
    x, y, units = with_poison([[5000.0, 0, 0]], [1])
    found = votes(Fails(how), x, y, units=units, rehearsal=QUERIES)
    (broken,) = own_teachers(["poison"])
    assert (found[broken] == -1).all()
    assert (np.delete(found, broken, axis=0) == 1).all()


def test_a_teacher_that_speaks_is_heard_without_the_section(capfd):
    """The negative control of the test above."""
    with warnings.catch_warnings(record=True) as warned, pytest.raises(ValueError, match="private"):
        warnings.simplefilter("always")
        Fails().fit(np.full((1, 1), 5000.0), [1])
    shown = capfd.readouterr()
    assert [each.category for each in warned] == [UserWarning, RuntimeWarning]
    assert shown.out.count("private") == shown.err.count("private") == 2


def test_a_teacher_without_rows_abstains(silence):
    found = votes(x=X[:2], y=Y[:2], units=["a", "a"])
    (only,) = own_teachers(["a"])
    assert (np.delete(found, only, axis=0) == -1).all() and (found[only] >= 0).all()


def test_no_rows_at_all_give_an_ensemble_that_abstains(silence):
    with trained(x=X[:0], y=Y[:0], rehearsal=QUERIES) as ensemble:
        assert (ensemble.counts(QUERIES) == 0).all()


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_is_voted_for_where_the_estimator_cannot_be_fitted_to_it(label, silence):
    found = votes(LogisticRegression(), y=np.full(len(X), label))
    assert (found == label).all()


def test_more_teachers_than_units_leaves_some_without_rows(silence):
    many = Partition(teachers=(40,), key=bytes(32))
    with trained(x=X[:5], y=Y[:5], partition=many) as ensemble:
        assert 0 < ensemble.counts(QUERIES).sum(1).max() <= 5


def test_counts_are_sums_of_votes_and_weights():
    with trained() as ensemble:
        found = np.stack(list(ensemble.predictions(QUERIES)))
        plain = ensemble.counts(QUERIES)
        each = np.linspace(0, 2, TEACHERS)
        table = np.outer(each, np.arange(len(QUERIES)))
        weighted, by_query = ensemble.counts(QUERIES, each), ensemble.counts(QUERIES, table)
    assert found.dtype == np.int16 and plain.dtype == np.float64
    for label in (0, 1):
        assert (plain[:, label] == (found == label).sum(0)).all()
        assert weighted[:, label] == pytest.approx((each[:, None] * (found == label)).sum(0))
        assert by_query[:, label] == pytest.approx((table * (found == label)).sum(0))


def test_teachers_are_those_that_plain_fits_give():
    """The slow, obvious version: each teacher fitted by hand on the rows of its units."""
    rows, teachers = PARTITION.assign(UNITS)
    found = votes(GaussianNB(), units=UNITS)
    for number in range(TEACHERS):
        own = rows[teachers == number]
        assert (found[number] == GaussianNB().fit(X[own], Y[own]).predict(QUERIES)).all()


def test_names_of_classes_and_types_of_rows_do_not_matter():
    wanted = votes()
    names = np.where(Y == 1, "yes", "no")
    assert (votes(y=names, classes=["no", "yes"]) == wanted).all()
    assert (votes(y=Y.astype(float)) == wanted).all() and (votes(y=list(Y == 1)) == wanted).all()
    assert (votes(y=torch.tensor(Y)) == wanted).all() and (votes(y=pd.Series(Y)) == wanted).all()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    asked = pd.DataFrame(QUERIES, columns=["a", "b", "c"])
    assert (votes(x=frame, queries=asked, rehearsal=asked) == wanted).all()
    assert (votes(x=sparse.coo_matrix(X), queries=sparse.csr_matrix(QUERIES)) == wanted).all()


def test_missing_values_are_left_out_of_tables_and_sparse_rows():
    frame, labels, units = pd.DataFrame(X, columns=["a", "b", "c"]), [*Y, 1], [*UNITS, "poison"]
    asked = frame[:5]
    clean = votes(GaussianNB(), x=frame, units=UNITS, queries=asked, rehearsal=asked)
    longer = pd.concat([frame, pd.DataFrame([[np.nan, 1, 2]], columns=["a", "b", "c"])])
    assert (votes(GaussianNB(), longer, labels, units=units, queries=asked, rehearsal=asked) == clean).all()
    bad = sparse.csr_matrix(np.concatenate([X, [[np.inf, 0, 1]]]))
    tree = DecisionTreeClassifier()
    assert (
        votes(tree, bad, labels, units=units, queries=sparse.csr_matrix(X[:5]))
        == votes(units=UNITS, queries=X[:5])
    ).all()


def test_text_is_left_to_the_estimator():
    words = np.where(X > 0, "high", "low").astype(object)
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    with trained(model, x=words, rehearsal=words[:9]) as ensemble:
        assert (ensemble.counts(words[:50]).argmax(1) == Y[:50]).mean() > 0.7


def test_groups_and_copies_decide_who_learns():
    groups = np.repeat([0, 1], 200)
    partition = Partition(teachers=(2, 3), key=bytes(32))
    found = votes(LogisticRegression(), y=groups, partition=partition, groups=groups)
    assert found.shape[0] == 5 and (found[:2] == 0).all() and (found[2:] == 1).all()
    everyone = votes(GaussianNB(), copies=TEACHERS)
    assert (everyone == everyone[0]).all()


@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(n_estimators=3), make_pipeline(RandomForestClassifier(n_estimators=3))],
)
def test_seeds_come_from_the_key_and_the_teacher(estimator):
    first, again = votes(estimator, copies=TEACHERS), votes(estimator, copies=TEACHERS)
    assert (first == again).all()
    assert (first != first[0]).any()  # the same rows, but other seeds


def test_two_workers_vote_as_one_and_say_nothing(silence, tmp_path):
    estimator = RandomForestClassifier(n_estimators=5, verbose=3)
    x, y, units = with_poison([[np.nan, 0, 0], [1e308, -1e308, 0]], [0, None])
    settings = {"units": units, "rehearsal": QUERIES}
    alone = votes(estimator, x, y, **settings)
    assert (votes(estimator, x, y, workers=2, folder=tmp_path, **settings) == alone).all()
    bad = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1))
    assert (votes(bad, x, y, workers=2, **settings) == votes(bad, x, y, **settings)).all()


def test_a_backend_that_was_configured_is_used(silence):
    alone = votes(rehearsal=QUERIES)
    with joblib.parallel_config(backend="threading"):
        assert (votes(workers=3, rehearsal=QUERIES) == alone).all()


def test_torch_networks_are_teachers():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    estimator = TorchClassifier(network, epochs=10, learning_rate=0.05, batch_size=16)
    with trained(estimator, rehearsal=QUERIES) as ensemble:
        alone = ensemble.counts(X)
        assert (alone.argmax(1) == Y).mean() > 0.8
    with trained(estimator, x=torch.tensor(X), rehearsal=torch.tensor(QUERIES), workers=2) as ensemble:
        assert (ensemble.counts(torch.tensor(X)) == alone).all()


def test_global_generators_are_left_as_they_were():
    np.random.seed(5)  # noqa: NPY002 - what an estimator could disturb
    torch.manual_seed(5)
    wanted = np.random.RandomState(5).rand(), torch.rand(1, generator=torch.Generator().manual_seed(5))

    class Draws(GaussianNB):
        def fit(self, X, y):
            np.random.rand(3)  # noqa: NPY002
            torch.rand(3)
            return super().fit(X, y)

    votes(Draws())
    assert np.random.rand() == wanted[0] and torch.rand(1) == wanted[1]  # noqa: NPY002


# Files


def changed_files(folder, before):
    return [name for name, time in times(folder).items() if before.get(name) != time]


def times(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("teacher-*")}


def test_a_folder_is_used_again_for_the_same_rows_and_settings(tmp_path):
    clean = votes(folder=tmp_path, units=UNITS)
    before = times(tmp_path)
    assert (votes(folder=tmp_path, units=UNITS) == clean).all() and changed_files(tmp_path, before) == []
    x = X.copy()
    x[0] += 1
    votes(x=x, folder=tmp_path, units=UNITS)
    (teacher,) = own_teachers(UNITS[:1])
    assert changed_files(tmp_path, before) == [f"teacher-{teacher:05d}.joblib"]


@pytest.mark.parametrize(
    "other",
    [
        {"estimator": DecisionTreeClassifier(max_depth=2)},
        {"estimator": GaussianNB()},
        {"classes": [1, 0]},
        {"classes": 3},
        {"partition": Partition(teachers=(TEACHERS,), key=bytes(32))},
        {"partition": Partition(teachers=(TEACHERS - 1, 1), key=PARTITION.key)},
        {"y": 1 - Y},
    ],
    ids=["depth", "estimator", "order of classes", "classes", "key", "groups", "labels"],
)
def test_a_teacher_of_other_settings_is_trained_again(tmp_path, other):
    votes(folder=tmp_path)
    before = times(tmp_path)
    assert (votes(folder=tmp_path, **other) == votes(**other)).all()
    assert len(changed_files(tmp_path, before)) == TEACHERS


def test_weights_of_a_network_are_settings(tmp_path):
    network = nn.Linear(3, 2)
    votes(TorchClassifier(network, epochs=1), folder=tmp_path)
    before = times(tmp_path)
    votes(TorchClassifier(network, epochs=1), folder=tmp_path)
    assert changed_files(tmp_path, before) == []
    with torch.no_grad():
        network.bias += 1
    votes(TorchClassifier(network, epochs=1), folder=tmp_path)
    assert len(changed_files(tmp_path, before)) == TEACHERS


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "other", "part"])
def test_a_damaged_file_is_never_used(tmp_path, damage):
    clean = votes(folder=tmp_path)
    first, second = tmp_path / "teacher-00000.joblib", tmp_path / "teacher-00001.joblib"
    content = first.read_bytes()
    changed = {
        "short": content[:-10],
        "flipped": content[:-10] + bytes([content[-10] ^ 1]) + content[-9:],
        "empty": b"",
        "other": second.read_bytes(),
        "part": None,
    }[damage]
    if changed is None:
        first.rename(first.with_name(first.name + ".part"))
    else:
        first.write_bytes(changed)
    before = times(tmp_path)
    with trained(folder=tmp_path) as ensemble:
        assert (np.stack(list(ensemble.predictions(QUERIES))) == clean).all()
        assert first.name in changed_files(tmp_path, before)
        first.write_bytes(b"")
        with pytest.raises(QueryFailedError, match="damaged"):
            ensemble.counts(QUERIES)
    assert not list(tmp_path.glob("*.part"))


def test_training_that_was_killed_continues_where_it_was(tmp_path, exit_code):
    asked = {"what": "killed", "folder": str(tmp_path / "teachers"), "log": str(tmp_path / "log")}
    died = exit_code(SCRIPT, json.dumps(asked | {"die_after": 5, "out": str(tmp_path / "never.npy")}))
    assert died == -signal.SIGKILL and not (tmp_path / "never.npy").exists()
    kept = times(tmp_path / "teachers")
    assert len(kept) == 5
    assert exit_code(SCRIPT, json.dumps(asked | {"out": str(tmp_path / "counts.npy")})) == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 6 + runs.TEACHERS - 5
    assert {name: times(tmp_path / "teachers")[name] for name in kept} == kept
    x, y, queries = runs.rows()
    whole = train_teachers(
        DecisionTreeClassifier(),
        x,
        y,
        partition=Partition(teachers=(runs.TEACHERS,), key=bytes(32)),
        classes=2,
    )
    assert (np.load(tmp_path / "counts.npy") == whole.counts(queries)).all()


def told(folder, rank):
    """Read what a rank wrote."""
    with np.load(folder / f"rank{rank}.npz") as file:
        return dict(file)


def test_two_ranks_share_the_teachers_and_agree(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    asked = json.dumps({"what": "several", "out": str(tmp_path)})
    ran = subprocess.run([*command, SCRIPT, asked], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    first, second = (told(tmp_path, rank) for rank in (0, 1))
    x, y, queries = runs.rows()
    partition = Partition(teachers=(5, 6), key=bytes(32))
    with train_teachers(
        DecisionTreeClassifier(), x, y, partition=partition, classes=2, units=np.arange(400) // 2
    ) as alone:
        wanted = {"plain": alone.counts(queries), "weighted": alone.counts(queries, np.arange(11) + 0.5)}
    for name, value in wanted.items():
        assert (first[name] == value).all() and (second[name] == value).all()
    assert first["errors"].tolist() == second["errors"].tolist() == ["InvalidParameterError"] * 3


@pytest.mark.parametrize(("budget", "error"), [(5000.0, ""), (1.0, "BudgetExceededError")])
def test_two_ranks_label_with_one_charge_or_are_both_refused(tmp_path, budget, error, run_ranks):
    budgeted = Budget(epsilon=budget, delta=1e-4)
    account = Ledger(tmp_path / "ledger.db").open("a", privacy_unit="row", budget=budgeted)
    asked = json.dumps({"what": "labels", "out": str(tmp_path), "epsilon": 2000.0})
    assert run_ranks(2, SCRIPT, asked) == [0, 0]
    first, second = (told(tmp_path, rank) for rank in (0, 1))
    assert str(first["error"]) == error and bool(str(second["error"])) == bool(error)
    assert len(account.releases()) == (0 if error else 1)
    if not error:
        assert (first["classes"] == second["classes"]).all() and len(first["classes"]) == 30
        assert (first["classes"] == np.load(tmp_path / "job" / "answers.npy")).all()
        _, _, queries = runs.rows()
        assert (first["classes"] == (queries[:, 0] > 0)).mean() > 0.8


def test_files_are_private_and_the_folder_says_so(tmp_path):
    with trained(folder=tmp_path / "new" / "teachers") as ensemble:
        assert ensemble.folder == tmp_path / "new" / "teachers"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in ensemble.folder.iterdir()}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(ensemble.folder.stat().st_mode) == 0o700
        assert "Never publish" in (ensemble.folder / "README.txt").read_text()
    assert len(times(tmp_path / "new" / "teachers")) == TEACHERS  # a folder that was asked for is kept


def test_a_temporary_folder_is_private_and_removed():
    with trained() as ensemble:
        folder = ensemble.folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
    with pytest.raises(InvalidParameterError, match="closed"):
        ensemble.counts(QUERIES)
    ensemble = trained()
    folder = ensemble.folder
    del ensemble
    gc.collect()
    assert not folder.exists()


def test_memory_does_not_grow_with_the_number_of_teachers():
    queries = np.zeros((50, 3))

    def peak(teachers):
        with trained(GaussianNB(), partition=Partition(teachers=(teachers,), key=bytes(32))) as ensemble:
            ensemble.counts(queries)  # what is loaded once
            gc.collect()
            tracemalloc.start()
            ensemble.counts(queries)
            used = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return used

    few, many = peak(50), peak(400)
    assert many < few + 60_000  # a teacher has more than 1000 bytes, votes of all of them 40,000


# Refusals, before any private row is used


class Untouched:
    """Private rows that must not be read."""

    shape = (4, 3)

    def __getitem__(self, rows):
        raise AssertionError("a private row was used")


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (LogisticRegression(C=-1.0), "InvalidParameterError|InvalidParameter|C"),
        (make_pipeline(StandardScaler(), LogisticRegression(solver="none")), "solver"),
        (TorchClassifier(nn.Linear(7, 2), epochs=1), "mat1 and mat2"),
        (TorchClassifier(nn.Linear(3, 1), epochs=1), "1 outputs"),
        (LogisticRegression(class_weight={5: 1.0}), "class"),
    ],
)
def test_a_rehearsal_on_public_rows_finds_wrong_settings(estimator, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        trained(estimator, x=Untouched(), y=[None] * 4, rehearsal=QUERIES)


class Predicts(BaseEstimator):
    def __init__(self, value=None, keep=None):
        self.value, self.keep = value, keep

    def fit(self, X, y):
        self.kept_ = (lambda: None) if self.keep else None
        return self

    def predict(self, X):
        return np.full(len(X), self.value)


@pytest.mark.parametrize(
    "estimator", [Predicts("yes"), Predicts(2), Predicts(float("nan")), Predicts(0, keep=True)]
)
def test_a_rehearsal_finds_predictions_and_models_that_cannot_be_used(estimator):
    with pytest.raises(UnsupportedModelError, match="no private row was used"):
        trained(estimator, x=Untouched(), y=[None] * 4, rehearsal=QUERIES)


@pytest.mark.parametrize("estimator", [object(), DecisionTreeClassifier, StandardScaler(), None])
def test_what_is_no_classifier_is_refused(estimator):
    with pytest.raises(UnsupportedModelError):
        train_teachers(estimator, Untouched(), [None] * 4, partition=PARTITION, classes=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": X.tolist()},
        {"y": Y[:-1]},
        {"y": np.eye(2)[Y]},
        {"units": UNITS[:-1]},
        {"groups": [0]},
        {"copies": TEACHERS + 1},
        {"classes": 1},
        {"classes": [0, 0]},
        {"classes": 2.0},
        {"classes": 40_000},
        {"workers": 0},
        {"workers": 1.5},
        {"rehearsal": QUERIES[:, :2]},
        {"rehearsal": QUERIES[:1]},
        {"rehearsal": QUERIES.tolist()},
    ],
    ids=str,
)
def test_wrong_shapes_and_settings_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        trained(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": QUERIES[:, :2]},
        {"queries": QUERIES.tolist()},
        {"queries": np.full((2, 3), np.nan)},
        {"queries": QUERIES, "weights": [1.0]},
        {"queries": QUERIES, "weights": [np.nan] * TEACHERS},
    ],
)
def test_wrong_queries_and_weights_are_refused(wrong):
    with trained() as ensemble, pytest.raises(InvalidParameterError):
        ensemble.counts(**wrong)


def test_no_queries_get_no_votes():
    with trained() as ensemble:
        assert ensemble.counts(QUERIES[:0]).shape == (0, 2)
        assert [len(v) for v in ensemble.predictions(QUERIES[:0])] == [0] * TEACHERS


def test_a_folder_that_another_process_uses_is_refused(tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock-0"), pytest.raises(InvalidParameterError, match="another process"):
        trained(folder=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameterError, match="cannot be used"):
        trained(folder=tmp_path / "file")


def test_an_ensemble_shows_public_facts_only():
    with trained() as ensemble:
        assert repr(ensemble) == "Ensemble(teachers=(6,), classes=2)" and len(ensemble) == TEACHERS
