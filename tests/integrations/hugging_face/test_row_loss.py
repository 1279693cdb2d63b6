# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.integrations.hugging_face.row_loss import RowLoss

ROW = {"x": torch.ones(1, 2)}


def test_a_row_that_could_not_be_read_has_no_loss_and_no_gradient():
    layer = nn.Linear(2, 1)
    loss = RowLoss(lambda model, row: model(row["x"]).mean())
    for readable in (1.0, 0.0):
        found = loss(layer, torch.tensor([readable]), ROW)
        (gradient,) = torch.autograd.grad(found.sum(), layer.weight)
        assert found.shape == (1,) and (gradient == readable).all()


def test_the_row_of_the_caller_is_not_changed():
    def pops(model, row):
        return row.pop("x").mean()

    row = dict(ROW)
    RowLoss(pops)(nn.Identity(), torch.ones(1), row)
    assert row.keys() == {"x"}


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


@pytest.mark.parametrize("ends", [SystemExit, Panic])
def test_a_loss_that_ends_the_program_is_an_ordinary_error(ends):
    def fails(model, row):
        raise ends("row 5")

    with pytest.raises(RuntimeError, match=r"ends the program \("):
        RowLoss(fails)(nn.Identity(), torch.ones(1), ROW)


@pytest.mark.parametrize("wrong", [torch.ones(2), 1.0, None])
def test_a_loss_that_is_not_one_number_is_refused(wrong):
    with pytest.raises(InvalidParameterError, match="one number"):
        RowLoss(lambda model, row: wrong)(nn.Identity(), torch.ones(1), ROW)
