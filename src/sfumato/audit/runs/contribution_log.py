# SPDX-License-Identifier: Apache-2.0
"""Exact tests of the noisy contributions of canaries: does one unit add at most what clipping permits?

For canaries in a batch, the value is what was released along their gradient, less the bound on one unit, in
standard deviations of the noise. If clipping is right it is normal, with a mean of 0 or less.

- The mean of each step, and of all steps, shows a bound that many units exceed by a little.
- The largest value of each step shows a bound that one unit exceeds by far.
- A canary that is not in a batch contributes nothing: its coordinate is noise alone and must not be large.

Guarantee  A p-value is at most p with probability at most p; all looks are counted (Bonferroni).
Edge cases Sums are float32 numbers, so a contribution is rounded by about 1e-7 of its bound. Steps whose
           noise is below `LEAST_NOISE` bounds are left out, because rounding could look like an excess there.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_ndtr, ndtr, ndtri

from sfumato.audit.evidence.results import Finding

__all__ = ["LEAST_NOISE", "TOO_LITTLE", "ContributionLog"]

Numbers = npt.NDArray[np.float64]

LEAST_NOISE = 0.01  # in bounds: rounding moves the mean of a million contributions by 0.01 of its stddev
TOO_LITTLE = f"noise is below {LEAST_NOISE:g} of the clip norm, and rounding could look like too much"


class ContributionLog:
    """What units added beyond the bound, in standard deviations of the noise of their step.

    >>> log, draws = ContributionLog("canaries"), np.random.default_rng(0)
    >>> log.add(draws.normal(size=100), draws.normal(size=100), noise=2.0)
    >>> min(found.p_value for found in log.findings()) > 0.001
    True
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: list[tuple[float, float, float]] = []  # sum and number of excesses, stddev of the noise
        self._largest: list[
            tuple[float, float]
        ] = []  # log chance of the largest, and how far beyond the bound

    @property
    def looked(self) -> bool:
        """Whether any step was looked at, be it without a contribution."""
        return bool(self._steps)

    def add(self, beyond: Numbers, others: Numbers, *, noise: float) -> None:
        """Add a step: excesses of those in the batch, and coordinates of those that are not."""
        self._steps.append((float(beyond.sum()), float(len(beyond)), noise))
        strays = np.abs(others)
        most = float(max(beyond.max(initial=-math.inf), strays.max(initial=-math.inf)))
        looks = len(beyond) + 2 * len(others)
        chance = min(0.0, math.log(looks) + float(log_ndtr(-most))) if looks else 0.0
        self._largest.append((chance, most * noise))

    def findings(self) -> list[Finding]:
        """Return what each test says."""
        if not any(count for _, count, _ in self._steps):
            return []
        sums, counts, noise = (np.array(part) for part in zip(*self._steps, strict=True))
        at_least_one = np.maximum(counts, 1)
        means = np.where(counts > 0, ndtr(-sums / np.sqrt(at_least_one)), 1.0)
        worst, far = int(np.argmin(means)), int(np.argmin([chance for chance, _ in self._largest]))
        chance, beyond = self._largest[far]
        observed = int(counts.sum())
        excess = sums.sum() / (counts / noise).sum()  # weighted as the test does: above 0 where it fails
        average = 1 + sums[worst] / at_least_one[worst] * noise[worst]
        return [
            Finding(
                p_value=min(1.0, len(means) * float(means[worst])),
                message=f"{self.name} add too much in step {worst + 1}: on average {average:.3g} times what "
                "clipping allows",
                observations=observed,
            ),
            Finding(
                p_value=float(ndtr(-sums.sum() / math.sqrt(observed))),
                message=f"{self.name} add too much over all steps: on average about {1 + excess:.3g} times "
                "what clipping allows",
                observations=observed,
            ),
            Finding(
                p_value=min(1.0, len(self._largest) * math.exp(chance)),
                message=f"one of {self.name} moves the sum of step {far + 1} by about {1 + beyond:.3g} times "
                "what clipping allows",
                observations=observed,
            ),
        ]

    def mean(self) -> float | None:
        """Return the mean contribution in multiples of the bound; None where none was seen."""
        if not any(count for _, count, _ in self._steps):
            return None
        sums, counts, noise = (np.array(part) for part in zip(*self._steps, strict=True))
        return _mean(sums, counts, noise)

    def sees(self, error: float) -> str:
        """Return how large a mistake is shown nine times in ten."""
        weights = [(count, noise) for _, count, noise in self._steps if count]
        if not weights:
            return "nothing: no canary was in a batch"
        needed = -float(ndtri(error)) + float(ndtri(0.9))
        total = sum(count for count, _ in weights)
        pull = sum(count / noise for count, noise in weights)  # of an excess of 1 in all of them
        return f"contributions {100 * needed * math.sqrt(total) / pull:.2g}% too long in all"

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        steps, largest = (
            torch.tensor(part, dtype=torch.float64).reshape(-1, width)
            for part, width in ((self._steps, 3), (self._largest, 2))
        )
        return {"steps": steps, "largest": largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps = [(a, b, c) for a, b, c in state["steps"].tolist()]
        self._largest = [(a, b) for a, b in state["largest"].tolist()]


def _mean(sums: Numbers, counts: Numbers, noise: Numbers) -> float:
    return 1 + float((sums * noise).sum() / counts.sum())
