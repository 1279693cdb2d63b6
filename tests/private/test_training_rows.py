# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
import torch

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.private.training_rows import training_rows
from sfumato.statistics import private_table

FRAME = pd.DataFrame(
    {
        "x": [1.0, np.nan, np.inf, 4.0, 5.0, 6.0],
        "y": [0.0, 1.0, 0.0, 9.0, 1.0, 0.5],
        "name": ["no", "yes", "no", "other", "yes", "no"],
    }
)


def test_rows_that_no_model_can_use_are_left_out():
    rows = training_rows(private_table(FRAME), ("x",), "y", 2)
    (x, y), owners = rows.read()
    assert x.tolist() == [[1.0], [5.0]] and y.tolist() == [0, 1] and y.dtype is torch.int64 and owners is None


def test_labels_by_name_are_their_places_in_the_list():
    (x, y), _ = training_rows(private_table(FRAME), ("x",), "name", ["yes", "no"]).read()
    assert sorted(zip(x[:, 0].tolist(), y.tolist(), strict=True)) == [(1.0, 1), (5.0, 0), (6.0, 1)]


def test_a_number_to_predict_stays_one():
    (_, y), _ = training_rows(private_table(FRAME), ("x",), "y", None).read()
    assert y.dtype is torch.float32 and sorted(y.tolist()) == [0.0, 0.5, 1.0, 9.0]


def test_blank_rows_show_shapes_and_no_row():
    rows = training_rows(private_table(FRAME.assign(z=1.0)), ("x", "z"), "y", 2)
    assert [tuple(part.shape) for part in rows.blank] == [(0, 2), (0,)] and not rows.by_owner


def test_an_owner_is_known_by_number_alone():
    frame = FRAME.assign(who=["a", "a", "a", "b", "b", "b"])
    rows = training_rows(private_table(frame, privacy_unit="who", contribution_bound=3), ("x",), "y", 2)
    (x, _), owners = rows.read()
    assert rows.by_owner and len(owners) == len(x) and owners.dtype is torch.int64


@pytest.mark.parametrize("classes", [["one"], ["a", "a"], "no,yes"])
def test_classes_must_be_a_list_of_different_labels(classes):
    with pytest.raises(InvalidParameterError, match="classes must be"):
        training_rows(private_table(FRAME), ("x",), "name", classes)


def test_a_failure_while_reading_quotes_nothing(monkeypatch):
    rows = training_rows(private_table(FRAME), ("x",), "y", 2)

    def fail(self):
        raise ValueError("client 4711")

    monkeypatch.setattr("sfumato.statistics.columns.table_columns.TableRows.read", fail)
    with pytest.raises(QueryFailedError) as refused:
        rows.read()
    assert "4711" not in str(refused.value) and refused.value.__cause__ is None
    assert refused.value.__context__ is None
