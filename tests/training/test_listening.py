# SPDX-License-Identifier: Apache-2.0
from collections import OrderedDict

import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModelError, UnsupportedUseError
from sfumato.training.listening import Listener, tensors_in


def heard(listener, module, x, loss=lambda out: out.square().sum()):
    """One pass over a batch: each row's gradient of each parameter."""
    listener.open(len(x))
    loss(module(x)).backward()
    run = listener.close().recorded(listener.parameters)
    return {name: run.per_unit(name) for name in listener.parameters}


def looped(module, x, loss=lambda out: out.square().sum()):
    names = [name for name, _ in module.named_parameters()]
    rows = []
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(module.eval()(x[i : i + 1])), list(module.parameters()))
        rows.append(grads)
    module.train()
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def agree(module, x, loss=lambda out: out.square().sum()):
    got = heard(Listener(module, averaged=False), module, x, loss)
    for name, wanted in looped(module, x, loss).items():
        torch.testing.assert_close(got[name], wanted)


class Dict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        y = self.linear(x)
        return OrderedDict(first=y, again=y, rest=(y.detach(), "text", y * 2))


def test_outputs_may_be_structures():
    agree(
        Dict(), torch.randn(5, 3), lambda out: (out["first"].square() + out["again"] + out["rest"][2]).sum()
    )


def test_lengths_may_change_from_batch_to_batch():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    listener = Listener(module, averaged=False)
    for length in (3, 7, 3):
        x = torch.randint(9, (5, length))
        got = heard(listener, module, x)
        for name, wanted in looped(module, x).items():
            torch.testing.assert_close(got[name], wanted)


def test_a_row_may_be_alone():
    agree(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), torch.randn(1, 3))


def squares(out):
    return (out["first"].square() + out["again"] + out["rest"][2]).sum(1).mean()


def test_rows_left_out_are_run_again_without_them():
    module = Dict()
    listener = Listener(module, averaged=True)
    x = torch.randn(6, 3)
    listener.open(6)
    squares(module(x)).backward()
    piece = listener.close()
    which = torch.tensor([0, 3, 4])
    run = listener.again(piece, which)
    for name, wanted in looped(module, x[which], squares).items():
        torch.testing.assert_close(run.per_unit(name), wanted)


def test_no_gradient_of_a_parameter_is_computed_for_nothing():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    heard(Listener(module, averaged=False), module, torch.randn(5, 3))
    assert all(p.grad is None for p in module.parameters())


def test_a_pass_without_backward_leaves_nothing():
    module = nn.Linear(3, 2)
    listener = Listener(module, averaged=False)
    listener.open(4)
    module(torch.zeros(4, 3))
    assert listener.close() is None


def test_an_interrupted_pass_is_cleaned_up_by_the_next():
    class Interrupted(nn.Linear):
        interrupt = True

        def forward(self, x):
            if self.interrupt and len(x) == 4:
                raise KeyboardInterrupt
            return super().forward(x)

    module = Interrupted(3, 2)
    listener = Listener(module, averaged=False)
    listener.open(4)
    with pytest.raises(KeyboardInterrupt):
        module(torch.zeros(4, 3))
    module.interrupt = False
    got = heard(listener, module, torch.ones(4, 3))
    assert type(module.weight) is nn.Parameter and got["weight"].shape == (4, 2, 3)


def test_a_model_whose_order_changes_is_refused():
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(self.b(x)) if len(x) > 3 else self.b(self.a(x))

    module = Fickle()
    with pytest.raises(UnsupportedUseError, match="another order"):
        heard(Listener(module, averaged=False), module, torch.zeros(5, 3))
    assert type(module.a.weight) is nn.Parameter


def test_a_use_without_a_rule_is_refused_with_the_way_out():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return torch.cumprod(self.weight, 0) * x

    module = Odd()
    with pytest.raises(UnsupportedUseError, match="PrivateGradients"):
        heard(Listener(module, averaged=False), module, torch.zeros(5, 3))
    assert type(module.weight) is nn.Parameter


def test_an_output_that_is_changed_in_place_is_heard_or_refused():
    agree(nn.Linear(3, 2), torch.randn(5, 3), lambda out: out.mul_(2).square().sum())
    module = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)))  # its output is a view
    with pytest.raises(UnsupportedModelError, match="Change a copy"):
        heard(
            Listener(module, averaged=False),
            module,
            torch.randn(5, 3),
            lambda out: out.mul_(2).square().sum(),
        )


def test_tensors_are_found_in_order_and_all_else_is_passed_over():
    one, two = torch.zeros(1), torch.zeros(2)
    assert list(tensors_in([{"a": one, "b": None}, ("text", two), 3])) == [one, two]
