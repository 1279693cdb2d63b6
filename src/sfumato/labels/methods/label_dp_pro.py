# SPDX-License-Identifier: Apache-2.0
"""The methods of LabelDP-Pro: AltConv, SelfConv and SelfSpan.

Each step computes a noisy gradient as DP-SGD does, and projects it on a set of gradients that the public
features allow (`denoisers`):

- AltConv uses the convex hull of an alternative batch, drawn independently of the step's own batch.
- SelfConv uses the convex hull of the step's own batch.
- SelfSpan uses the span of the step's own batch.

Guarantee  As in `noisy_gradients`; a projection is post-processing. AltConv keeps its batches secret, so they
           amplify privacy. SelfConv and SelfSpan reveal who is in a batch: their batches are cut from
           shuffled epochs, and a label is charged once for each epoch, without amplification.
Neighbors  Replace-label: the labels of one unit are replaced, features are public.
Unit       One label, or a user with all of theirs: gradients of a user's rows are averaged before clipping.
Source     Ghazi, Huang, Kamath, Kumar, Manurangsi, Zhang 2024, "LabelDP-Pro".
"""

from dataclasses import dataclass, replace

from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.methods.denoisers import (
    AltConvDenoiser,
    SelfConvDenoiser,
    SelfSpanDenoiser,
    require_averaging,
    require_smoothing,
)
from sfumato.labels.methods.noisy_gradients import NoisyGradients

__all__ = ["AltConv", "SelfConv", "SelfSpan"]


@dataclass(frozen=True, kw_only=True)
class _HullGradients(NoisyGradients):
    """The settings of methods that project on a convex hull."""

    smoothing: float = 0.75
    clip_columns: bool = False

    def __post_init__(self) -> None:
        NoisyGradients.__post_init__(self)
        require_smoothing(self.smoothing)

    def _column_clip_norm(self) -> float | None:
        return self.clip_norm if self.clip_columns else None


@dataclass(frozen=True, kw_only=True)
class AltConv(_HullGradients):
    """Project noisy gradients on the convex hull of an alternative batch. Batches stay secret.

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
        smoothing: The share of the projection in the result, in (0, 1]. The rest of the weight is spread
            evenly over all columns of the hull. 1 does not smooth.
        clip_columns: Whether the columns of the hull are clipped to `clip_norm`, as gradients are.
        alternative_batch_size: The number of rows of an alternative batch, at most the number of rows.
        averaging: The decay of an average of noisy gradients over steps, in [0, 1), before the projection.
            0 does not average.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> method = AltConv(epsilon=1.0, delta=1e-6, classes=10, public_size=60_000, steps=100)
    >>> method.name, round(method.mechanism().noise_multiplier(0), 2)
    ('altconv', 1.49)
    """

    alternative_batch_size: int = 128
    averaging: float = 0.0

    def __post_init__(self) -> None:
        _HullGradients.__post_init__(self)
        _check.count(alternative_batch_size=self.alternative_batch_size)
        require_averaging(self.averaging)

    @property
    def name(self) -> str:
        """The name of the method in recipes, on the command line and in records."""
        return "altconv"

    @property
    def reveals_batches(self) -> bool:
        """Batches stay secret: alternative batches are drawn independently of them."""
        return False

    def check_size(self, *, rows: int, units: int) -> None:
        """Check that the method was made for this many rows and units.

        Args:
            rows: The number of rows of features.
            units: The number of labels, or of users.

        Raises:
            InvalidParameterError: If `units` is not `public_size`, or an alternative batch has more than
                `rows` rows. Nothing is spent.
        """
        NoisyGradients.check_size(self, rows=rows, units=units)
        if self.alternative_batch_size > rows:
            raise InvalidParameterError(
                f"alternative_batch_size={self.alternative_batch_size}, but there are {rows} rows of "
                "features. Use a smaller one."
            )

    def denoiser(self, features: Tensor) -> AltConvDenoiser:
        """Return the projection on the hulls of alternative batches.

        Args:
            features: The public features of all rows.

        Returns:
            The denoiser of one run.
        """
        return AltConvDenoiser(
            features=features,
            classes=self.classes,
            batch_size=self.alternative_batch_size,
            averaging=self.averaging,
            smoothing=self.smoothing,
            clip_norm=self._column_clip_norm(),
        )

    def _rehearsed(self, rows: int) -> "AltConv":
        return replace(self, alternative_batch_size=min(self.alternative_batch_size, rows))


@dataclass(frozen=True, kw_only=True)
class SelfConv(_HullGradients):
    """Project noisy gradients on the convex hull of their own batch. This reveals who is in a batch.

    Args:
        epsilon: The privacy budget of the run. Noise is calibrated to it unless `noise_multiplier` is given.
        delta: The delta of the guarantee, above 0.
        classes: The number of classes, public, 2 or more.
        public_size: The number of units (labels, or users with `owners`), public.
        steps: The number of noisy updates.
        expected_batch_size: The number of units in a batch.
        noise_multiplier: The standard deviation of the noise over `clip_norm`. None calibrates it to
            `epsilon`. If it is given, the run stops before the first step that would exceed `epsilon`.
        clip_norm: The L2 bound on the gradient of one unit.
        learning_rate: The learning rate of the optimizer, which is SGD.
        momentum: The momentum of the optimizer, in [0, 1]. It is applied after denoising.
        falling_rate: Whether the learning rate falls to zero over the run, by the same amount each step.
        ema_decay: The decay of an average of the weights over steps, or None for the last weights.
        contribution_bound: The largest number of labels one user may own.
        smoothing: The share of the projection in the result, in (0, 1]. The rest of the weight is spread
            evenly over all columns of the hull. 1 does not smooth.
        clip_columns: Whether the columns of the hull are clipped to `clip_norm`, as gradients are.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> method = SelfConv(epsilon=1.0, delta=1e-6, classes=10, public_size=60_000, steps=100)
    >>> method.name, round(method.mechanism().noise_multiplier(0), 2)
    ('selfconv', 11.95)
    """

    @property
    def name(self) -> str:
        """The name of the method in recipes, on the command line and in records."""
        return "selfconv"

    @property
    def reveals_batches(self) -> bool:
        """The projection is computed from the features of the batch."""
        return True

    def denoiser(self, features: Tensor) -> SelfConvDenoiser:
        """Return the projection on the hull of each batch.

        Args:
            features: The public features of all rows.

        Returns:
            The denoiser of one run.
        """
        return SelfConvDenoiser(
            features=features,
            classes=self.classes,
            smoothing=self.smoothing,
            clip_norm=self._column_clip_norm(),
        )


@dataclass(frozen=True, kw_only=True)
class SelfSpan(NoisyGradients):
    """Project noisy gradients on the span of their own batch. This reveals who is in a batch.

    Args:
        epsilon: The privacy budget of the run. Noise is calibrated to it unless `noise_multiplier` is given.
        delta: The delta of the guarantee, above 0.
        classes: The number of classes, public, 2 or more.
        public_size: The number of units (labels, or users with `owners`), public.
        steps: The number of noisy updates.
        expected_batch_size: The number of units in a batch.
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

    >>> SelfSpan(epsilon=1.0, delta=1e-6, classes=10, public_size=60_000, steps=100).name
    'selfspan'
    """

    @property
    def name(self) -> str:
        """The name of the method in recipes, on the command line and in records."""
        return "selfspan"

    @property
    def reveals_batches(self) -> bool:
        """The projection is computed from the features of the batch."""
        return True

    def denoiser(self, features: Tensor) -> SelfSpanDenoiser:
        """Return the projection on the span of each batch.

        Args:
            features: The public features of all rows.

        Returns:
            The denoiser of one run.
        """
        return SelfSpanDenoiser(features=features, classes=self.classes)
