# SPDX-License-Identifier: Apache-2.0
"""Methods that see labels at every step, through noisy gradients: DP-SGD for labels, and LabelDP-Pro.

Guarantee  A step releases a sum of clipped gradients with Gaussian noise. Replacing a label moves the sum by
           up to twice the clip norm, which the relation replace-label says. `event()` is that of all steps.
Batches    Without a denoiser, or with AltConv, batches are Poisson samples and stay secret, which amplifies.
           SelfSpan and SelfConv show who is in a batch: batches then are cut from shuffled epochs, and a
           label is charged once for each epoch, without amplification. Which of the two is no setting: it
           follows from the denoiser.
Rehearsal  Features are public: `rehearse` finds out with a few of them, and no label, what cannot work.
Stopping   With a `noise_multiplier` the run ends before the first step that would exceed the budget, which is
           known beforehand.
Unit       One label, or a user with all of theirs: gradients of a user's rows are averaged before clipping.
Source     Ghazi et al. 2024, "LabelDP-Pro"; Abadi et al. 2016 (DP-SGD).
"""

import copy
import enum
import warnings
from dataclasses import dataclass, replace

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
from sfumato.labels.methods.denoisers import AltConv, SelfConv, SelfSpan, require_smoothing
from sfumato.mechanisms.random import resolve
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.privacy.denoising import Denoiser
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import Sampling, ShuffledBatches
from sfumato.training.random_state import same_draws
from sfumato.training.train import plan_run

__all__ = ["Denoising", "NoisyGradients"]

_REHEARSED = 2  # rows: one would not show whether rows are mixed


class Denoising(enum.Enum):
    """What is done to a noisy gradient before a step."""

    NONE = "dp-sgd"
    SELF_SPAN = "selfspan"
    SELF_CONV = "selfconv"
    ALT_CONV = "altconv"

    @property
    def reveals_batches(self) -> bool:
        """Whether it shows who is in a batch."""
        return self in (Denoising.SELF_SPAN, Denoising.SELF_CONV)


@dataclass(frozen=True, kw_only=True)
class NoisyGradients:
    """DP-SGD under label privacy, denoised or not.

    >>> method = NoisyGradients(epsilon=1.0, delta=1e-6, classes=10, public_size=60_000, steps=100)
    >>> method.name, round(method.mechanism().noise_multiplier(0), 2)
    ('altconv', 1.49)
    """

    epsilon: float
    delta: float
    classes: int
    public_size: int  # units
    steps: int
    denoising: Denoising = Denoising.ALT_CONV
    expected_batch_size: int = 1024
    noise_multiplier: float | None = None
    clip_norm: float = 3.0
    learning_rate: float = 2.0
    momentum: float = 0.0  # of the optimizer, after denoising
    falling_rate: bool = False  # whether the learning rate falls to zero, in equal steps
    ema_decay: float | None = 0.9
    alternative_batch_size: int = 128
    averaging: float = 0.0
    smoothing: float = 0.75  # of hulls: see `denoisers`
    clip_columns: bool = False  # of hulls: whether columns are clipped as gradients are
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
            alternative_batch_size=self.alternative_batch_size,
            contribution_bound=self.contribution_bound,
        )
        require_smoothing(self.smoothing)
        if self.ema_decay is not None:
            _check.probability(ema_decay=self.ema_decay)
        if not isinstance(self.denoising, Denoising):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(f"denoising must be a Denoising, but {self.denoising!r} was given.")

    @property
    def name(self) -> str:
        """How the method is called."""
        return self.denoising.value

    @property
    def relation(self) -> Relation:
        """Labels are replaced; features are public."""
        return Relation.REPLACE_LABEL

    def check_size(self, *, rows: int, units: int) -> None:
        """Require as many units as were stated, and enough rows for an alternative batch."""
        if units != self.public_size:
            raise InvalidParameterError(
                f"public_size={self.public_size}, but the labels are those of {units} units. Say "
                f"public_size={units}."
            )
        if self.denoising is Denoising.ALT_CONV and self.alternative_batch_size > rows:
            raise InvalidParameterError(
                f"alternative_batch_size={self.alternative_batch_size}, but there are {rows} rows of "
                "features. Use a smaller one."
            )

    def mechanism(self) -> DpSgd:
        """Return the run: batches, clipping, noise and length."""
        return plan_run(
            public_size=self.public_size,
            expected_batch_size=self.expected_batch_size,
            steps=self.steps,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
            clipping=Clipping(clip_norm=self.clip_norm),
            relation=self.relation,
            sampling=self._sampling(),
        )

    def event(self) -> DpEvent:
        """Return what a run costs one unit."""
        return self.mechanism().event()

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return the optimizer of a run."""
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        """Return how the learning rate of a run falls."""
        steps = self.mechanism().steps
        return LambdaLR(optimizer, lambda step: 1 - step / steps)

    def denoiser(self, features: Tensor) -> Denoiser | None:
        """Return the denoiser of a run on these features."""
        if self.denoising is Denoising.SELF_SPAN:
            return SelfSpan(features=features, classes=self.classes)
        clip_norm = self.clip_norm if self.clip_columns else None
        if self.denoising is Denoising.SELF_CONV:
            return SelfConv(
                features=features, classes=self.classes, smoothing=self.smoothing, clip_norm=clip_norm
            )
        if self.denoising is Denoising.ALT_CONV:
            return AltConv(
                features=features,
                classes=self.classes,
                batch_size=self.alternative_batch_size,
                averaging=self.averaging,
                smoothing=self.smoothing,
                clip_norm=clip_norm,
            )
        return None

    def rehearse(self, model: nn.Module, features: Tensor) -> None:
        """Clip and denoise with a few rows and no label, on a copy of the model: what cannot work raises."""
        copied = copy.deepcopy(model).train()
        private = PrivateGradients(
            copied, clip_norm=self.clip_norm, noise_multiplier=1.0, expected_batch_size=_REHEARSED
        )
        named = private.parameters
        rows = features[:_REHEARSED].to(next(iter(named.values())).device)
        with rehearsing("the model's gradient"), same_draws([rows.device]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself will say which engine it must use
                private.accumulate(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))
            denoiser = self._smaller(len(rows)).denoiser(rows)
            if denoiser is not None:
                ones = {name: torch.ones_like(p) for name, p in named.items()}
                own = torch.arange(len(rows)) if denoiser.reveals_batches else None
                denoiser.denoise(copied, ones, rows=own, generator=resolve(None))

    def _smaller(self, rows: int) -> "NoisyGradients":
        return replace(self, alternative_batch_size=min(self.alternative_batch_size, rows))

    def _sampling(self) -> Sampling | None:
        """Return batches that everybody may know where the denoiser shows them; else Poisson ones."""
        if not self.denoising.reveals_batches:
            return None
        return ShuffledBatches(batch_size=self.expected_batch_size, public_size=self.public_size)
