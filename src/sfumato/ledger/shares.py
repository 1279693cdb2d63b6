# SPDX-License-Identifier: Apache-2.0
"""The shares of an account: of its delta, and of its budget that one event takes.

Guarantee  `gaussian_share` returns a c such that, for some slack s, the event is dominated by a Gaussian of
           mu with slack s (`accounting.domination`), where mu^2 is at most c times that of the budget's
           Gaussian and s is at most c times the account's slack. So events whose shares sum to at most 1
           together stay within both.
Edge cases An event with a dominating Gaussian of its own takes no slack. An event without one, or a budget
           without one, gives infinity. Doing nothing is free, and nothing else is.
Source     docs/decisions/0003-filter.md.
Not here   The rule that adds shares up: `filters`.
"""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache

from sfumato.accounting import composition, domination, events, gaussian
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.ledger.budget import Budget

__all__ = ["CURRENT_RULE", "SHARES", "Shares", "budget_square", "gaussian_share"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """How a rule divides delta. The four shares add up to 1."""

    gaussian: float  # of the Gaussian that all events together amount to
    slack: float  # of what events have beyond their Gaussians
    renyi: float  # of the Renyi divergence that converts to epsilon
    own: float  # of the events' own deltas, in the counts by Renyi divergence and by epsilon
    theorem: str


SHARES = {
    1: Shares(
        gaussian=0.0,
        slack=0.0,
        renyi=1 / 2,
        own=1 / 2,
        theorem="privacy filter of one Renyi order, or of basic composition, whichever admits "
        "(Feldman and Zrnic 2021; Rogers et al. 2016; Whitehouse et al. 2023)",
    ),
    2: Shares(
        gaussian=1 / 2,
        slack=1 / 4,
        renyi=1 / 16,
        own=3 / 16,
        theorem="privacy filter of Gaussian DP, of one Renyi order, or of basic composition, "
        "whichever admits (Smith and Thakurta 2022; Feldman and Zrnic 2021; Rogers et al. 2016; Whitehouse "
        "et al. 2023)",
    ),
}
CURRENT_RULE = max(SHARES)  # of a new account; an account keeps the rule that it was opened with

_LARGEST_EPSILON = 500.0  # beyond it nothing is promised, and no Gaussian is looked for
_LEAST_GUESS = 1e-6  # of the slack: smaller deltas would cost more than they save


@lru_cache(maxsize=1 << 10)
def budget_square(budget: Budget, rule: int) -> float:
    """Return mu^2 of the Gaussian that just meets a budget at its share of delta; 0 if there is none.

    >>> round(budget_square(Budget(epsilon=3, delta=1e-5), 2), 3)
    0.484
    """
    delta = budget.delta * SHARES[rule].gaussian
    if not (delta > 0 and budget.epsilon < _LARGEST_EPSILON):
        return 0.0
    return gaussian.stddev_for(budget.epsilon, delta, 1.0) ** -2


def gaussian_share(event: events.DpEvent, relation: Relation, budget: Budget, rule: int) -> float:
    """Return the share of an account that an event takes by the Gaussian count.

    >>> budget = Budget(epsilon=3, delta=1e-5)
    >>> run = events.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=500)
    >>> round(gaussian_share(run, Relation.ADD_REMOVE, budget, 2), 2)
    0.18
    """
    whole, parts = budget_square(budget, rule), events.leaves(event)
    if not parts:
        return 0.0
    if not whole > 0:
        return math.inf
    try:
        share = _share(event, relation, whole, budget.delta * SHARES[rule].slack)
    except (UnsupportedEventError, InvalidParameterError):
        return math.inf  # extreme numbers: another count may know them
    least = sys.float_info.min * sum(parts.values())
    return max(share, least) if 0 <= share < math.inf else math.inf


def _share(event: events.DpEvent, relation: Relation, whole: float, all_slack: float) -> float:
    scale = events.gaussian_scale(event)
    if scale is not None:
        return (relation.diameter / scale) ** 2 / whole
    stated = _share_as_stated(event, relation, whole, all_slack)
    if stated < math.inf and sum(events.leaves(event).values()) == 1:
        return stated  # one release that is stated by its epsilon has little to gain from a search
    return min(stated, _share_by_profile(event, relation, whole, all_slack))


def _share_as_stated(event: events.DpEvent, relation: Relation, whole: float, all_slack: float) -> float:
    """Return the share of an event of which only basic composition is used: its delta is its slack."""
    try:
        epsilon, delta = composition.basic(event, relation)
    except UnsupportedEventError:
        return math.inf
    if not delta < all_slack:
        return math.inf
    return max(delta / all_slack, domination.gaussian_mu([(epsilon, delta)], slack=delta) ** 2 / whole)


def _share_by_profile(event: events.DpEvent, relation: Relation, whole: float, all_slack: float) -> float:
    # The more slack, the smaller mu. A guess at the share decides the slack; any guess is sound.
    epsilon = quick_epsilon(event, delta=all_slack, relation=relation)
    if not epsilon < _LARGEST_EPSILON:
        return math.inf
    guess = gaussian.stddev_for(epsilon, all_slack, 1.0) ** -2 / whole
    guess = min(1.0, max(guess, _LEAST_GUESS))
    slack = guess * all_slack
    proven = domination.statements(event, slack=slack, relation=relation)
    return max(guess, domination.gaussian_mu(proven, slack=slack) ** 2 / whole)
