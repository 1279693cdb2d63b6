# SPDX-License-Identifier: Apache-2.0
"""The base of methods that train on secret labels with noisy gradients, and DP-SGD for labels.

`LabelDpSgd` uses each noisy gradient as it is. `AltConv`, `SelfConv` and `SelfSpan` (`label_dp_pro`) project
it first. With a `noise_multiplier` a run ends before the first step that would exceed the budget; the number
of steps is known before the run starts.

Guarantee  A step releases a sum of clipped gradients with Gaussian noise. Replacing a label moves the sum by
           up to twice the clip norm, and the noise is priced for that (relation replace-label). `event()`
           describes all steps. Batches are secret Poisson samples, which amplifies privacy, unless the
           denoiser reveals who is in a batch. Then batches are cut from shuffled epochs, and a label is
           charged once for each epoch, without amplification. You cannot choose this; the method determines
           it.
Neighbors  Replace-label: the labels of one unit are replaced, features are public.
Unit       One label, or a user with all of theirs: gradients of a user's rows are averaged before clipping.
Failure    `rehearse` computes one step with a few public features and no label. A model or a setting that
           cannot work raises there, before the run is charged.
Source     Abadi et al. 2016 (DP-SGD); Ghazi et al. 2024, "LabelDP-Pro".
"""

import copy
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import check_classes
from sfumato.labels.learning import rehearsing
from sfumato.mechanisms.random import resolve
from sfumato.training.budget import dp_sgd_for
from sfumato.training.description import Privacy
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.privacy.denoising import Denoiser
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import Sampling, ShuffledBatches
from sfumato.training.random_state import same_draws

__all__ = ["LabelDpSgd", "NoisyGradients"]

_REHEARSED = 2  # rows: one would not show whether rows are mixed


@dataclass(frozen=True, kw_only=True)
class NoisyGradients(ABC):
    """The settings that all methods with noisy gradients share. Pass one of its subclasses as `method=`.

    Args:
        epsilon: The privacy budget of the run. Noise is calibrated to it unless `noise_multiplier` is given.
        delta: The delta of the guarantee, above 0.
        classes: The number of classes, public, 2 or more.
        public_size: The number of units (labels, or users with `owners`), public.
        steps: The number of noisy updates.
        expected_batch_size: The expected number of units in a batch.
        noise_multiplier: The standard deviation of the noise over `clip_norm`. None calibrates it to
            `epsilon`. If it is given, the run stops before the first step that would exceed `epsilon`.
        clip_norm: The L2 bound on the gradient of one unit.
        learning_rate: The learning rate of the optimizer, which is SGD.
        momentum: The momentum of the optimizer, in [0, 1]. It is applied after denoising.
        falling_rate: Whether the learning rate falls to zero over the run, by the same amount each step.
        ema_decay: The decay of an average of the weights over steps, or None for the last weights.
        contribution_bound: The largest number of labels one user may own.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    epsilon: float
    delta: float
    classes: int
    public_size: int
    steps: int
    expected_batch_size: int = 1024
    noise_multiplier: float | None = None
    clip_norm: float = 3.0
    learning_rate: float = 2.0
    momentum: float = 0.0
    falling_rate: bool = False
    ema_decay: float | None = 0.9
    contribution_bound: int = 1

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon, learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        _check.delta(delta=self.delta)
        _check.in_range(0, 1, momentum=self.momentum)
        check_classes(self.classes)
        _check.count(
            public_size=self.public_size,
            steps=self.steps,
            expected_batch_size=self.expected_batch_size,
            contribution_bound=self.contribution_bound,
        )
        if self.ema_decay is not None:
            _check.probability(ema_decay=self.ema_decay)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the method in recipes, on the command line and in records."""

    @property
    @abstractmethod
    def reveals_batches(self) -> bool:
        """Whether the method reveals who is in a batch. Then batches do not amplify privacy."""

    @abstractmethod
    def denoiser(self, features: Tensor) -> Denoiser | None:
        """Return what is done to each noisy gradient before a step.

        Args:
            features: The public features of all rows.

        Returns:
            The denoiser of one run, or None if noisy gradients are used as they are.
        """

    @property
    def relation(self) -> Relation:
        """Neighbors differ in the labels of one unit; features are public."""
        return Relation.REPLACE_LABEL

    def check_size(self, *, rows: int, units: int) -> None:
        """Check that the method was made for this many rows and units.

        Args:
            rows: The number of rows of features.
            units: The number of labels, or of users.

        Raises:
            InvalidParameterError: If `units` is not `public_size`, or there are too few rows. Nothing is
                spent.
        """
        if units != self.public_size:
            raise InvalidParameterError(
                f"public_size={self.public_size}, but the labels are those of {units} units. Pass "
                f"public_size={units}."
            )

    def mechanism(self) -> DpSgd:
        """Describe the run: batches, clipping, noise and number of steps.

        Returns:
            The mechanism that is charged.

        Raises:
            CalibrationError: If the budget does not allow one step.
        """
        return dp_sgd_for(
            Privacy(
                public_size=self.public_size,
                expected_batch_size=self.expected_batch_size,
                steps=self.steps,
                epsilon=self.epsilon,
                delta=self.delta,
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.clip_norm,
                relation=self.relation,
                sampling=self._sampling(),
            )
        )

    def event(self) -> DpEvent:
        """Describe what a run costs one unit.

        Returns:
            The event of all steps, for an accountant.
        """
        return self.mechanism().event()

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Make the optimizer of a run.

        Args:
            parameters: The weights to train.

        Returns:
            SGD with the learning rate and the momentum of the method.
        """
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        """Make the schedule of a falling learning rate.

        Args:
            optimizer: The optimizer whose learning rate falls.

        Returns:
            A schedule that reaches zero after the last step.
        """
        steps = self.mechanism().steps
        return LambdaLR(optimizer, lambda step: 1 - step / steps)

    def rehearse(self, model: nn.Module, features: Tensor) -> None:
        """Clip and denoise once on a copy of the model, with a few rows and no label.

        Args:
            model: The model to train. It is not changed.
            features: The public features of all rows.

        Raises:
            UnsupportedModelError: If the model's gradients cannot be clipped or denoised. Nothing is spent.
        """
        copied = copy.deepcopy(model).train()
        private = PrivateGradients(
            copied, clip_norm=self.clip_norm, noise_multiplier=1.0, expected_batch_size=_REHEARSED
        )
        named = private.parameters
        rows = features[:_REHEARSED].to(next(iter(named.values())).device)
        with rehearsing("the model's gradient"), same_draws([rows.device]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself warns about the engine it must use
                private.accumulate(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))
            denoiser = self._rehearsed(len(rows)).denoiser(rows)
            if denoiser is not None:
                ones = {name: torch.ones_like(p) for name, p in named.items()}
                own = torch.arange(len(rows)) if denoiser.reveals_batches else None
                denoiser.denoise(copied, ones, rows=own, generator=resolve(None))

    def _rehearsed(self, rows: int) -> "NoisyGradients":
        """Return the method with settings that a few rows allow."""
        return self

    def _sampling(self) -> Sampling | None:
        """Return public batches if the method reveals them; None stands for secret Poisson samples."""
        if not self.reveals_batches:
            return None
        return ShuffledBatches(batch_size=self.expected_batch_size, public_size=self.public_size)


@dataclass(frozen=True, kw_only=True)
class LabelDpSgd(NoisyGradients):
    """DP-SGD under label privacy: noisy gradients are used as they are.

    Args:
        epsilon: The privacy budget of the run. Noise is calibrated to it unless `noise_multiplier` is given.
        delta: The delta of the guarantee, above 0.
        classes: The number of classes, public, 2 or more.
        public_size: The number of units (labels, or users with `owners`), public.
        steps: The number of noisy updates.
        expected_batch_size: The expected number of units in a batch.
        noise_multiplier: The standard deviation of the noise over `clip_norm`. None calibrates it to
            `epsilon`. If it is given, the run stops before the first step that would exceed `epsilon`.
        clip_norm: The L2 bound on the gradient of one unit.
        learning_rate: The learning rate of the optimizer, which is SGD.
        momentum: The momentum of the optimizer, in [0, 1].
        falling_rate: Whether the learning rate falls to zero over the run, by the same amount each step.
        ema_decay: The decay of an average of the weights over steps, or None for the last weights.
        contribution_bound: The largest number of labels one user may own.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> method = LabelDpSgd(epsilon=1.0, delta=1e-6, classes=10, public_size=60_000, steps=100)
    >>> method.name, round(method.mechanism().noise_multiplier(0), 2)
    ('dp-sgd', 1.49)
    """

    @property
    def name(self) -> str:
        """The name of the method in recipes, on the command line and in records."""
        return "dp-sgd"

    @property
    def reveals_batches(self) -> bool:
        """Batches stay secret."""
        return False

    def denoiser(self, features: Tensor) -> None:
        """Return None: noisy gradients are used as they are.

        Args:
            features: The public features of all rows. They are not used.
        """
