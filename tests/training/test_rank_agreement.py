# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold different rows are refused before the first step, and learn nothing of one another."""

import importlib.util
import json
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.ledger.state import Progress
from sfumato.training import Trainer, distributed
from sfumato.training.data.units import Units
from sfumato.training.rank_agreement import Agreement, digest

SCRIPT = Path(__file__).parent / "runs.py"
SPEC = importlib.util.spec_from_file_location("training_runs_agreeing", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
SAME = ({}, {"data": "lazy"}, {"owners": "same"}, {"data": "lazy", "owners": "same"})
ROWS = ("split", "shuffled", "one row", "longer", "lazy shuffled", "lazy split")
DIFFERENT = (*({"data": kind} for kind in ROWS), {"owners": "other"}, {"data": "noisy"})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def account_in(path):
    return Ledger(path).open("data", privacy_unit="example", budget=Budget(epsilon=900, delta=1e-5))


def test_two_ranks_with_different_rows_are_refused_and_with_the_same_rows_they_are_not(tmp_path, run_ranks):
    account = account_in(tmp_path / "ledger.db")
    base = {"seed": 4, "dropout": False, "out": str(tmp_path), "steps": 6}
    charged = base | {"ledger": str(tmp_path / "ledger.db"), "refused": True}
    several = [
        *(base | same for same in SAME),
        *(charged | different for different in DIFFERENT if "owners" not in different),
        base | {"refused": True, "owners": "other"},
        charged | {"own_clip_norm": 10.0},
    ]
    assert run_ranks(2, SCRIPT, json.dumps(several)) == [0, 0]
    for number, asked in enumerate(several):
        for rank in range(2):
            outcome = torch.load(tmp_path / f"run{number}-rank{rank}.pt", weights_only=True)
            wanted = "InvalidParameterError" if asked.get("refused") else None
            assert outcome.get("error") == wanted, asked
    # Rows are compared once they are paid for; settings are public, and are compared before.
    assert [release.progress for release in account.releases()] == [Progress.BEGUN] * (len(DIFFERENT) - 1)


def test_rows_are_compared_after_the_run_has_begun_and_settings_before_it_is_charged(tmp_path, monkeypatch):
    account, seen = account_in(tmp_path / "ledger.db"), []

    def note(name):
        real = getattr(Agreement, name)

        def noted(self, *given):
            seen.append((name, [release.progress for release in account.releases()]))
            real(self, *given)

        monkeypatch.setattr(Agreement, name, noted)

    note("require_settings"), note("require_rows")
    runs.make({"ledger": str(tmp_path / "ledger.db")}).fit()
    assert seen == [("require_settings", []), ("require_rows", [Progress.BEGUN])]


# --- digests ---------------------------------------------------------------------------------------------

KEY = bytes(range(32))


@dataclass
class Pair:
    x: object
    y: object


DIFFERENT_DATA = [
    (X, Y),
    (Y, X),
    [X, Y],
    (X.flip(0), Y),
    (X + 1e-6, Y),
    (X.double(), Y),
    (X.reshape(6, 1, 2), Y),
    (X[:5], Y),
    {"x": X},
    {"y": X},
    (X, (Y,)),
    (X, Y.numpy()),
    (X, Y.numpy()[::-1]),
    Pair(X, Y),
    Pair(X, Y + 1),
    UserDict(x=X),
    UserDict(x=X + 1),
    TensorDataset(X, Y),
    Subset(TensorDataset(X, Y), [0, 1]),
    Subset(TensorDataset(X, Y), [1, 0]),
    Subset(TensorDataset(X + 1, Y), [1, 0]),
    ConcatDataset([TensorDataset(X), TensorDataset(X)]),
    ConcatDataset([TensorDataset(torch.cat([X, X]))]),
    Subset(runs.Lazy(X, Y), [0, 1]),
    Subset(runs.Lazy(X, Y), [0, 2]),
    runs.Lazy(X, Y),
    runs.Lazy(X, Y, order=torch.arange(5)),
    (None, 1),
    (None, True),
    (1, None),
]


def test_data_that_differ_have_different_digests_and_the_same_data_the_same():
    found = [digest(KEY, data) for data in DIFFERENT_DATA]
    assert len(set(found)) == len(DIFFERENT_DATA)
    assert found == [digest(KEY, data) for data in DIFFERENT_DATA]
    assert digest(KEY, (X.clone(), Y.to(torch.int64))) == found[0]
    assert digest(KEY, (X.t().contiguous().t(), Y)) == found[0]  # the layout in memory does not matter


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8])
def test_tensors_of_any_type_and_size_are_digested_whole(dtype, monkeypatch):
    monkeypatch.setattr("sfumato.training.rank_agreement._PIECE", 4)
    whole = torch.arange(101).remainder(2).to(dtype)
    changed = whole.clone()
    changed[100] = 1 - changed[100].to(torch.int64)
    assert digest(KEY, whole) == digest(KEY, whole.clone()) != digest(KEY, changed)
    assert digest(KEY, whole[:0]) != digest(KEY, whole[:1])


def test_a_digest_needs_its_key_and_each_run_has_its_own(monkeypatch):
    assert digest(KEY, (X, Y)) != digest(bytes(32), (X, Y))
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "first_decides", lambda decide: decide())
    keys = {Agreement(Units((X, Y)))._key for _ in range(3)}
    assert len(keys) == 3 and all(len(key) == 32 for key in keys)


def test_every_unit_of_a_batch_may_be_the_one_that_is_compared(monkeypatch):
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "first_decides", lambda decide: decide())
    agreement = Agreement(Units(runs.Lazy(X, Y)))
    places = torch.stack([agreement._places(6, step) for step in range(200)])
    assert places.unique().tolist() == list(range(6))  # a place is missed with a chance below 1e-30


def test_an_owner_is_read_as_often_as_is_asked_with_the_same_rows():
    units = Units((X, Y), owners=torch.tensor([5, 5, 9, 5, 9, 5]), contribution_bound=2)
    first, second = (units.read(torch.tensor([1, 0])) for _ in range(2))
    assert first[1].tolist() == second[1].tolist() == [2, 4, 0, 1]


def test_alone_nothing_is_read():
    class Unread(runs.Lazy):
        def __getitem__(self, index):
            raise AssertionError

    agreement = Agreement(Units(Unread(X, Y)))
    agreement.require_rows()
    agreement.require_batch(torch.tensor([0, 1]), 0)


def test_canaries_are_not_compared(monkeypatch):
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "first_decides", lambda decide: decide())
    compared = []
    monkeypatch.setattr(distributed, "alike", lambda compute: bool(compared.append(compute())) or True)
    agreement = Agreement(Units(runs.Lazy(X, Y)))
    agreement.require_batch(torch.tensor([6, 7]), 0)
    assert compared == []
    agreement.require_batch(torch.tensor([6, 2, 7]), 0)
    assert len(compared) == 1


def test_the_refusal_says_what_to_do_and_quotes_no_row(monkeypatch):
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "first_decides", lambda decide: decide())
    monkeypatch.setattr(distributed, "alike", lambda compute: False)
    with pytest.raises(
        InvalidParameterError, match=r"hold different rows.*same data in the same order to every rank.*seed"
    ):
        Agreement(Units((X, Y))).require_rows()


def test_a_trainer_alone_needs_no_agreement():
    Trainer(
        nn.Linear(2, 6), (X, Y), mechanism=runs.mechanism(False), public_size=6, delta=1e-5, progress=False
    ).fit()
