# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.training.adapters.calls import BatchCalls
from sfumato.training.adapters.runner import Runner

from .loops import LOSS, clipped_loop, data_of, first_batch, mlp, private, same


def calls_over(module, x, y, criterion=LOSS):
    batch = BatchCalls(len(x), Runner(module, criterion), module.forward, criterion)
    out = batch.call_module((x,), {})
    _, first = batch.call_criterion((out, y), {})
    _, second = batch.call_criterion((out, y), {})
    second.taken = first.taken = True
    batch.call_criterion((out, y), {})  # only looked at
    return batch


def test_losses_are_computed_again_for_any_rows_of_the_batch():
    module, data = data_of("mlp")
    x, y = data[:6]
    batch = calls_over(module, x, y)
    assert [t.shape[0] for t in batch.tensors] == [6, 6, 6]  # x, and y twice
    some = [t[1:4] for t in batch.tensors]
    torch.testing.assert_close(batch.loss(module, *some), 2 * LOSS(module(x[1:4]), y[1:4]))


def test_what_was_recorded_is_the_gradient_of_these_losses():
    module, data = data_of("mlp")
    x, y = data[:6]
    batch = calls_over(module, x, y)
    recorded = batch.recorded()
    for i in range(6):
        losses = batch.loss(module, *(t[i : i + 1] for t in batch.tensors))
        grads = torch.autograd.grad(losses.sum(), list(module.parameters()))
        for (name, _), grad in zip(module.named_parameters(), grads, strict=True):
            torch.testing.assert_close(recorded.per_unit(name)[i], grad)


def test_a_batch_that_is_closed_holds_no_rows():
    module, data = data_of("mlp")
    batch = calls_over(module, *data[:6])
    assert batch.taken and not batch.closed
    batch.close()
    assert batch.closed and not batch.taken and batch.tensors == ()


class Branching(nn.Module):
    """Has an output that the loss does not depend on, by a layer that is dealt with on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(h.tanh()), self.norm(h)


def test_an_output_that_no_loss_uses_changes_no_gradient():
    module, optimizer, criterion, loader, _ = private(Branching().double(), data_of("mlp")[1])
    for x, y in loader:
        criterion(module(x)[0], y).backward()
        optimizer.step()

        def alone(m, i, x=x, y=y):
            out, other = m(x[i : i + 1])
            return F.cross_entropy(out, y[i : i + 1]) + 0 * other.sum()

        same(module, clipped_loop(module, len(x), alone), 8)


def test_a_row_may_be_alone_and_lengths_may_change_from_batch_to_batch():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)).double()
    for rows, length in ((1, 3), (5, 7), (1, 7)):
        x, y = torch.randint(9, (rows, length)), torch.randint(3, (rows, length))
        batch = calls_over(module, x, y, lambda out, t: LOSS(out.transpose(1, 2), t).mean(1))
        recorded = batch.recorded()
        wanted = torch.autograd.grad(
            2 * F.cross_entropy(module(x).transpose(1, 2), y, reduction="none").mean(1).sum(),
            list(module.parameters()),
        )
        for (name, _), grad in zip(module.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(recorded.per_unit(name).sum(0), grad)


def test_no_gradient_of_a_parameter_is_computed_for_nothing():
    module, _, criterion, loader, _ = private(mlp().double(), data_of("mlp")[1])
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    assert all(p.grad is None for p in module.parameters())
