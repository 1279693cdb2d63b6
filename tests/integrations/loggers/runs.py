# SPDX-License-Identifier: Apache-2.0
"""A small run whose figures loggers get."""

from typing import Any

import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training import TrainingRun, train

torch.set_num_threads(1)

SHOWN = 3  # measurements in the run
FIGURES = ("epsilon", "learning_rate", "loss", "accuracy")
FACTS = ("epsilon", "delta", "relation", "privacy_unit", "guarantee", "statement")


def trained(*loggers: Any, **options: Any) -> TrainingRun:
    """Return a run of six steps, which is measured at every second one."""
    source = torch.Generator().manual_seed(0)
    data = torch.randn(40, 3, generator=source), torch.randint(0, 2, (40,), generator=source)
    given = {"noise_multiplier": 1.0, "delta": 1e-4, "public_size": 30, "expected_batch_size": 10, "steps": 6}
    given |= {"evaluate_every": 2}
    return train(
        nn.Linear(3, 2),
        (data[0][:30], data[1][:30]),
        evaluation=(data[0][30:], data[1][30:]),
        progress=False,
        generator=seeded(0),
        loggers=list(loggers),
        **given | options,
    )
