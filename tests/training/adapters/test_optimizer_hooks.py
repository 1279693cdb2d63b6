# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.errors import InvalidParameterError
from sfumato.training import make_private

from .loops import clipped_sum, data_of, first_batch, private, same

# --- pieces ----------------------------------------------------------------------------------------------


def test_accumulated_batches_are_disjoint_parts_of_one_sample():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"), batch_size=4, batches_per_step=3)
    assert privacy.sampling_rate == 0.3 and len(loader) == 9
    seen = []
    for i, (x, y) in enumerate(loader):
        criterion(module(x), y).backward()
        seen.append((x, y))
        if i % 3 == 2:
            optimizer.step()
            x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
            assert len(x.unique(dim=0)) == len(x)
            same(module, clipped_sum(module, x, y), 12)
            seen = []
    assert privacy.steps == 3


def test_a_step_before_all_parts_of_a_sample_is_refused():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"), batches_per_step=2)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    with pytest.raises(InvalidParameterError, match="once after each 2 batch"):
        optimizer.step()
    assert privacy.steps == 0


def test_a_part_without_a_loss_is_refused():
    module, _, _, loader, privacy = private(*data_of("mlp"), batches_per_step=2)
    with pytest.raises(InvalidParameterError, match="not called on a loss of this batch"):
        for x, _ in loader:
            module(x)
    assert privacy.steps == 0


def test_what_an_abandoned_loop_left_is_forgotten():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"), batches_per_step=2)
    for _ in range(2):
        seen = []
        for x, y in islice(loader, 2):
            criterion(module(x), y).backward()
            seen.append((x, y))
    optimizer.step()
    x, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
    same(module, clipped_sum(module, x, y), 16)


# --- one step for each batch -----------------------------------------------------------------------------


def test_the_size_of_a_batch_cannot_decide_whether_a_step_is_taken():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    sizes = []
    with pytest.raises(InvalidParameterError, match="must be followed by exactly one step"):
        for _ in range(50):
            for x, y in loader:
                sizes.append(len(x))
                if len(x) < 8:
                    continue
                criterion(module(x), y).backward()
                optimizer.step()
    assert privacy.steps == len(sizes) - 1 and sizes[-1] < 8 <= min(sizes[:-1])


def test_the_last_batch_of_an_epoch_cannot_be_skipped_either():
    _, _, _, loader, _ = private(*data_of("mlp"), batch_size=40)
    with pytest.raises(InvalidParameterError, match="must be followed by exactly one step"):
        for _ in loader:
            continue


def test_the_size_of_a_batch_cannot_decide_whether_it_takes_part():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    with pytest.raises(InvalidParameterError, match="not called on a loss of this batch"):
        for _ in range(50):
            for x, y in loader:
                loss = criterion(module(x), y)
                if len(x) >= 8:
                    loss.backward()
                optimizer.step()


def test_a_loop_may_be_left_and_begun_again():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    for _ in range(3):
        x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)
    assert privacy.steps == 1


def test_a_step_without_a_batch_is_refused():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    with pytest.raises(InvalidParameterError, match="at no other time"):
        optimizer.step()
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="at no other time"):
        optimizer.step()
    assert privacy.steps == 1


def test_a_second_pass_over_a_batch_after_its_step_is_refused():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    out = module(x)
    criterion(out, y).backward()
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="without a batch of the private loader"):
        module(x)
    with pytest.raises(InvalidParameterError, match="without a batch of the private loader"):
        criterion(out, y)


def test_two_loops_at_the_same_time_are_refused():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    first, second = iter(loader), iter(loader)
    next(first)
    x, y = next(second)
    criterion(module(x), y).backward()
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="another loop"):
        next(first)


# --- the optimizer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_zero_grad_may_be_called_or_not_and_gradients_changed_in_place(set_to_none):
    module, data = data_of("mlp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    _, _, criterion, loader, privacy = private(module, data, optimizer=optimizer)
    for x, y in loader:
        if set_to_none is not None:
            optimizer.zero_grad(set_to_none=set_to_none)
        wanted = clipped_sum(module, x, y)
        criterion(module(x), y).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        seen = {}
        handle = optimizer.register_step_pre_hook(
            lambda *_, seen=seen: seen.update({n: p.grad.clone() for n, p in module.named_parameters()})
        )
        optimizer.step()
        handle.remove()
        for name, grad in seen.items():
            torch.testing.assert_close(grad, wanted[name] / 8, rtol=1e-9, atol=1e-9)
    assert privacy.steps == 5


def test_a_parameter_that_is_unfrozen_later_is_refused():
    module, data = data_of("mlp")
    module[0].requires_grad_(False)
    module, optimizer, criterion, loader, privacy = private(module, data)
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    module[0].requires_grad_(True)
    with pytest.raises(InvalidParameterError, match="unfrozen"):
        optimizer.step()
    assert privacy.steps == 0


def test_a_group_of_parameters_that_is_added_later_is_refused():
    module, data = data_of("mlp")
    module, optimizer, criterion, loader, privacy = private(module, data)
    optimizer.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    with pytest.raises(InvalidParameterError, match="given to the optimizer"):
        optimizer.step()
    assert privacy.steps == 0


def test_a_closure_is_refused():
    _, optimizer, _, _, privacy = private(*data_of("mlp"))
    with pytest.raises(InvalidParameterError, match="closure"):
        optimizer.step(lambda: torch.zeros(()))
    assert privacy.steps == 0


def test_an_input_that_is_changed_before_the_step_is_refused():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    x.zero_()
    with pytest.raises(InvalidParameterError, match="changed in place"):
        optimizer.step()
    assert privacy.steps == 0


def test_rows_that_are_not_the_loaders_are_refused():
    module, _, _, loader, _ = private(*data_of("sequences"))
    with pytest.raises(InvalidParameterError, match="without a batch of the private loader"):
        module(torch.zeros(2, 5, 6, dtype=torch.float64))
    x, _ = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        module(torch.cat([x, x]))
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        module(x[0])


def test_steps_are_not_copied():
    loader = private(*data_of("mlp")).data_loader
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidParameterError, match="cannot be copied"):
            copying(loader)


@pytest.mark.parametrize("place", ["module", "criterion"])
def test_a_module_or_a_criterion_cannot_set_the_optimizer(place):
    network, data = nn.Sequential(nn.Linear(4, 2)), TensorDataset(torch.randn(24, 4), torch.arange(24) % 2)
    given = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    made = []

    def spoil(*_):
        made.append(place)
        given.param_groups[0]["lr"] = given.defaults["leak"] = 77.0
        given.state["leak"] = {}

    def criterion(scores, y):
        if place == "criterion":
            spoil()
        return nn.functional.cross_entropy(scores, y, reduction="none")

    if place == "module":
        network[0].register_forward_hook(spoil)
    module, optimizer, loss, loader, _ = make_private(
        module=network, optimizer=given, criterion=criterion, data_loader=DataLoader(data, batch_size=12),
        noise_multiplier=1.0, max_grad_norm=1.0, public_size=24,
    )  # fmt: skip
    for x, y in loader:
        loss(module(x), y).backward()
        optimizer.step()
    assert made and optimizer.param_groups[0]["lr"] == 0.1
    assert "leak" not in optimizer.defaults and "leak" not in optimizer.state
