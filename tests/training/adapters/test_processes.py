# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.training import distributed

from .loops import data_of, first_batch, private


def test_one_of_several_processes_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(InvalidParameterError, match=r"sfumato\.train, or a loop with PrivateGradients"):
        private(*data_of("mlp"))


def test_a_process_of_torchrun_is_refused_before_it_has_met_the_others(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidParameterError, match="one of several"):
        private(*data_of("mlp"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    private(*data_of("mlp"))


def test_processes_that_meet_later_are_refused_at_the_step(monkeypatch):
    module, optimizer, criterion, loader, privacy = private(*data_of("mlp"))
    x, y = first_batch(loader)
    criterion(module(x), y).backward()
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(InvalidParameterError, match="one of several"):
        optimizer.step()
    assert privacy.steps == 0


class DistributedDataParallel(nn.Module):
    """Called like torch's own, which needs a group of processes."""

    def __init__(self, module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, DistributedDataParallel, lambda m: nn.Sequential(nn.DataParallel(m))]
)
def test_wrapped_modules_are_refused(wrap):
    module, data = data_of("mlp")
    with pytest.raises(UnsupportedModelError, match=r"module\.module"):
        private(wrap(module), data)


class FSDPModule:
    """What torch's `fully_shard` adds to the classes of a module."""


class Cut(FSDPModule, nn.Linear):
    """A layer after `fully_shard`."""


def test_a_module_that_fully_shard_has_cut_is_sent_to_what_takes_it():
    _, data = data_of("mlp")
    with pytest.raises(
        UnsupportedModelError, match=r"sfumato\.train, or a loop with PrivateGradients.* take"
    ):
        private(nn.Sequential(Cut(4, 2)), data)


def test_the_wrapper_of_torch_has_the_name_that_is_looked_for():
    assert nn.parallel.DistributedDataParallel.__name__ == DistributedDataParallel.__name__
    assert torch.distributed.fsdp.FullyShardedDataParallel.__name__ == "FullyShardedDataParallel"
    assert torch.distributed.fsdp.FSDPModule.__name__ == "FSDPModule"
