# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.estimators import LogisticRegression, StandardScaler
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
