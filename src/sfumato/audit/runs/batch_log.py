# SPDX-License-Identifier: Apache-2.0
"""Exact tests of Poisson batches, by the canaries that were in them.

Under Poisson sampling, the canaries in the batch of each step are independent coins of the stated rate. So
these numbers have binomial distributions:

- the number of canaries that were taken, over all steps,
- for each k, the number of canaries that were taken at least k times: too many mean batches that come back,
  or epochs in which every unit is taken once,
- for each pair of steps, the number of canaries that both batches have,
- the number of times that two canaries that are neighbors in the data were both taken,
- the number of canaries in each batch: if it varies too little, the size of batches is fixed (which shows
  where canaries are most of the units).

Guarantee  A p-value is at most p with probability at most p; all looks are counted (Bonferroni).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp
from scipy.stats import binom

from sfumato.audit.evidence.results import Finding

__all__ = ["BatchLog"]

Taken = npt.NDArray[np.uint8]

_PAIRED = 1024  # steps of which all pairs are compared
_POWER = 0.9
_RATES = np.logspace(-2, 4, 61)  # in a bound of Chernoff, over the variance of the number in a batch


class BatchLog:
    """Which canaries were in which batch, beside the rate that is stated.

    >>> draws = np.random.default_rng(0)
    >>> log, stuck = BatchLog(0.1), BatchLog(0.1)
    >>> for _ in range(20): log.add(draws.random(500) < 0.1)
    >>> for _ in range(20): stuck.add(np.arange(500) < 50)
    >>> min(found.p_value for found in log.findings()) > 0.001
    True
    >>> min(found.p_value for found in stuck.findings()) < 1e-9
    True
    """

    def __init__(self, sampling_rate: float) -> None:
        self.sampling_rate = sampling_rate
        self._taken: list[Taken] = []

    def add(self, taken: npt.NDArray[np.bool_]) -> None:
        """Add who was in the batch of a step, in the order that canaries have among the units."""
        self._taken.append(taken.astype(np.uint8))

    def findings(self) -> list[Finding]:
        """Return what each test says."""
        if not self._taken or not len(self._taken[0]) or self.sampling_rate >= 1:
            return []
        taken = np.stack(self._taken)  # [steps, canaries]
        found = [self._rate(taken), self._often(taken), self._together(taken), self._alike(taken)]
        return [*found, self._again(taken)] if len(taken) > 1 else found

    def _rate(self, taken: Taken) -> Finding:
        total, size = int(taken.sum()), taken.size
        rate = self.sampling_rate
        p = 2 * min(float(binom.sf(total - 1, size, rate)), float(binom.cdf(total, size, rate)))
        return Finding(
            p_value=min(1.0, p),
            message=f"units are sampled at a rate of {total / size:.4g}, and not of {rate:.4g} as stated",
            observations=size,
        )

    def _often(self, taken: Taken) -> Finding:
        steps, count = taken.shape
        often = np.bincount(taken.sum(0), minlength=steps + 1)
        at_least = np.cumsum(often[::-1])[::-1][1:]  # from once on
        chances = binom.sf(np.arange(steps), steps, self.sampling_rate)
        p = binom.sf(at_least - 1, count, chances)
        worst = int(np.argmin(p))
        return Finding(
            p_value=min(1.0, steps * float(p[worst])),
            message=f"batches are not drawn anew: {at_least[worst]} of {count} canaries are in at least "
            f"{worst + 1} of {steps} batches, where {count * chances[worst]:.3g} should be",
            observations=taken.size,
        )

    def _again(self, taken: Taken) -> Finding:
        part = taken[:_PAIRED].astype(np.float32)
        first, second = np.triu_indices(len(part), 1)
        shared = np.rint((part @ part.T)[first, second])
        at = int(np.argmax(shared))
        p = float(binom.sf(shared[at] - 1, taken.shape[1], self.sampling_rate**2))
        return Finding(
            p_value=min(1.0, len(shared) * p),
            message=f"the batches of steps {first[at] + 1} and {second[at] + 1} have {int(shared[at])} of "
            f"{taken.shape[1]} canaries in common, where "
            f"{taken.shape[1] * self.sampling_rate**2:.3g} should be",
            observations=taken.size,
        )

    def _together(self, taken: Taken) -> Finding:
        even = taken[:, : taken.shape[1] // 2 * 2]
        both = int((even[:, ::2] & even[:, 1::2]).sum())
        pairs = even.size // 2
        p = float(binom.sf(both - 1, pairs, self.sampling_rate**2)) if pairs else 1.0
        return Finding(
            p_value=p,
            message=f"neighbors in the data are sampled together: {both} of {pairs} pairs, where "
            f"{pairs * self.sampling_rate**2:.3g} should be",
            observations=taken.size,
        )

    def _alike(self, taken: Taken) -> Finding:
        """Return whether batches hold nearly the same number of canaries, as if their size were fixed.

        The squares of what their numbers are off by are too small together. By Chernoff, for every t,
        P(sum of T squares <= s) <= E[exp(-t square)]^T exp(t s), and the least of these bounds holds too.
        """
        steps, count = taken.shape
        expected, variance = count * self.sampling_rate, count * self.sampling_rate * (1 - self.sampling_rate)
        together = float(((taken.sum(1, dtype=np.int64) - expected) ** 2).sum())
        numbers = np.arange(count + 1)
        squares, rates = (numbers - expected) ** 2, _RATES / variance
        logs = binom.logpmf(numbers, count, self.sampling_rate)
        means = logsumexp(logs - rates[:, None] * squares, axis=1)  # of exp(-t square), as logarithms
        p = math.exp(min(0.0, float((steps * means + rates * together).min())))
        return Finding(
            p_value=p,
            message="batches are not Poisson samples: the variance of their number of canaries is "
            f"{together / steps:.3g}, where {variance:.3g} is expected",
            observations=taken.size,
        )

    def sees(self, error: float) -> str:
        """Return how large a mistake of the rate is shown nine times in ten."""
        size = sum(taken.size for taken in self._taken)
        if not size or self.sampling_rate >= 1:
            return "nothing: all units are in each batch"
        needed = int(binom.isf(error / 2, size, self.sampling_rate))
        low, high = self.sampling_rate, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if binom.sf(needed, size, middle) < _POWER else (low, middle)
        return f"a rate {100 * (high / self.sampling_rate - 1):.2g}% too high"

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen."""
        if not self._taken:
            return {"taken": torch.zeros(0, 0, dtype=torch.uint8), "count": 0}
        packed = np.packbits(np.stack(self._taken), axis=1)  # a bit for each step and canary
        return {"taken": torch.from_numpy(packed), "count": len(self._taken[0])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._taken = list(np.unpackbits(state["taken"].numpy(), axis=1, count=int(state["count"])))
