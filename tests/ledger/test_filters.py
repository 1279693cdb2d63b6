# SPDX-License-Identifier: Apache-2.0
"""The stop rule keeps its promise against an adversary who chooses every event after seeing all results."""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import events, rdp
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon
from sfumato.errors import UnsupportedEventError
from sfumato.ledger import Budget
from sfumato.ledger.filters import Cost, Filter, choose_order, cost, total
from sfumato.ledger.shares import CURRENT_RULE, SHARES

NOTHING = Cost(renyi=0.0, epsilon=0.0, delta=0.0, gaussian=0.0)
ADD_REMOVE = Relation.ADD_REMOVE

Choice = Callable[[float, int], events.DpEvent | None]


def _filter(epsilon: float, delta: float, rule: int = CURRENT_RULE) -> Filter:
    budget = Budget(epsilon=epsilon, delta=delta)
    return Filter(budget=budget, order=choose_order(budget, rule), rule=rule)


def _price(rule: Filter, event: events.DpEvent, relation: Relation = ADD_REMOVE) -> Cost:
    return cost(events.to_json(event), relation, rule)


# --- an exact adversary -----------------------------------------------------------------------------------
# Randomized response is the worst mechanism of its (epsilon, delta), and its few results can be listed: the
# divergence of all that an adaptive analyst can see is then a finite sum, without any accountant.


def _outcomes(event: events.DpEvent) -> list[tuple[float, float]]:
    """Return (P, Q) of each result of randomized response that is exactly this private."""
    delta = event.delta if isinstance(event, events.ApproximateDpEvent) else 0.0
    truth = 1 / (1 + math.exp(-event.epsilon))  # type: ignore[attr-defined]
    told = [
        ((1 - delta) * truth, (1 - delta) * (1 - truth)),
        ((1 - delta) * (1 - truth), (1 - delta) * truth),
    ]
    return told + ([(delta, 0.0), (0.0, delta)] if delta else [])


def _divergence(
    rule: Filter, choose: Choice, epsilon: float | Callable[[Cost], float], depth: int = 9
) -> float:
    """Return the exact hockey-stick divergence of what an analyst sees who goes on while `rule` admits.

    `epsilon` may be a reading: a function of what was spent when the analyst stopped.
    """

    def from_here(p: float, q: float, spent: Cost, step: int) -> float:
        loss = math.inf if q == 0 else -math.inf if p == 0 else math.log(p / q)
        event = choose(loss, step) if step < depth else None
        after = total([spent, _price(rule, event)]) if event is not None else NOTHING
        if event is None or not rule.admits(after):
            return max(0.0, p - math.exp(epsilon(spent) if callable(epsilon) else epsilon) * q)
        return math.fsum(from_here(p * a, q * b, after, step + 1) for a, b in _outcomes(event))

    return from_here(1.0, 1.0, NOTHING, 0)


def _greedy(size: float) -> Choice:
    """Go on while the loss is small, with a size that depends on it; stop as soon as much has leaked."""

    def choose(loss: float, step: int) -> events.DpEvent | None:
        return None if abs(loss) > 2 else events.PureDpEvent(size * (1.5 if loss > 0 else 0.5))

    return choose


def _leaky(size: float, delta: float) -> Choice:
    def choose(loss: float, step: int) -> events.DpEvent | None:
        if not math.isfinite(loss):
            return None
        if step < 2 and loss >= 0:
            return events.ApproximateDpEvent(size, delta)
        return events.PureDpEvent(size * (0.5 if loss > 0 else 1.5))

    return choose


STRATEGIES = [_greedy(0.2), _greedy(0.35), _greedy(0.6), _leaky(0.3, 0.01), _leaky(0.5, 0.02)]


@pytest.mark.parametrize("choose", STRATEGIES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.5, 0.05), (1.0, 0.1), (1.5, 0.04)])
@pytest.mark.parametrize("rule", SHARES)
def test_no_adaptive_analyst_gets_more_than_the_budget(
    choose: Choice, epsilon: float, delta: float, rule: int
) -> None:
    assert _divergence(_filter(epsilon, delta, rule), choose, epsilon) <= delta + 1e-12


@pytest.mark.parametrize("choose", STRATEGIES)
def test_a_rule_for_four_times_the_epsilon_is_caught(choose: Choice) -> None:
    wrong = _filter(2.4, 0.05, rule=1)
    assert _divergence(wrong, choose, 0.6) > 0.05  # the check above has power


@pytest.mark.parametrize("choose", STRATEGIES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 0.1), (1.5, 0.04), (3.0, 0.2)])
@pytest.mark.parametrize("rule", SHARES)
def test_what_is_said_to_be_spent_holds_for_readers_who_choose_the_moment(
    choose: Choice, epsilon: float, delta: float, rule: int
) -> None:
    honest = _filter(epsilon, delta, rule)
    assert _divergence(honest, choose, honest.odometer) <= delta + 1e-12


def test_an_odometer_that_reads_half_is_caught() -> None:
    rule = _filter(1.5, 0.04)
    found = [_divergence(rule, choose, lambda spent: rule.odometer(spent) / 2) for choose in STRATEGIES]
    assert max(found) > 0.04


def test_the_odometer_has_no_second_branch_for_very_little() -> None:
    # Below a divergence of about delta^2 the total variation is below delta: older versions said 0.
    rule = _filter(1.0, 1e-2, rule=1)
    almost_nothing = Cost(renyi=1e-9, epsilon=math.inf, delta=0.0)
    curve = rdp.RdpCurve(orders=np.array([rule.order]), values=np.array([1e-9]))
    assert rdp.epsilon_of(curve, 5e-3) == 0
    assert rule.odometer(almost_nothing) > 0.1


def test_a_rule_that_forgets_the_deltas_is_caught() -> None:
    class Forgetful(Filter):
        def admits(self, spent: Cost) -> bool:
            forgotten = Cost(renyi=spent.renyi, epsilon=spent.epsilon, delta=0.0)
            return Filter.admits(self, forgotten)

    honest = _filter(0.5, 0.02)
    forgetful = Forgetful(budget=honest.budget, order=honest.order)
    choose: Choice = lambda loss, step: events.ApproximateDpEvent(0.01, 0.01)  # noqa: E731
    assert _divergence(honest, choose, 0.5, depth=6) <= 0.02
    assert _divergence(forgetful, choose, 0.5, depth=6) > 0.02


# --- the rule ---------------------------------------------------------------------------------------------

any_event = st.one_of(
    st.floats(0.5, 50).map(dp.GaussianDpEvent),
    st.floats(0.5, 50).map(dp.LaplaceDpEvent),
    st.floats(0.01, 2).map(events.PureDpEvent),
    st.tuples(st.floats(0.01, 1), st.floats(1e-9, 1e-6)).map(lambda t: events.ApproximateDpEvent(*t)),
    st.floats(0.5, 5).map(lambda s: dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(s))),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(any_event, max_size=12), st.floats(0.1, 10), st.sampled_from([1e-3, 1e-6]))
def test_what_is_admitted_is_within_the_budget_as_a_fixed_plan(
    offered: list[events.DpEvent], epsilon: float, delta: float
) -> None:
    rule, admitted, spent = _filter(epsilon, delta), [], NOTHING
    for event in offered:
        after = total([spent, _price(rule, event)])
        if rule.admits(after):
            admitted.append(event)
            spent = after
    everything = events.compose(*admitted)
    plain = math.fsum(_price(rule, event).epsilon for event in admitted)
    assert min(plain, quick_epsilon(everything, delta=delta, relation=ADD_REMOVE)) <= epsilon * (1 + 1e-4)
    assert rule.smallest_epsilon(spent) <= epsilon * (1 + 1e-9)
    assert rule.odometer(spent) <= epsilon
    assert 0 <= rule.fraction(spent) <= 1


@settings(deadline=None, max_examples=60)
@given(st.lists(any_event, min_size=1, max_size=8), st.floats(0.1, 10), st.floats(0, 3))
def test_what_a_budget_admits_a_raised_one_admits_too(
    offered: list[events.DpEvent], epsilon: float, more: float
) -> None:
    rule = _filter(epsilon, 1e-6)
    raised = Filter(
        budget=Budget(epsilon=epsilon + more, delta=1e-6 * (1 + more)),
        order=rule.order,
        earlier=(rule.budget,),
    )
    spent, later = (total(_price(r, event) for event in offered) for r in (rule, raised))
    assert later.gaussian <= spent.gaussian
    assert raised.admits(later) or not rule.admits(spent)


def test_ten_tenths_fit_in_one() -> None:
    rule = _filter(1.0, 0.0)
    tenths = [_price(rule, events.PureDpEvent(0.1))] * 10
    assert rule.admits(total(tenths))
    assert not rule.admits(total([*tenths, _price(rule, events.PureDpEvent(1e-9))]))


def test_many_gaussians_fit_where_basic_composition_has_no_answer() -> None:
    rule = _filter(3.0, 1e-6)
    one = _price(rule, dp.GaussianDpEvent(40.0))
    assert one.epsilon == math.inf
    fitting = int(rule.allowance.gaussian / one.gaussian)
    assert fitting > 100
    assert rule.allowance.renyi / one.renyi < 0.9 * fitting  # the Renyi count alone admits fewer
    assert rule.admits(total([one] * fitting))
    assert not rule.admits(total([one] * (fitting + 1)))


def test_few_large_pure_events_fit_by_their_sum_where_the_renyi_count_refuses() -> None:
    rule = _filter(1.0, 1e-9)
    whole = _price(rule, events.PureDpEvent(1.0))
    assert whole.renyi > rule.allowance.renyi
    assert rule.admits(whole)


def test_a_gaussian_after_the_renyi_count_is_used_up_is_refused_although_pure_events_still_fit() -> None:
    rule = _filter(1.0, 1e-9)
    spent = _price(rule, events.PureDpEvent(0.9))
    assert not rule.admits(total([spent, _price(rule, dp.GaussianDpEvent(1e3))]))
    assert rule.admits(total([spent, _price(rule, events.PureDpEvent(0.1))]))


@pytest.mark.parametrize("rule_number", SHARES)
def test_own_deltas_may_take_their_share_of_the_budget_and_no_more(rule_number: int) -> None:
    rule = _filter(1.0, 1e-6, rule_number)
    whole = rule.shares.own * 1e-6
    share = _price(rule, events.ApproximateDpEvent(0.1, whole))
    assert share.delta == whole
    assert rule.admits(share)
    assert not rule.admits(total([share, _price(rule, events.ApproximateDpEvent(0.1, 1e-12))]))


def test_a_delta_counted_in_two_different_ways_is_charged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = _filter(1.0, 1e-2)
    monkeypatch.setattr("sfumato.accounting.composition.basic", lambda event, relation: (0.2, 3e-4))
    other = events.to_json(events.ApproximateDpEvent(0.12345, 1e-4))
    assert cost(other, ADD_REMOVE, rule).delta == pytest.approx(4e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_an_event_without_privacy_is_never_priced(delta: float) -> None:
    rule = _filter(1.0, delta)
    with pytest.raises(UnsupportedEventError, match="NonPrivateDpEvent"):
        _price(rule, dp.ComposedDpEvent([events.PureDpEvent(0.1), dp.NonPrivateDpEvent()]))


def test_a_gaussian_has_no_price_in_a_pure_account() -> None:
    with pytest.raises(UnsupportedEventError, match="delta=0"):
        _price(_filter(1.0, 0.0), dp.GaussianDpEvent(1.0))


def test_a_refused_event_says_why() -> None:
    with pytest.raises(UnsupportedEventError, match="cannot be priced under add-remove"):
        _price(_filter(1.0, 1e-6), dp.RandomizedResponseDpEvent(0.5, 2))


def test_an_accountant_that_answers_nan_gives_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.accounting.composition.basic", lambda event, relation: (math.nan, 0.0))
    with pytest.raises(UnsupportedEventError):
        cost(events.to_json(events.PureDpEvent(0.54321)), ADD_REMOVE, _filter(1.0, 0.0))


TINY = Budget(epsilon=1e-30, delta=1e-300)
OFTEN = 10**307


@pytest.mark.parametrize(
    "event",
    [
        events.PureDpEvent(1e-165),
        dp.GaussianDpEvent(1e165),
        dp.PoissonSampledDpEvent(1e-165, events.PureDpEvent(1e-165)),
        dp.PoissonSampledDpEvent(1e-165, dp.GaussianDpEvent(1e165)),
    ],
)
def test_a_cost_too_small_for_a_float_is_not_free(event: events.DpEvent) -> None:
    rule = Filter(budget=TINY, order=choose_order(TINY))
    assert _price(rule, event).renyi > 0
    assert not rule.admits(_price(rule, dp.SelfComposedDpEvent(event, OFTEN)))
    # An order at which the budget has room by the Renyi count, and the lost costs would have fitted.
    roomy = Filter(budget=Budget(epsilon=1e-3, delta=1e-2), order=1e6, rule=1)
    assert roomy.allowance.renyi > 0
    assert not roomy.admits(_price(roomy, dp.SelfComposedDpEvent(event, OFTEN)))


def test_doing_nothing_is_free() -> None:
    assert _price(_filter(1.0, 1e-6), dp.NoOpDpEvent()) == NOTHING


def test_a_delta_too_small_for_a_float_does_not_pass_as_pure() -> None:
    event = dp.PoissonSampledDpEvent(1e-200, events.ApproximateDpEvent(0.1, 1e-200))
    price = _price(_filter(1.0, 0.0), event)
    assert price.delta > 0
    assert not _filter(1.0, 0.0).admits(price)


def test_what_has_no_epsilon_does_not_fit_in_the_largest_one() -> None:
    rule = _filter(sys.float_info.max, 1e-6)
    assert not rule.admits(Cost(renyi=math.inf, epsilon=math.inf, delta=0.0))


def test_the_order_is_close_to_the_best_for_gaussian_noise() -> None:
    for epsilon in (0.01, 0.1, 1.0, 3.0, 10.0, 50.0):
        rule = _filter(epsilon, 1e-6, rule=1)
        fine = 1 + np.geomspace(1e-2, 1e5, 4000)
        best = max(rdp.largest_rdp(epsilon=epsilon, delta=5e-7, order=float(a)) / a for a in fine)
        assert rule.order is not None
        assert rule.allowance.renyi / rule.order > 0.97 * best


def test_what_is_said_to_be_left_fits_and_hardly_more_does() -> None:
    rule = _filter(2.0, 1e-6)
    spent = total([_price(rule, dp.GaussianDpEvent(8.0)), _price(rule, events.ApproximateDpEvent(0.1, 1e-8))])
    left = rule.largest_epsilon(spent, delta=0.0, relation=ADD_REMOVE)
    assert rule.admits(total([spent, _price(rule, events.PureDpEvent(left))]))
    assert not rule.admits(total([spent, _price(rule, events.PureDpEvent(left * 1.001))]))
    noise = rule.least_noise_multiplier(spent, relation=ADD_REMOVE)
    assert rule.admits(total([spent, _price(rule, dp.GaussianDpEvent(noise * 1.0001))]))
    assert not rule.admits(total([spent, _price(rule, dp.GaussianDpEvent(noise * 0.999))]))


def test_replaced_units_leave_half_as_much_noise_room() -> None:
    rule = _filter(2.0, 1e-6)
    plain = rule.least_noise_multiplier(NOTHING, relation=ADD_REMOVE)
    assert rule.least_noise_multiplier(NOTHING, relation=Relation.REPLACE_ONE) == pytest.approx(2 * plain)
