# SPDX-License-Identifier: Apache-2.0
"""What R1 states: its settings, its accuracies, its network, and what its runs cost.

The report names neither its data nor its network. Its public repository does
(github.com/AlgoSarthak/Privacy-Preservation-in-Deep-Learning-UGP-, DP-SGD.ipynb and Label DP Pro
ALTConv.ipynb): MNIST with pixels from 0 to 1, the first 54,000 training rows, batches of 512, and one hidden
layer of 128 units with ReLU. `price_of_code` prices what that code does, the others what the report says.
"""

from collections.abc import Sequence
from functools import cache
from math import prod, sqrt
from typing import Final

import torch
from torch import Tensor, nn

from sfumato.accounting import Relation, price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.datasets import Dataset, load
from sfumato.experiments.experiment import Scale
from sfumato.training.random_state import same_draws

__all__ = [
    "CLIP_NORM",
    "DELTA",
    "LEARNING_RATE",
    "NOISE",
    "SAMPLING_RATE",
    "STEPS",
    "TABLE_2",
    "TABLE_3",
    "TABLE_4",
    "data_of",
    "device_of",
    "pixels",
    "price_of_code",
    "price_of_fixed_batches",
    "price_of_poisson_batches",
    "reported_network",
]

DELTA: Final = 1e-5
CLIP_NORM: Final = 0.1
LEARNING_RATE: Final = 0.05
SAMPLING_RATE: Final = 0.01
STEPS: Final = 1000
NOISE: Final = {0.1: 7.0, 0.5: 1.4, 1.0: 0.7, 5.0: 0.14, 10.0: 0.07}  # by the epsilon that is claimed
TABLE_2: Final = {0.1: 0.9159, 0.5: 0.9165, 1.0: 0.9169, 5.0: 0.9173, 10.0: 0.9182}
TABLE_3: Final = {0.1: 0.7608, 0.5: 0.7771, 1.0: 0.7782, 5.0: 0.7858, 10.0: 0.7869}
TABLE_4: Final = {1.0: (100, 0.4280), 5.0: (600, 0.7349), 10.0: (2200, 0.8101)}  # steps, accuracy, by noise
_HIDDEN: Final = 128
_TENSORS: Final = 4  # weights and biases of two layers: the code clips each of them on its own


def data_of(scale: Scale) -> Dataset:
    """Return the data: MNIST, or digits for a quick run."""
    return load("digits" if scale.quick else "mnist")


def device_of(scale: Scale) -> str:
    """Return where to compute: what was asked for, else a GPU if there is one."""
    return scale.device or ("cuda" if torch.cuda.is_available() else "cpu")


def pixels(data: Dataset, features: Tensor) -> Tensor:
    """Return rows of gray levels from 0 to 1, as the report's code has them."""
    if data.normalization is None:
        return features.flatten(1)
    return data.normalization.pixels(features).flatten(1).float() / 255


def reported_network(shape: Sequence[int], classes: int, *, seed: int) -> nn.Sequential:
    """Return the report's network, with the first weights that Keras would draw (Glorot and Bengio 2010)."""
    with same_draws(seed=seed):
        first, last = nn.Linear(prod(shape), _HIDDEN), nn.Linear(_HIDDEN, classes)
        for layer in (first, last):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.ReLU(), last)


@cache
def price_of_poisson_batches(noise: float, steps: int, *, rate: float, relation: Relation) -> float:
    """Return the epsilon of steps on Poisson samples."""
    step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    return price(dp.SelfComposedDpEvent(step, steps), delta=DELTA, relation=relation).epsilon


@cache
def price_of_fixed_batches(noise: float, steps: int, *, rows: int, batch: int, relation: Relation) -> float:
    """Return an upper bound on the epsilon of steps on batches of a fixed size."""
    step = dp.SampledWithoutReplacementDpEvent(rows, batch, dp.GaussianDpEvent(noise))
    return price(dp.SelfComposedDpEvent(step, steps), delta=DELTA, relation=relation).epsilon


def price_of_code(noise: float, steps: int, *, rows: int, batch: int) -> float:
    """Return the epsilon that the published code can claim.

    It clips the mean gradient of a batch, each of four tensors to C, and adds noise of `noise` C / batch. So
    one row can move everything from one end of the ball to the other: the ball has radius 2 C, and noise is
    `noise` / (2 batch) times that.
    """
    return price_of_fixed_batches(
        noise / (batch * sqrt(_TENSORS)), steps, rows=rows, batch=batch, relation=Relation.REPLACE_ONE
    )
