# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.training.adapters.runner import Autocast

from .loops import clipped_sum, data_of, first_batch, private, same


def one_step(module):
    module, optimizer, criterion, loader, _ = private(module.double(), data_of("mlp")[1])
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    optimizer.step()
    same(module, clipped_sum(module, x, y), 8)


def test_a_module_may_write_rows_into_tensors_that_it_makes():
    class Writing(nn.Linear):
        def forward(self, x):
            copied = torch.zeros(x.shape, dtype=x.dtype)
            copied[:, 1:] = x[:, :-1]
            return super().forward(copied)

    one_step(Writing(6, 3))  # with no warning: rows were isolated


def test_a_hook_on_gradients_sees_each_row_alone_by_the_reference_engine():
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    module[1].register_full_backward_hook(lambda part, inner, outer: None)
    with pytest.warns(UserWarning, match="functional engine"):
        one_step(module)


def test_memory_that_is_short_is_told_as_it_is():
    class Large(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("too large")

    module, _, _, loader, _ = private(Large(6, 3).double(), data_of("mlp")[1])
    x, _ = first_batch(loader)
    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        module(x)
    assert type(module.weight) is nn.Parameter


def test_what_a_module_says_of_its_rows_is_in_no_error_and_behind_none():
    class Telling(nn.Linear):
        def forward(self, x):
            if bool((x != 0).any()):
                raise ValueError(f"strange rows: {x.sum()}")
            return super().forward(x)

    module, _, _, loader, _ = private(Telling(6, 3).double(), data_of("mlp")[1])
    x, _ = first_batch(loader)
    with pytest.raises(RuntimeError, match="does not fail on rows of zeros") as failed:
        module(x)
    assert "strange" not in str(failed.value)
    assert failed.value.__cause__ is None and failed.value.__context__ is None


def test_the_state_of_autocast_can_be_had_again():
    cpu = torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        within = Autocast(cpu)
    without = Autocast(cpu)
    with within.again():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        with without.again():
            assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
