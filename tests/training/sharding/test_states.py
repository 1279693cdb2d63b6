# SPDX-License-Identifier: Apache-2.0
"""States of sharded models are tested in real processes by `test_sharded_runs`; here, those of whole ones."""

import torch
from torch import nn

from sfumato.training.sharding import states


def test_what_is_not_sharded_stays_as_it_is():
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    kept = states.gathered({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1})
    assert kept["step"] == 1
    assert all(torch.equal(kept["model"][name], value) for name, value in model.state_dict().items())
    placed = states.placed_all(kept["model"], model.state_dict())
    assert all(placed[name] is kept["model"][name] for name in placed)
    found = states.of_optimizer(kept["optimizer"], optimizer)
    assert found["param_groups"] == kept["optimizer"]["param_groups"]
    assert all(
        found["state"][number][name] is value
        for number, held in kept["optimizer"]["state"].items()
        for name, value in held.items()
    )
