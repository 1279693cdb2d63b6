# SPDX-License-Identifier: Apache-2.0
"""What an account has spent and what it would still admit, and the error when a release does not fit.

Each figure errs towards less: epsilons are rounded down, the noise multiplier is rounded up.
"""

import math
from dataclasses import dataclass

from sfumato.accounting import gaussian
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.errors import BudgetExceededError
from sfumato.ledger import filters
from sfumato.ledger.charge import Charge
from sfumato.ledger.state import AccountState

__all__ = ["Remaining", "exceeded", "needed_epsilon", "remaining", "spent_guarantee"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remaining:
    """What an account would still admit as one more release. Each figure errs towards less.

    Attributes:
        epsilon: The largest epsilon of a release of which nothing else is known.
        run_epsilon: The largest epsilon, at the account's delta, of a Gaussian release or a DP-SGD run.
        noise_multiplier: The smallest one of a Gaussian release; infinite if none fits.
        delta: What is left for releases with a delta of their own.
        fraction: The part of the filter that is left, from 0 to 1.
    """

    epsilon: float
    run_epsilon: float
    noise_multiplier: float
    delta: float
    fraction: float


def spent_guarantee(state: AccountState) -> Guarantee:
    """Return the guarantee of everything an account has released, valid at every moment it is read."""
    return Guarantee(
        epsilon=state.filter.odometer(state.spent()),
        delta=state.budget.delta,
        relation=state.relation,
        privacy_unit=state.privacy_unit,
    )


def remaining(state: AccountState, *, delta: float = 0.0) -> Remaining:
    """Return what an account would still admit."""
    spent, rule = state.spent(), state.filter
    noise = _least_noise_multiplier(state)
    return Remaining(
        epsilon=rule.largest_epsilon(spent, delta=delta, relation=state.relation),
        run_epsilon=_run_epsilon(state, noise),
        noise_multiplier=noise,
        delta=max(0.0, rule.allowance.delta - spent.delta),
        fraction=1 - rule.fraction(spent) if state.kept else 0.0,
    )


def _least_noise_multiplier(state: AccountState) -> float:
    noise = state.filter.least_noise_multiplier(state.spent(), relation=state.relation)
    if state.unused and state.budget.delta > 0:
        alone = gaussian.stddev_for(state.budget.epsilon, state.budget.delta, float(state.relation.diameter))
        return min(noise, alone * (1 + 1e-9))  # the price of this noise rounds up
    return noise


def _run_epsilon(state: AccountState, noise_multiplier: float) -> float:
    """Return the epsilon, rounded down, of the Gaussian that is left; all of it if nothing was used."""
    if state.unused:
        return state.budget.epsilon
    if noise_multiplier == math.inf:
        return 0.0
    mu = state.relation.diameter / noise_multiplier
    return gaussian.epsilon(mu, state.budget.delta) * (1 - 1e-9)


def needed_epsilon(state: AccountState, asked: str) -> float:
    """Return the epsilon of a budget that one more event needs; at most the account's exactly if it fits."""
    after = filters.total([state.spent(), state.cost(asked)])
    needs = state.filter.smallest_epsilon(after)
    # The two round differently in the last digit; the filter has the last word.
    if state.filter.admits(after):
        return min(needs, state.budget.epsilon)
    return max(needs, math.nextafter(state.budget.epsilon, math.inf))


def exceeded(purpose: str, asked: Charge, state: AccountState) -> BudgetExceededError:
    """Return the error for a release that does not fit, with what is left."""
    left, price = remaining(state), state.cost(asked.event_json)
    needs = needed_epsilon(state, asked.event_json)
    needs = min(needs, state.alone(asked.event_json)) if state.unused else needs
    if price.delta > 0 and state.spent().delta + price.delta > state.filter.allowance.delta:
        need = f"has a delta of its own of {price.delta:g}, and {_round_down(left.delta):g} is left for those"
    elif math.isfinite(needs):
        need = f"would take everything together to epsilon={round_up(needs):g}"
    else:
        need = "does not fit beside what was released before"
    return BudgetExceededError(
        f"release {purpose!r} {need}, but account {state.name!r} has a budget of {state.budget}. "
        f"{_left(left, state)} or add budget with `sfumato ledger grant`. Nothing was spent for it, and the "
        "data was not touched."
    )


def _left(left: Remaining, state: AccountState) -> str:
    found: list[str] = []
    if left.run_epsilon > 0 and state.budget.delta > 0:
        found.append(
            f"a DP-SGD run or a Gaussian release of at most epsilon={_round_down(left.run_epsilon):g} at "
            f"delta={state.budget.delta:g} (noise multiplier of one Gaussian: "
            f"{round_up(left.noise_multiplier):g})"
        )
    if left.epsilon > 0:
        kind = "a release of any other kind" if found else "one release"
        found.append(f"{kind} of at most epsilon={_round_down(left.epsilon):g} and delta=0")
    return f"Left is {', or '.join(found)}. Ask for that," if found else "Nothing is left. Stop here,"


def _round_down(value: float) -> float:
    return -round_up(-value)
