# SPDX-License-Identifier: Apache-2.0
"""Rows that leave a participant: each is clipped, and the participant adds the noise itself.

Nobody else adds noise, so the receiver learns no more than the guarantee states, whoever it is.

Guarantee  Each row of `release` is a vector of L2 norm at most `clip_norm`, whatever it was (zero, huge,
           infinite, NaN; up to rounding), plus Gaussian noise of `noise_multiplier * clip_norm`, fresh for
           every row and every call. If one unit decides one row of a release and nothing of the others, then
           `event(releases)` describes so many releases.
Neighbors  The event is relative to the norm of one row. Under replace-one and replace-label neighbors the
           accountants let a row move by `2 * clip_norm`.
Unit       What decides one row: a person, or a client.
Edge cases A row that is not finite counts as a row of zeros: the release is noise.
Not here   Amplification by sampling: the receiver knows whose row it is, and that there is one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.tensors import add_gaussian_

__all__ = ["ClippedNoise"]

_NORMS = (1e-12, 1e12)  # of clip norms: float32 holds the clipped numbers and their noise


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedNoise:
    """A bound on each row that leaves, and the noise that is added to it.

    Args:
        noise_multiplier: The standard deviation of the noise, divided by `clip_norm`.
        clip_norm: The L2 norm to which each row is clipped.

    Raises:
        InvalidParameterError: If a number is out of range.

    >>> ClippedNoise(noise_multiplier=2.0).clipped(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """

    noise_multiplier: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(noise_multiplier=self.noise_multiplier)
        _check.in_range(*_NORMS, clip_norm=self.clip_norm)

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        releases: int = 1,
        clip_norm: float = 1.0,
        relation: Relation = Relation.REPLACE_ONE,
    ) -> "ClippedNoise":
        """Return the smallest noise with which so many releases about a unit meet a budget.

        Args:
            epsilon: The privacy budget of all releases together.
            delta: The delta of the guarantee.
            releases: How many rows about a unit leave.
            clip_norm: The L2 norm to which each row is clipped.
            relation: Which data sets are neighbors.

        Returns:
            The clipping and the noise.

        Raises:
            InvalidParameterError: If a number is out of range.
            CalibrationError: If no noise meets the budget.

        >>> round(ClippedNoise.calibrated(epsilon=8, delta=1e-5).noise_multiplier, 2)
        1.2
        """
        noise = calibrate(
            lambda multiplier: cls(noise_multiplier=multiplier).event(releases),
            epsilon=epsilon,
            delta=delta,
            relation=relation,
        )
        return cls(noise_multiplier=noise, clip_norm=clip_norm)

    def event(self, releases: int = 1) -> DpEvent:
        """Return what releases about one unit cost together.

        Args:
            releases: How many rows about a unit leave.

        Returns:
            The event, for an accountant.
        """
        return events.dp_sgd(noise_multiplier=self.noise_multiplier, sampling_rate=1.0, steps=releases)

    def clipped(self, rows: Tensor) -> Tensor:
        """Clip each row. The result has gradients where `rows` has.

        Args:
            rows: One vector for each unit, [units, size].

        Returns:
            The clipped rows, in their type.
        """
        wide = rows.double()  # squares of the largest float32 numbers stay finite
        norms = wide.norm(dim=1, keepdim=True)
        finite = norms.isfinite()
        # 0 * NaN is NaN: the numbers are replaced as well.
        scaled = wide.nan_to_num(0.0, 0.0, 0.0) * (self.clip_norm / norms.clamp(min=self.clip_norm))
        return torch.where(finite, scaled, torch.zeros_like(scaled)).to(rows.dtype)

    def release(self, rows: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Clip each row and add noise.

        Args:
            rows: One vector for each unit, [units, size], of float32 or float64.
            generator: Source of the noise. None uses the secure generator; any other is for study only.

        Returns:
            The rows that may leave.

        Raises:
            InvalidParameterError: If the type cannot hold the noise.
        """
        leaving = self.clipped(rows.detach()).contiguous()
        stddev = self.noise_multiplier * self.clip_norm
        return add_gaussian_(leaving, stddev=stddev, generator=generator)

    def statement(self) -> str:
        """Return what is done to a row, in words for a sentence.

        Returns:
            The words.
        """
        return (
            f"clipped to an L2 norm of {self.clip_norm:g}, and Gaussian noise of {self.noise_multiplier:.4g} "
            "times that norm was added before it left"
        )
