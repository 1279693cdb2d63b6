# SPDX-License-Identifier: Apache-2.0
"""A lower bound on what the steps of a run cost, computed without our accountants.

The claim of a run comes from a chain of events, prices and accountants. A mistake in it (a count that is
lost, a sensitivity that is halved) shows as a claim below this number. One coordinate with a unit and
without is a mixture of two normal distributions, and one normal distribution. Both are cut into cells, which
can only make them harder to separate; the privacy loss of the cells is composed over steps with optimistic
rounding, by dp_accounting.

Guarantee  `least_epsilon` is a lower bound on the epsilon of sampled Gaussian sums, if each unit is in a
           step with the stated probability, independently, and noise has the stated size. It holds up to
           `ROUNDING` if `is_precise` is True: for little noise, or a tiny delta, float64 has too few digits.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr

from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.evidence.results import Finding

__all__ = ["ROUNDING", "compared", "is_precise", "least_epsilon"]

Numbers = npt.NDArray[np.float64]

ROUNDING = 1e-2  # by which a claim may seem too low
_LEAST_NOISE, _LEAST_DELTA, _MOST_EPSILON = 0.3, 1e-10, 50.0
_CELLS = 2000
_WIDE = 9.0  # standard deviations beyond the outermost mean: what lies farther is one cell
_COARSEST = (
    1e-3  # privacy losses are rounded down to multiples of this, or of less where there are many steps
)
_LOST = 0.1  # the most that rounding takes from an epsilon
_SPAN = 5e6  # multiples that a loss may have: more takes memory


def is_precise(noise: Sequence[float], claim: Guarantee) -> bool:
    """Whether float64 has enough digits for a claim: not for little noise, or a tiny delta."""
    return min(noise) >= _LEAST_NOISE and claim.delta >= _LEAST_DELTA and claim.epsilon <= _MOST_EPSILON


def least_epsilon(noise: Sequence[float], *, sampling_rate: float, relation: Relation, delta: float) -> float:
    """Return a lower bound on the epsilon of steps with these noise multipliers.

    >>> found = least_epsilon([1.0] * 10, sampling_rate=0.1, relation=Relation.ADD_REMOVE, delta=1e-5)
    >>> round(found, 1)  # the accountant says 2.86
    2.8
    """
    if not noise:
        return 0.0
    whole = None
    interval = max(min(_COARSEST, _LOST / len(noise)), _loss_span(min(noise), relation) / _SPAN)
    for stddev, steps in Counter(noise).items():
        part = _of_one(stddev, sampling_rate, relation, interval).self_compose(steps)
        whole = part if whole is None else whole.compose(part)
    return 0.0 if whole is None else max(0.0, float(whole.get_epsilon_for_delta(delta)))


def compared(
    noise: Sequence[float], claim: Guarantee, *, sampling_rate: float, relation: Relation
) -> Finding:
    """Return whether a claim is below the cost of steps with these noise multipliers."""
    least = least_epsilon(noise, sampling_rate=sampling_rate, relation=relation, delta=claim.delta)
    false = least > claim.epsilon * (1 + ROUNDING)
    message = f"the steps that were seen cost an epsilon of at least {least:.3g}"
    return Finding(p_value=0.0 if false else 1.0, message=message, observations=len(noise))


def _loss_span(stddev: float, relation: Relation) -> float:
    distance = 2.0 if relation.replaces else 1.0
    return 10 * distance / stddev + (distance / stddev) ** 2


def _of_one(stddev: float, rate: float, relation: Relation, interval: float) -> pld.PrivacyLossDistribution:
    edges = np.linspace(-1 - _WIDE * stddev, 1 + _WIDE * stddev, _CELLS + 1)
    without, above, below = (_masses((edges - mean) / stddev) for mean in (0.0, 1.0, -1.0))
    with_it, opposite = ((1 - rate) * without + rate * shifted for shifted in (above, below))
    other = opposite if relation.replaces else without
    return pld.from_two_probability_mass_functions(
        _logs(other),
        _logs(with_it),
        pessimistic_estimate=False,
        value_discretization_interval=interval,
        symmetric=False,
    )


def _masses(edges: Numbers) -> Numbers:
    """Return the mass of a standard normal distribution in each cell; upper cells by upper tails, which keep
    digits.
    """
    lower = np.diff(np.concatenate([[0.0], ndtr(edges), [1.0]]))
    upper = -np.diff(np.concatenate([[1.0], ndtr(-edges), [0.0]]))
    return np.where(np.concatenate([edges, [math.inf]]) <= 0, lower, upper)


def _logs(masses: Numbers) -> dict[int, float]:
    return {cell: math.log(mass) for cell, mass in enumerate(masses.tolist()) if mass > 0}
