# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training.engine.losses import checked, cross_entropy, weighted


def test_the_default_loss_is_the_cross_entropy_of_each_row():
    x, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    alone = torch.stack([F.cross_entropy(x[i : i + 1], y[i : i + 1]) for i in range(4)])
    assert torch.allclose(cross_entropy(nn.Identity(), x, y), alone)


def test_a_loss_already_averaged_is_refused_with_the_fix():
    with pytest.raises(InvalidParameterError, match=r"one number for the whole batch.*reduction='none'"):
        checked(torch.tensor(3.5), 4)


@pytest.mark.parametrize("shape", [(5,), (4, 2), (1, 4), (1,)])
def test_a_loss_of_another_shape_is_refused_without_saying_how_many_rows_there_are(shape):
    with pytest.raises(InvalidParameterError, match=r"one number for each row of the batch") as error:
        checked(torch.zeros(shape), 4)
    assert "4" not in str(error.value)


@pytest.mark.parametrize("losses", [None, 3.5, [1.0], torch.zeros(4, dtype=torch.int64)])
def test_a_loss_that_is_no_floating_point_tensor_is_named_by_its_type(losses):
    with pytest.raises(InvalidParameterError, match=type(losses).__name__):
        checked(losses, 4)


def test_losses_of_the_right_shape_pass_unchanged():
    losses = torch.randn(4)
    assert checked(losses, 4) is losses


def test_weights_multiply_the_losses_and_keep_their_type():
    loss = weighted(lambda model, x: x.double())
    x = torch.tensor([1.0, 2.0, 3.0])
    assert loss(None, torch.tensor([0, 1, 2]), x).tolist() == [0, 2, 6]
    assert loss(None, torch.ones(3, dtype=torch.bfloat16), x).dtype is torch.float64
    assert loss(None, None, x).tolist() == [1, 2, 3]


def test_weights_of_another_length_are_refused():
    with pytest.raises(InvalidParameterError, match=r"each row"):
        weighted(lambda model, x: x)(None, torch.ones(2), torch.ones(3))
