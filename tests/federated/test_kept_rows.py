# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import NotPrivateError
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.clients.partitions import iid
from sfumato.federated.federate import federate
from sfumato.testing import seeded


class Keeping(nn.Module):
    """Keeps its last inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        self.seen = x
        return self.layer(x)


def clients():
    draws = torch.Generator().manual_seed(0)
    return iid((torch.randn(60, 2, generator=draws), torch.zeros(60, dtype=torch.int64)), clients=20)


def run(model, **options):
    settings = {"rounds": 2, "expected_cohort_size": 8, "noise_multiplier": 1.0, "delta": 1e-3}
    local = LocalTraining(batch_size=4)
    return federate(model, clients(), local=local, progress=False, generator=seeded(0), **settings | options)


def test_a_model_that_keeps_rows_of_clients_is_refused():
    model = Keeping()
    with pytest.raises(NotPrivateError, match="seen"):
        run(model)
    kept = getattr(model, "seen", None)
    made_up = kept is None or kept.shape[-2] != 3  # clients have three rows each
    assert made_up


def test_a_federation_trains_a_model_that_was_evaluated_before():
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    with pytest.warns(UserWarning, match="one after another"):
        found = run(model)
    assert found.history[-1].step == 2
