# SPDX-License-Identifier: Apache-2.0
"""Noise of shards, one rank after the other; `test_sharded_model` has real ranks and the statistics."""

import pytest
import torch

from sfumato.mechanisms import tensors
from sfumato.testing import seeded
from sfumato.training import distributed
from sfumato.training.sharding.layout import Shard
from sfumato.training.sharding.shard_noise import pieces_of_all_ranks

SHAPES = {"a": (5, 3), "b": (1, 4), "c": (7,), "d": (2, 2)}


def shards_of(types):
    return [
        Shard(name=name, unit=0, parameter=torch.zeros(shape, dtype=types.get(name, torch.float32)))
        for name, shape in SHAPES.items()
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("types", [{}, {"b": torch.float64, "c": torch.float64}])
def test_the_noise_of_all_ranks_is_that_of_one_process_under_a_seed(monkeypatch, ranks, types):
    monkeypatch.setattr(distributed, "size", lambda: ranks)
    shards = shards_of(types)
    kinds = dict.fromkeys(s.parameter.dtype for s in shards)
    alone = {
        s.name: torch.zeros_like(s.parameter) for kind in kinds for s in shards if s.parameter.dtype == kind
    }
    tensors.add_gaussian_many_(list(alone.values()), stddev=2.0, generator=seeded(5))
    found: dict[str, list[torch.Tensor]] = {name: [] for name in SHAPES}
    for rank in range(ranks):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        own = {
            s.name: torch.zeros(s.rows_of(rank), *s.parameter.shape[1:], dtype=s.parameter.dtype)
            for s in shards
        }
        tensors.add_gaussian_many_(pieces_of_all_ranks(shards, own), stddev=2.0, generator=seeded(5))
        for name, part in own.items():
            found[name].append(part)
    assert all(torch.equal(torch.cat(found[name]), alone[name]) for name in SHAPES)
