# SPDX-License-Identifier: Apache-2.0
"""How a model learns from labels that were released with noise: ordinary training, at no cost."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.labels.learning import Augment, Released, learn, rehearsing, soft_cross_entropy

__all__ = ["Learner"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """How a network learns from released labels: ordinary training, which costs nothing.

    Args:
        epochs: Passes over all rows.
        batch_size: Rows in one step.
        learning_rate: The learning rate of the optimizer.
        augment: Changes the rows of a batch at random, or None.
        ema_decay: The decay of an average of the weights, or None for the last weights.
        seed: The seed of batches and augmentation. It has nothing to do with privacy.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    augment: Augment | None = None
    ema_decay: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check.count(epochs=self.epochs, batch_size=self.batch_size)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(seed=self.seed)
        if self.ema_decay is not None:
            _check.probability(ema_decay=self.ema_decay)

    def __call__(self, model: nn.Module, features: Tensor, released: Released) -> None:
        """Train a model on features and released targets, in place."""
        learn(
            model,
            features,
            released.targets,
            loss=released.loss,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            augment=self.augment,
            ema_decay=self.ema_decay,
            seed=self.seed,
        )

    def rehearse(
        self, model: nn.Module, features: Tensor, *, classes: int, lessons: Sequence[int] | None = None
    ) -> None:
        """Train a copy of the model for one step, with even targets, to find out what cannot work.

        Args:
            model: The model, which is not changed.
            features: The public features.
            classes: The number of classes.
            lessons: How many rows each training learns from. The step has the smallest batch of all. Default:
                one training on all rows.

        Raises:
            UnsupportedModelError: If the model cannot be trained.
        """
        sizes = [len(features)] if lessons is None else lessons
        smallest = min(
            rows // math.ceil(rows / self.batch_size) for rows in sizes
        )  # as `learn` cuts an epoch
        even = torch.full((smallest, classes), 1 / classes)
        with rehearsing("training"):
            once = replace(self, epochs=1)
            once(copy.deepcopy(model), features[:smallest], Released(targets=even, loss=soft_cross_entropy))
