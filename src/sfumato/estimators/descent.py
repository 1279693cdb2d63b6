# SPDX-License-Identifier: Apache-2.0
"""Softmax regression by DP-SGD: noisy gradient steps of `sfumato.training`.

Rows are divided by their public norm bound, so that the curvature of the objective is at most 1/2, whatever
the data: steps and learning rate need no tuning on private data. Their defaults were chosen on data sets that
are public (docs/estimators.md).

Gradients of rows of norm 1 are below sqrt(2); they are clipped to 1.

Guarantee  That of the `DpSgd` mechanism: Poisson batches at a public rate (all rows, where it is 1), clipped
           gradients, Gaussian noise. Nothing else is computed from the rows.
"""

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import skip_init

from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.mechanisms.random import Generator
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling
from sfumato.training.runtime import Runtime
from sfumato.training.trainer import Trainer

__all__ = ["descend", "planned"]


def planned(*, epsilon: float, delta: float, steps: int, sampling_rate: float, relation: Relation) -> DpSgd:
    """Return the run with the least noise that meets the budget.

    >>> run = planned(epsilon=1.0, delta=1e-5, steps=100, sampling_rate=1.0, relation=Relation.ADD_REMOVE)
    >>> round(run.noise_multiplier(0), 2)
    37.31
    """
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=sampling_rate),
        noise=((1.0, steps),),
        relation=relation,
    )
    return run.calibrated(epsilon=epsilon, delta=delta)


def descend(
    rows: Floats,
    labels: npt.NDArray[np.int64],
    *,
    run: DpSgd,
    num_classes: int,
    public_size: int,
    delta: float,
    learning_rate: float,
    generator: Generator | None = None,
) -> Floats:
    """Return the weights [classes, features] for rows of norm at most 1; rows of zeros contribute nothing."""
    # One more row of zeros: it adds nothing to a sum, and there is always something to sample from.
    data = (
        torch.from_numpy(np.vstack([rows, np.zeros((1, rows.shape[1]))])).float(),
        torch.from_numpy(np.append(labels, 0)),
    )
    # Without an initialization: that would draw from torch's own seed.
    model = cast(nn.Linear, skip_init(nn.Linear, rows.shape[1], num_classes, bias=False))
    nn.init.zeros_(model.weight)
    Trainer(
        model,
        data,
        mechanism=run,
        public_size=public_size,
        learning_rate=learning_rate,
        delta=delta,
        progress=False,
        generator=generator,
        runtime=Runtime(device="cpu"),
    ).fit()
    return model.weight.detach().double().numpy()
