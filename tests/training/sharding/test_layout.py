# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.training import PrivateGradients, distributed
from sfumato.training.sharding.layout import Shard, layout_of


class FullyShardedDataParallel(nn.Module):
    """Called like torch's first one, which needs a group of processes."""

    def __init__(self, module) -> None:
        super().__init__()
        self.module = module


def test_the_first_fsdp_of_torch_is_refused_with_what_to_do():
    with pytest.raises(UnsupportedModelError, match="fully_shard"):
        PrivateGradients(
            FullyShardedDataParallel(nn.Linear(2, 2)),
            clip_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=1,
        )


def test_a_whole_model_has_no_shards():
    assert layout_of(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("ranks", range(1, 7))
@pytest.mark.parametrize("rows", range(1, 8))
def test_rows_are_cut_as_torch_chunks_them(monkeypatch, rows, ranks):
    monkeypatch.setattr(distributed, "size", lambda: ranks)
    shard = Shard(name="w", unit=0, parameter=torch.zeros(rows, 2))
    sizes = [len(part) for part in torch.arange(rows).chunk(ranks)]
    assert [shard.rows_of(rank) for rank in range(ranks)] == sizes + [0] * (ranks - len(sizes))
