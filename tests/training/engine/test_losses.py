# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import Clipping, train
from sfumato.training.engine.losses import checked, cross_entropy, weighted

from ..gradients import private_gradients
from .test_gradients import Silent


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


NO_CLASS = [3, -1, 99, -100, 2**40, -(2**63)]


@pytest.mark.parametrize("label", NO_CLASS)
def test_a_label_that_is_no_class_has_no_loss_and_no_gradient(label):
    x = torch.randn(3, 3, requires_grad=True)
    losses = cross_entropy(nn.Identity(), x, torch.tensor([0, label, 2]))
    losses.sum().backward()
    assert losses[1] == 0 and (x.grad[1] == 0).all()
    alone = F.cross_entropy(x[::2], torch.tensor([0, 2]), reduction="none")
    assert torch.equal(losses[::2], alone)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32, torch.bool])
def test_labels_of_every_whole_type_are_class_numbers(kind):
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.equal(cross_entropy(nn.Identity(), x, y.to(kind)), cross_entropy(nn.Identity(), x, y))


def test_probabilities_of_classes_are_taken_as_torch_takes_them():
    x, shares = torch.randn(4, 3), torch.rand(4, 3).softmax(1)
    assert torch.equal(cross_entropy(nn.Identity(), x, shares), F.cross_entropy(x, shares, reduction="none"))


def _clipped_sum(engine, x, y):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    private = private_gradients(
        model,
        cross_entropy,
        clipping=Clipping(clip_norm=0.5),
        engine=engine,
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        noise=Silent(),
    )
    private.backward(x, y)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("engine", ["book-keeping", "functional"])
@pytest.mark.parametrize("label", NO_CLASS)
def test_a_row_without_a_class_is_not_in_the_clipped_sum(engine, label):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    with_row = _clipped_sum(engine, x, torch.tensor([0, 1, label, 2, 1]))
    without = _clipped_sum(engine, x[[0, 1, 3, 4]], torch.tensor([0, 1, 2, 1]))
    assert torch.allclose(with_row, without, atol=1e-6) and with_row.norm() > 0.1


@pytest.mark.parametrize("label", NO_CLASS)
@pytest.mark.parametrize("place", [0, 100])
def test_a_label_that_is_no_class_stops_no_run(label, place):
    x, y = torch.randn(200, 4), torch.randint(3, (200,))
    y[place] = label
    before, model = torch.zeros(3, 4), nn.Linear(4, 3)
    model.weight.data.copy_(before)
    train(
        model,
        (x, y),
        noise_multiplier=1.0,
        steps=3,
        public_size=200,
        expected_batch_size=150,
        delta=1e-5,
        progress=False,
    )
    assert model.weight.isfinite().all() and not torch.equal(model.weight, before)
