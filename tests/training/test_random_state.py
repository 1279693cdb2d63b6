# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.training.random_state import RandomState, cuda_devices, same_draws

GPU = torch.cuda.is_available()


def test_draws_inside_do_not_change_the_draws_after():
    with same_draws():
        wanted = torch.rand(3)
    with same_draws([torch.device("cpu")]):
        torch.rand(5)
        nn.Linear(3, 2)
    assert torch.equal(torch.rand(3), wanted)


def test_the_state_is_put_back_after_an_error_too():
    before = RandomState()
    with pytest.raises(KeyError), same_draws():
        torch.rand(1)
        raise KeyError
    assert before.same_as(RandomState())


def test_a_state_differs_once_something_was_drawn():
    before = RandomState()
    assert before.same_as(RandomState())
    torch.rand(1)
    assert not before.same_as(RandomState())


def test_a_state_draws_the_same_again_and_leaves_the_generators_alone():
    state = RandomState()
    first, later = torch.rand(4), RandomState()
    for _ in range(2):
        with state.again():
            assert torch.equal(torch.rand(4), first)
    assert later.same_as(RandomState())


def test_each_cuda_device_is_kept_once():
    kinds = [torch.device(name) for name in ("cuda:1", "cpu", "cuda:0", "cuda:1")]
    assert cuda_devices(kinds) == [torch.device("cuda:0"), torch.device("cuda:1")]


def test_draws_from_a_seed_are_the_same_each_time_and_are_left_behind():
    before, found = RandomState(), []
    for seed in (3, 3, 4):
        with same_draws(seed=seed):
            found.append(tuple(torch.rand(3).tolist()))
    assert found[0] == found[1] != found[2] and before.same_as(RandomState())


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_the_states_of_cuda_devices_are_put_back_too():
    x = torch.zeros(2, device="cuda")
    state = RandomState([x.device])
    with same_draws([x.device], seed=1):
        torch.rand(3, device="cuda")
    assert state.same_as(RandomState([x.device]))
