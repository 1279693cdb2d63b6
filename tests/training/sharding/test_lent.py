# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import NotPrivateError
from sfumato.training.sharding.lent import Lent

WEIGHT = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


class Lender:
    """Counts how often values are asked for, and forgets to keep any."""

    def __init__(self, value) -> None:
        self.value, self.asked = value, 0

    def __call__(self):
        self.asked += 1
        return self.value.clone()


def lent(value=WEIGHT, **options):
    lender = Lender(value)
    return Lent.of(torch.empty_like(value, device="meta"), lender, shard=value[:1], **options), lender


def test_a_stand_in_computes_what_the_parameter_computes_forward_and_backward():
    weight, lender = lent(requires_grad=True)
    x = torch.randn(7, 3, requires_grad=True)
    found = torch.autograd.grad(F.linear(x, weight).tanh().sum(), [x, weight])
    plain = WEIGHT.clone().requires_grad_()
    wanted = torch.autograd.grad(F.linear(x, plain).tanh().sum(), [x, plain])
    assert all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))
    assert lender.asked >= 2  # once in each direction: nothing holds the values in between


def test_what_autograd_keeps_of_a_stand_in_has_no_memory():
    weight, _ = lent()
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    x = torch.randn(7, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.linear(x, weight).sum()
    assert any(isinstance(tensor, Lent) for tensor in kept)
    assert not any(tensor.shape in ((5, 3), (3, 5)) for tensor in kept if not isinstance(tensor, Lent))


def test_views_and_conversions_are_stand_ins_and_nothing_is_asked_for():
    weight, lender = lent()
    parts = [weight.T, weight[1:3], weight.reshape(3, 5), weight.bfloat16().T, *weight.split(2)]
    assert all(isinstance(part, Lent) for part in parts)
    assert lender.asked == 0
    wanted = [WEIGHT.T, WEIGHT[1:3], WEIGHT.reshape(3, 5), WEIGHT.bfloat16().T, *WEIGHT.split(2)]
    assert all(torch.equal(part + 0, plain) for part, plain in zip(parts, wanted, strict=True))


def test_a_stand_in_is_a_parameter_whose_shape_is_the_whole():
    weight, lender = lent()
    assert isinstance(weight, nn.Parameter) and weight.shape == (5, 3)
    assert torch.zeros_like(weight).shape == weight.new_zeros(5, 3).shape == (5, 3)
    assert lender.asked == 0
    assert "numbers" not in repr(weight)


CHANGES = [
    lambda w: w.mul_(2),
    lambda w: w.data.add_(1),
    lambda w: w[0].zero_(),
    lambda w: torch._foreach_mul_([w], 2.0),
    lambda w: torch._foreach_copy_([torch.ones(1), w.T], [torch.zeros(1), torch.zeros(3, 5)]),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_place_is_refused(change):
    weight, _ = lent()
    with pytest.raises(NotPrivateError, match="in place"):
        change(weight)
    with pytest.raises(NotPrivateError, match="in place"):
        torch.add(torch.ones(5, 3), 1, out=weight)
