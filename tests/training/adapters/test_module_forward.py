# SPDX-License-Identifier: Apache-2.0
import copy
import inspect
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedModelError
from sfumato.training.isolation.isolated_rows import is_row

from .loops import LOSS, clipped_sum, data_of, first_batch, private, same


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copied_twice(module):
    return copy.deepcopy(copy.deepcopy(module))


COPIES = [copy.deepcopy, saved_and_loaded, copied_twice]
each_way = pytest.mark.parametrize("copying", COPIES, ids=["deepcopy", "pickle", "copy of a copy"])


@each_way
def test_a_copy_refuses_to_train(copying):
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    copied = copying(module)
    for x, y in loader:
        with pytest.raises(NotPrivateError, match="a copy is not private"):
            F.cross_entropy(copied(x), y)
        criterion(module(x), y).backward()
        optimizer.step()
        same(module, clipped_sum(module, x, y), 8)
    assert privacy.steps == 5


@each_way
def test_a_copy_can_be_evaluated_and_has_the_same_state(copying):
    module, _, _, loader, _ = private(*data_of("mlp"))
    copied = copying(module)
    x, y = first_batch(loader)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(copied(x[:3]), module(x[:3]))
    copied.eval()
    torch.testing.assert_close(copied(x[:3]), module(x[:3]))
    assert list(copied.state_dict()) == list(module.state_dict())
    with pytest.raises(NotPrivateError, match="a copy is not private"):
        F.cross_entropy(copied(x), y).backward()
    assert all(p.grad is None for p in copied.parameters())


@each_way
def test_a_copy_can_be_made_private_itself(copying):
    module, data = data_of("mlp")
    copied = copying(private(module, data).module)
    copied.eval()(data[:2][0])
    copied, optimizer, criterion, loader, _ = private(copied.train(), data)
    x, y = first_batch(loader)
    criterion(copied(x), y).backward()
    optimizer.step()
    same(copied, clipped_sum(copied, x, y), 8)


def test_a_copy_of_a_compiled_module_refuses_to_train():
    module, data = data_of("mlp")
    compiled = private(torch.compile(module, backend="eager"), data).module
    with pytest.raises(NotPrivateError, match="a copy is not private"):
        copy.deepcopy(compiled)(data[:3][0])


def test_a_state_dict_is_loaded_into_a_fresh_module_as_before():
    module, data = data_of("mlp")
    fresh = copy.deepcopy(module)
    private(module, data)
    fresh.load_state_dict(module.state_dict())
    F.cross_entropy(fresh(data[:3][0]), data[:3][1]).backward()
    assert fresh[0].weight.grad is not None


def test_evaluation_is_left_alone():
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    module.eval()
    module(torch.zeros(3, 6, dtype=torch.float64))
    module.train()
    with torch.no_grad():
        module(torch.zeros(3, 6, dtype=torch.float64))
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)
    assert privacy.steps == 1


def test_a_module_is_made_private_once():
    module, data = data_of("mlp")
    private(module, data)
    with pytest.raises(InvalidParameterError, match="made private before"):
        private(module, data)
    with pytest.raises(InvalidParameterError, match="made private before"):
        private(nn.Sequential(module), data)
    with pytest.raises(InvalidParameterError, match="made private before"):
        private(torch.compile(module, backend="eager"), data)


def test_the_signature_of_the_forward_pass_stays():
    module = private(*data_of("text")).module
    assert list(inspect.signature(module.forward).parameters) == ["x", "scale"]


def test_a_pass_that_is_interrupted_leaves_nothing():
    class Interrupted(nn.Linear):
        interrupt = True

        def forward(self, x):
            if self.interrupt:
                raise KeyboardInterrupt
            return super().forward(x)

    module, optimizer, criterion, loader, _ = private(Interrupted(6, 3).double(), data_of("mlp")[1])
    x, y = first_batch(loader)
    with pytest.raises(KeyboardInterrupt):
        module(x)
    assert type(module.weight) is nn.Parameter
    assert not is_row(torch.randn(2))  # as it would be inside of the isolation
    module.interrupt = False
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_a_call_of_forward_itself_is_private_too():
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    criterion(module.forward(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


# --- gradients that come around --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "around",
    [
        lambda module, x, y: F.cross_entropy(module[2](module[0](x).relu()), y),
        lambda module, x, y: module[0].weight.square().sum(),
        lambda module, x, y: F.cross_entropy(module.eval()(x), y),
    ],
    ids=["a part of the module", "a penalty on weights", "evaluation mode"],
)
def test_gradients_that_come_around_the_criterion_are_refused(around):
    module, optimizer, criterion, loader, _ = private(*data_of("mlp"))
    x, y = first_batch(loader)
    loss = around(module, x, y)
    with pytest.raises(UnsupportedModelError, match="weight_decay"):
        loss.backward()
    assert all(p.grad is None for p in module.parameters())
    module.train()
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_a_plain_optimizer_of_the_same_parameters_gets_no_other_gradient():
    module, _, _, loader, _ = private(*data_of("mlp"))
    other = torch.optim.SGD(module.parameters(), lr=1.0)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    x, y = first_batch(loader)
    with pytest.raises(InvalidParameterError, match="criterion that make_private returned"):
        LOSS(module(x), y).mean().backward()
    with pytest.raises(UnsupportedModelError, match="around its criterion"):
        F.cross_entropy(module.eval()(x), y).backward()
    other.step()
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_gradients_of_inputs_can_be_had_in_evaluation_mode():
    module, _, _, loader, _ = private(*data_of("mlp"))
    x, _ = first_batch(loader)
    x = x.clone().requires_grad_()
    module.eval()
    (grad,) = torch.autograd.grad(module(x).sum(), x)
    assert grad.shape == x.shape


def test_a_pre_hook_of_the_module_itself_is_refused():
    module, data = data_of("mlp")
    module.register_forward_pre_hook(lambda _, args: (args[0] - args[0].mean(0),))
    module, _, _, loader, _ = private(module, data)
    x, _ = first_batch(loader)
    with pytest.raises(UnsupportedModelError, match="pre-hooks"):
        module(x)


def test_hooks_of_parts_see_one_row_at_a_time():
    def one_row(part, args, output):
        assert output.shape == (1, 9)

    module, data = data_of("mlp")
    module[0].register_forward_hook(one_row)
    module, _, _, loader, _ = private(module, data)
    x, _ = first_batch(loader)
    assert module(x).shape == (len(x), 3)
