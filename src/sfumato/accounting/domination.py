# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism that dominates an event: a number whose squares add up.

Guarantee  Let `mu = gaussian_mu(proven, slack)`, where an event satisfies every (epsilon, delta) in `proven`.
           Then for all neighbors D, D' and all x >= 0, sup_S P[M(D) in S] - x P[M(D') in S] is at most
           slack + (1 - slack) times the same for N(mu, 1) and N(0, 1).
Neighbors  Those of the statements. Both directions are covered, because a statement is symmetric.
Edge cases Without a statement whose delta is at most `slack`, mu is infinite. An event that reveals nothing
           has 0.
Failure    Rounding errs towards a larger mu, by about 1e-9.
Source     Dong, Roth, Su 2022, arXiv:1905.02383 (Gaussian DP). docs/decisions/0003-filter.md proves that it
           is enough to look at the corners of what the statements allow.
Not here   How such numbers are added up and compared with a budget: `ledger.filters`.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri_exp

from sfumato.accounting import composition, gaussian
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.pairs import Floats
from sfumato.accounting.price import quick_epsilon
from sfumato.errors import UnsupportedEventError

__all__ = ["Statement", "gaussian_mu", "statements"]

Statement = tuple[float, float]  # (epsilon, delta)
_ROUNDING = 1e-9  # relative and absolute; the inverse normal distribution is good to about 1e-14
_LAST_DIGIT = 4e-16  # of numbers near 1; of e^z it is this times z
_POINTS = 24  # statements between epsilon 0 and the last: mu is then within about 1 in 100 of the best
# Of the Gaussian's total variation: events are often a little less revealing there, and mu is decided by how
# well the point where epsilon reaches 0 is met.
_NEAR_ZERO = tuple(0.965**k for k in range(1, 13))
_LARGEST = 700.0  # e^700 is still a float64: a statement beyond it says nothing that matters


def statements(event: DpEvent, *, slack: float, relation: Relation) -> list[Statement]:
    """Return (epsilon, delta) statements that a fixed plan of an event satisfies, from delta `slack` on.

    The deltas are those of a Gaussian that meets the last statement, at epsilons from 0 on: a good choice
    makes `gaussian_mu` small, and any choice is sound.

    >>> from sfumato.accounting.events import PureDpEvent
    >>> statements(PureDpEvent(0.5), slack=1e-6, relation=Relation.ADD_REMOVE)[0]
    (0.5, 0.0)
    """

    def at(delta: float) -> Statement:
        return quick_epsilon(event, delta=delta, relation=relation), delta

    last, _ = at(slack)
    if not 0 < last < _LARGEST:
        return [*_pure(event, relation), (last, slack)]
    mu = 1 / gaussian.stddev_for(last, slack, 1.0)
    deltas = [gaussian.delta(mu, last * k / _POINTS) for k in range(_POINTS)]
    spread = [deltas[0] * share for share in _NEAR_ZERO] + deltas
    return [*_pure(event, relation), (last, slack), *(at(d) for d in spread if slack < d < 1)]


def _pure(event: DpEvent, relation: Relation) -> list[Statement]:
    try:
        return [composition.basic(event, relation)]
    except UnsupportedEventError:
        return []


def gaussian_mu(proven: Sequence[Statement], *, slack: float) -> float:
    """Return the least `mu` such that a `mu`-Gaussian, with `slack`, is at least as revealing.

    >>> round(gaussian_mu([(1.0, 0.0)], slack=0.0), 4)  # 2 Phi^-1(e / (1 + e)), for randomized response
    1.232
    """
    known = np.array([s for s in proven if 0 <= s[0] <= _LARGEST and 0 <= s[1] < 1], dtype=np.float64)
    if len(known) == 0 or float(known[:, 1].min()) > slack:
        return math.inf
    if np.any((known[:, 0] == 0) & (known[:, 1] <= slack)):
        return 0.0
    log_x = _corners(known[:, 0], known[:, 1])
    log_scale = math.log1p(-slack)
    # The most that a test with false alarms x finds, as the statements allow, less what the slack explains.
    allowed = np.min(known[:, 1, None] + np.exp(known[:, 0, None] + log_x[None, :]), axis=0)
    counts = allowed > slack
    found, log_x = allowed[counts], log_x[counts]
    lost = _LAST_DIGIT * (1 + float(known[:, 0].max()))
    with np.errstate(divide="ignore"):
        log_found = np.log(found - slack) - log_scale
        # Left of the diagonal it misses at least x, which may be smaller than the last digit of 1 - found.
        log_missed = np.maximum(np.log(np.maximum(1 - found - lost, 0.0)), log_x) - log_scale
    quantile = np.where(
        found > 0.5, -ndtri_exp(np.minimum(log_missed, 0.0)), ndtri_exp(np.minimum(log_found, 0.0))
    )
    needed = quantile - ndtri_exp(np.minimum(log_x - log_scale, 0.0))
    worst = float(np.max(needed, initial=0.0))
    return worst * (1 + _ROUNDING) + _ROUNDING


def _corners(epsilon: Floats, delta: Floats) -> Floats:
    """Return the logarithms of all x where two of the lines delta + e^epsilon x meet, or one meets 1 - x.

    Every corner of their minimum left of the diagonal is among them; other points are checked in vain.
    """
    on_diagonal = np.log1p(-delta) - np.logaddexp(0.0, epsilon)
    i, j = np.triu_indices(len(epsilon), k=1)
    steep, flat = np.where(epsilon[i] > epsilon[j], i, j), np.where(epsilon[i] > epsilon[j], j, i)
    meet = (epsilon[steep] > epsilon[flat]) & (delta[flat] > delta[steep])
    steep, flat = steep[meet], flat[meet]
    log_x = (
        np.log(delta[flat] - delta[steep])
        - epsilon[steep]
        - np.log(-np.expm1(epsilon[flat] - epsilon[steep]))
    )
    return np.concatenate([on_diagonal, log_x[log_x <= math.log(0.5)]])
