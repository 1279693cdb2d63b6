# SPDX-License-Identifier: Apache-2.0
"""An account admits what it says is left, at the noise of the plan, and no adaptive analyst gets more."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from scipy.special import ndtr

from sfumato.accounting import events, gaussian
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.plan import plan
from sfumato.errors import BudgetExceededError
from sfumato.ledger import Account, Budget, Ledger
from sfumato.ledger.filters import Filter, choose_order, cost
from sfumato.ledger.shares import CURRENT_RULE, SHARES, budget_square, gaussian_share

ADD_REMOVE = Relation.ADD_REMOVE
New = Callable[..., Account]
# (epsilon, delta, sampling rate, steps): noise multipliers from 0.54 to 4.5
RUNS = [
    (3, 1e-5, 0.01, 500),
    (1, 1e-5, 0.01, 500),
    (8, 1e-5, 0.01, 500),
    (3, 1e-5, 0.1, 300),
    (2, 1e-6, 1.0, 20),
]


def test_the_shares_of_delta_add_up_to_all_of_it() -> None:
    for shares in SHARES.values():
        assert shares.gaussian + shares.slack + shares.renyi + shares.own == 1


# --- the account and the plan agree -------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps"), RUNS)
def test_an_unused_account_admits_the_plan_for_all_of_it_and_nothing_after(
    new_account: New, epsilon: float, delta: float, rate: float, steps: int
) -> None:
    account = new_account(epsilon=epsilon, delta=delta)
    assert account.remaining().run_epsilon == epsilon
    whole = plan(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
    account.reserve(whole.event(), purpose="all", relation=ADD_REMOVE)
    assert account.spent().epsilon <= epsilon
    assert account.remaining().run_epsilon == account.remaining().fraction == 0
    for event in (dp.GaussianDpEvent(1e6), events.PureDpEvent(1e-9)):
        with pytest.raises(BudgetExceededError, match="Nothing is left"):
            account.reserve(event, purpose="more", relation=ADD_REMOVE)


@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps"), RUNS)
def test_a_later_run_asked_for_what_is_left_costs_at_most_3_percent_more_noise_than_planned(
    new_account: New, epsilon: float, delta: float, rate: float, steps: int
) -> None:
    account = new_account(epsilon=epsilon, delta=delta)
    first = plan(epsilon=epsilon / 3, delta=delta, sampling_rate=rate, steps=steps)
    account.reserve(first.event(), purpose="first", relation=ADD_REMOVE).begin()
    left = account.remaining().run_epsilon
    assert left > 0.8 * epsilon  # basic composition would leave two thirds
    planned = plan(epsilon=left, delta=delta, sampling_rate=rate, steps=steps)
    noise = account.calibrate(
        lambda s: events.dp_sgd(noise_multiplier=s, sampling_rate=rate, steps=steps),
        bracket=(0.9 * planned.noise_multiplier, 2 * planned.noise_multiplier),
    )
    assert noise <= 1.03 * planned.noise_multiplier
    event = events.dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    account.reserve(event, purpose="all that is left", relation=ADD_REMOVE)
    joint = plan(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps, given=first.event())
    assert joint.noise_multiplier <= noise <= 1.06 * joint.noise_multiplier


def test_the_message_names_what_is_then_admitted(new_account: New) -> None:
    account = new_account(epsilon=3, delta=1e-5)
    account.reserve(dp.GaussianDpEvent(4.0), purpose="first", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError) as refused:
        account.reserve(dp.GaussianDpEvent(1.0), purpose="too much", relation=ADD_REMOVE)
    epsilon = float(str(refused.value).split("Gaussian release of at most epsilon=")[1].split(" ")[0])
    assert epsilon == pytest.approx(account.remaining().run_epsilon, rel=1e-3)
    noise = gaussian.stddev_for(epsilon, 1e-5, 1.0)
    account.reserve(dp.GaussianDpEvent(noise), purpose="what it said", relation=ADD_REMOVE)


def test_a_refund_makes_an_account_unused_again(new_account: New) -> None:
    account = new_account(epsilon=3, delta=1e-5)
    whole = plan(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=500).event()
    account.reserve(whole, purpose="all", relation=ADD_REMOVE).refund()
    account.reserve(whole, purpose="all again", relation=ADD_REMOVE)
    assert not account.admits(whole)


def test_a_run_beside_any_other_is_not_priced_alone(new_account: New) -> None:
    account = new_account(epsilon=3, delta=1e-5)
    whole = plan(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=500).event()
    account.reserve(dp.GaussianDpEvent(1e5), purpose="almost nothing", relation=ADD_REMOVE)
    assert not account.admits(whole)


def test_a_ledger_whose_only_release_takes_everything_verifies(new_account: New, path: object) -> None:
    account = new_account(epsilon=3, delta=1e-5)
    whole = plan(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=500).event()
    account.reserve(whole, purpose="all", relation=ADD_REMOVE)
    assert Ledger(str(path)).verify().overspent == ()


def test_a_grant_prices_what_was_released_anew(new_account: New) -> None:
    account = new_account(epsilon=1, delta=1e-5)
    account.reserve(dp.GaussianDpEvent(5.0), purpose="p", relation=ADD_REMOVE)
    before = account.remaining()
    account.grant(epsilon=2, reason="r")
    after = account.remaining()
    assert after.fraction > before.fraction
    assert after.run_epsilon > before.run_epsilon + 1.5


def test_an_account_of_an_early_version_keeps_its_rule() -> None:
    budget = Budget(epsilon=3, delta=1e-5)
    old, new = (Filter(budget=budget, order=choose_order(budget, rule), rule=rule) for rule in (1, 2))
    assert old.allowance.gaussian == 0
    assert old.allowance.delta == 5e-6
    assert new.allowance.gaussian == 1


# --- the shares
# -----------------------------------------------------------------------------------------------


def test_gaussians_take_the_square_of_what_they_reveal_and_no_slack() -> None:
    budget = Budget(epsilon=3, delta=1e-5)
    noise = 1 / math.sqrt(budget_square(budget, CURRENT_RULE))
    for relation in (ADD_REMOVE, Relation.REPLACE_ONE):
        event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise * relation.diameter * 3), 9)
        assert gaussian_share(event, relation, budget, CURRENT_RULE) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_more_noise_and_fewer_steps_never_take_a_larger_share(noise: float) -> None:
    budget = Budget(epsilon=3, delta=1e-5)

    def share(noise: float, steps: int) -> float:
        run = events.dp_sgd(noise_multiplier=noise, sampling_rate=0.02, steps=steps)
        return gaussian_share(run, ADD_REMOVE, budget, CURRENT_RULE)

    assert share(noise * 1.1, 100) < share(noise, 100) < share(noise, 150)


# --- an exact adversary who may also use Gaussians
# -------------------------------------------------------------- The first result is a Gaussian; the second
# event is chosen by the loss of the first. With the first result on a fine grid, both divergences are plain
# integrals: no accountant takes part.


def _second_stage(loss: np.ndarray, mu: np.ndarray, epsilon: float) -> np.ndarray:
    """Return E_P[(1 - e^(epsilon - loss - L))_+], L being the loss of a Gaussian of mu; mu 0 is no event."""
    left = epsilon - loss
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        later = ndtr(mu / 2 - left / mu) - np.exp(left) * ndtr(-mu / 2 - left / mu)
    return np.where(mu > 0, later, np.maximum(0.0, -np.expm1(left)))


def _divergence(first: float, second: Callable[[np.ndarray], np.ndarray], epsilon: float) -> float:
    z = np.linspace(-12, 12, 200_001)
    loss = first * z + first**2 / 2  # of N(first, 1) against N(0, 1), under the first
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return float(np.sum(weight * _second_stage(loss, second(loss), epsilon)))


def _rules(share: float, whole: float) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Give ways to choose mu of a second Gaussian, within what a share of mu^2 = whole leaves, by the first
    loss."""
    most = math.sqrt((1 - share) * whole)
    yield lambda loss: np.full_like(loss, most)
    for cut in (0.0, 0.5, 1.0, 2.0):
        yield lambda loss, cut=cut: np.where(loss > cut, most, 0.0)
        yield lambda loss, cut=cut: np.where(loss < cut, most, 0.0)
    yield lambda loss: most / (1 + np.exp(-3 * loss))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (3.0, 1e-5), (0.5, 1e-3)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_choice_of_a_second_gaussian_exceeds_the_budget(
    epsilon: float, delta: float, share: float
) -> None:
    budget = Budget(epsilon=epsilon, delta=delta)
    whole = budget_square(budget, CURRENT_RULE)
    rule = Filter(budget=budget, order=choose_order(budget))
    first = math.sqrt(share * whole)
    price = cost(events.to_json(dp.GaussianDpEvent(1 / first)), ADD_REMOVE, rule)
    assert price.gaussian == pytest.approx(share)
    allowed = delta * SHARES[CURRENT_RULE].gaussian
    for second in _rules(share, whole):
        assert _divergence(first, second, epsilon) <= allowed * (1 + 1e-6)


def test_a_rule_that_lets_the_second_event_take_what_a_fixed_plan_leaves_is_caught() -> None:
    # The planted mistake: after seeing the first result, choose between two second events that each fit as a
    # fixed plan: a Gaussian, and a release of delta alone. Each is within delta, and the choice by the loss
    # is not.
    epsilon, delta = 1.0, 1e-2
    whole = gaussian.stddev_for(epsilon, delta, 1.0) ** -2
    first = math.sqrt(0.5 * whole)
    z = np.linspace(-12, 12, 200_001)
    loss = first * z + first**2 / 2
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    by_gaussian = _second_stage(loss, np.full_like(loss, first), epsilon)
    nothing = _second_stage(loss, np.zeros_like(loss), epsilon)
    spare = delta - float(np.sum(weight * nothing))  # what a fixed plan would still give away as delta
    by_delta = spare + (1 - spare) * nothing
    for fixed in (by_gaussian, by_delta):
        assert float(np.sum(weight * fixed)) <= delta * (1 + 1e-6)
    assert float(np.sum(weight * np.maximum(by_gaussian, by_delta))) > 1.3 * delta


def test_a_filter_that_forgets_the_first_event_is_caught() -> None:
    budget = Budget(epsilon=1.0, delta=1e-2)
    whole = budget_square(budget, CURRENT_RULE)
    again = lambda loss: np.full_like(loss, math.sqrt(whole))  # noqa: E731
    assert _divergence(math.sqrt(whole), again, 1.0) > 1e-2
