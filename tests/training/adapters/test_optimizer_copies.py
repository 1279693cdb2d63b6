# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch

from sfumato.errors import InvalidParameterError, NotPrivateError

from .loops import data_of, first_batch, private


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


each_way = pytest.mark.parametrize("copying", [copy.deepcopy, copy.copy, pickled])


@each_way
def test_a_copy_refuses_to_step(copying):
    optimizer = private(*data_of("mlp")).optimizer
    with pytest.raises(NotPrivateError, match="a copy is not private"):
        copying(optimizer).step()


@each_way
def test_a_copy_cannot_be_made_private(copying):
    module, data = data_of("mlp")
    copied = copying(private(module, data).optimizer)
    with pytest.raises(InvalidParameterError, match=r"not the module's|made private before"):
        private(data_of("mlp")[0], data, optimizer=copied)


def test_module_and_optimizer_that_are_copied_together_do_not_train():
    module, optimizer, _, loader, privacy = private(*data_of("mlp"), lr=1.0)
    copied, other = copy.deepcopy((module, optimizer))
    before = {name: p.clone() for name, p in copied.named_parameters()}
    x, _ = first_batch(loader)
    with pytest.raises(NotPrivateError, match="a copy is not private"):
        copied(x)
    with pytest.raises(NotPrivateError, match="a copy is not private"):
        other.step()
    assert all(torch.equal(p, before[name]) for name, p in copied.named_parameters())
    assert privacy.steps == 0


def test_an_optimizer_is_made_private_once():
    module, data = data_of("mlp")
    optimizer = private(module, data).optimizer
    other = data_of("mlp")[0]
    optimizer.param_groups[0]["params"] = list(other.parameters())
    with pytest.raises(InvalidParameterError, match="made private before"):
        private(other, data, optimizer=optimizer)


def test_other_optimizers_and_the_state_dict_are_left_alone():
    module, data = data_of("mlp")
    optimizer = torch.optim.Adam(module.parameters(), lr=0.5)
    before = optimizer.state_dict()
    private(module, data, optimizer=optimizer)
    assert optimizer.state_dict() == before
    public = data_of("mlp")[0]
    fresh = torch.optim.Adam(public.parameters())
    fresh.load_state_dict(optimizer.state_dict())
    public(data[:3][0]).sum().backward()
    fresh.step()
    assert fresh.param_groups[0]["lr"] == 0.5
