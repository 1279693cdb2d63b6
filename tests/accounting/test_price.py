# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import events, gaussian, pld, rdp
from sfumato.accounting.guarantee import Guarantee, Relation, round_up
from sfumato.accounting.price import Accountant, price, quick_epsilon
from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedEventError
from sfumato.ledger import Budget, filters

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL
DELTA = 1e-5
SAMPLED = events.dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=1000)

# noise multiplier, steps, exact epsilon under add-remove and replace-one at delta 1e-5: the analytic Gaussian
# (Balle and Wang 2018) as computed for the project's baseline measurements, section 6.
UNSAMPLED = [
    (1, 100, 91.81729, 284.39185),
    (1, 600, 403.54653, 1407.9774),
    (1, 2200, 1299.0841, 4799.1043),
    (5, 100, 9.9972561, 24.381611),
    (5, 600, 32.17668, 88.958344),
    (5, 2200, 83.185286, 255.11591),
    (10, 100, 4.3771781, 9.9972561),
    (10, 600, 12.870662, 32.17668),
    (10, 2200, 30.295341, 83.185286),
    (7, 1000, 28.769262, 78.532268),
    (1.4, 1000, 350.52050, 1212.1208),
    (0.7, 1000, 1212.1208, 4465.9918),
]


@pytest.mark.parametrize(("noise", "steps", "add_remove", "replace_one"), UNSAMPLED)
def test_gaussians_without_sampling_have_their_exact_epsilon(noise, steps, add_remove, replace_one):
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), steps)
    for relation, exact in (
        (ADD_REMOVE, add_remove),
        (ZERO_OUT, add_remove),
        (REPLACE_ONE, replace_one),
        (REPLACE_LABEL, replace_one),
    ):
        found = price(event, delta=DELTA, relation=relation)
        assert found.accountant is Accountant.GAUSSIAN
        assert found.upper == found.epsilon == pytest.approx(exact, rel=6e-8)
        assert found.upper * (1 - 1e-6) - 1e-6 < found.lower < found.upper


def test_gaussians_of_different_noise_are_one_gaussian():
    mixed = dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.GaussianDpEvent(4.0)])
    found = price(mixed, delta=DELTA)
    assert found.accountant is Accountant.GAUSSIAN
    assert found.epsilon == pytest.approx(gaussian.epsilon(5 / 12, DELTA), rel=1e-12)


@pytest.mark.parametrize("relation", list(Relation), ids=lambda r: r.value)
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_a_sum_and_a_noisy_count_of_one_sample_are_one_gaussian_for_every_accountant(relation, rate):
    # Adaptive clipping: the gradient sum and the count of unclipped units come from the same batch.
    both = dp.PoissonSampledDpEvent(
        rate, dp.ComposedDpEvent([dp.GaussianDpEvent(1.5), dp.GaussianDpEvent(8.0)])
    )
    one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1 / math.hypot(1 / 1.5, 1 / 8.0)))
    run_of_both, run_of_one = (dp.SelfComposedDpEvent(event, 100) for event in (both, one))
    for accountant in (None, Accountant.PLD, Accountant.RDP):
        found, expected = (
            price(run, delta=DELTA, relation=relation, accountant=accountant).epsilon
            for run in (run_of_both, run_of_one)
        )
        assert found == pytest.approx(expected, rel=1e-6)
    rule = filters.Filter(budget=Budget(epsilon=3, delta=DELTA), order=8.0)
    costs = [filters.cost(events.to_json(run), relation, rule) for run in (run_of_both, run_of_one)]
    assert costs[0].renyi == pytest.approx(costs[1].renyi, rel=1e-9)
    assert costs[0].gaussian == pytest.approx(costs[1].gaussian, rel=1e-6)
    assert costs[0].delta == costs[1].delta == 0
    apart = dp.ComposedDpEvent([dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(s)) for s in (1.5, 8.0)])
    assert price(run_of_both, delta=DELTA, relation=relation).epsilon != pytest.approx(
        price(dp.SelfComposedDpEvent(apart, 100), delta=DELTA, relation=relation).epsilon, rel=1e-3
    )  # two samples, drawn apart, are another mechanism


# --- which accountant answers ----------------------------------------------------------------------------


def test_sampled_gaussians_are_priced_by_their_privacy_losses():
    found = price(SAMPLED, delta=DELTA)
    assert found.accountant is Accountant.PLD
    assert (found.lower, found.upper) == pld.interval(SAMPLED, delta=DELTA, relation=ADD_REMOVE)
    assert "Zhu et al. 2022" in found.theorem


def test_an_event_without_a_pair_goes_to_the_least_of_the_other_accountants():
    event = dp.ComposedDpEvent([dp.ZCDpEvent(0.1, 0.0), SAMPLED])
    found = price(event, delta=DELTA)
    assert found.accountant is Accountant.RDP and found.lower == 0
    assert found.epsilon == rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE)


def test_exponential_mechanisms_take_the_better_of_renyi_and_loss_distribution():
    for epsilon, steps in ((0.7, 30), (0.7, 3000), (2.0, 1), (0.01, 10)):
        event = dp.SelfComposedDpEvent(events.ExponentialDpEvent(epsilon), steps)
        by_loss = pld.interval(event, delta=DELTA, relation=ADD_REMOVE)[1]
        by_renyi = rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE)
        found = price(event, delta=DELTA)
        assert found.epsilon <= min(by_loss, by_renyi)
        assert quick_epsilon(event, delta=DELTA, relation=ADD_REMOVE) <= min(by_loss * (1 + 1e-3), by_renyi)


def test_huge_epsilons_take_the_least_of_all():
    event = events.PureDpEvent(2000.0)
    assert price(event, delta=DELTA).epsilon == pytest.approx(2000.0, rel=1e-8)
    barely = events.dp_sgd(noise_multiplier=0.02, sampling_rate=0.5, steps=100)
    assert price(barely, delta=DELTA).epsilon <= rdp.epsilon(barely, delta=DELTA, relation=ADD_REMOVE)


@pytest.mark.parametrize("accountant", list(Accountant))
def test_a_named_accountant_is_used_and_is_never_below_the_tightest(accountant):
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(30.0), 4)
    if accountant in (Accountant.BASIC, Accountant.ADVANCED, Accountant.OPTIMAL):
        event = dp.SelfComposedDpEvent(events.PureDpEvent(0.02), 50)
    found = price(event, delta=DELTA, accountant=accountant)
    assert found.accountant is accountant
    assert found.theorem == accountant.theorem and "20" in found.theorem  # a source with its year
    assert found.epsilon >= price(event, delta=DELTA).epsilon * (1 - 1e-7)
    assert price(event, delta=DELTA, accountant=accountant.value) == found


def test_an_unknown_accountant_is_refused_by_name():
    with pytest.raises(InvalidParameterError, match=r"unknown accountant 'moments'.*basic, advanced"):
        price(SAMPLED, delta=DELTA, accountant="moments")


@pytest.mark.parametrize(
    ("event", "relation", "accountant", "words"),
    [
        (SAMPLED, ADD_REMOVE, Accountant.GAUSSIAN, "compositions of Gaussian events only"),
        (SAMPLED, ADD_REMOVE, Accountant.ZCDP, "."),
        (dp.ZCDpEvent(0.1, 0.0), ADD_REMOVE, Accountant.PLD, "no dominating pair for ZCDpEvent"),
        (
            dp.RandomizedResponseDpEvent(0.5, 2),
            ADD_REMOVE,
            None,
            "no accountant can price this event under add",
        ),
        (events.ParallelDpEvent([events.PureDpEvent(1.0)]), REPLACE_ONE, None, "no accountant can price"),
        (dp.UnsupportedDpEvent(), ADD_REMOVE, None, "no accounting for events of type UnsupportedDpEvent"),
    ],
    ids=str,
)
def test_an_event_that_cannot_be_priced_is_an_error_of_both_kinds(event, relation, accountant, words):
    with pytest.raises(UnsupportedEventError, match=words) as caught:
        price(event, delta=DELTA, relation=relation, accountant=accountant)
    assert isinstance(caught.value, SfumatoError) and isinstance(caught.value, TypeError)


# --- parallel composition, nothing, no protection --------------------------------------------------------


def test_parallel_mechanisms_cost_what_the_dearest_costs():
    cheap, dear = dp.GaussianDpEvent(10.0), SAMPLED
    parallel = events.ParallelDpEvent([cheap, dear, events.PureDpEvent(0.1)])
    for relation in (ADD_REMOVE, ZERO_OUT, REPLACE_LABEL):
        found = price(parallel, delta=DELTA, relation=relation)
        assert found == price(dear, delta=DELTA, relation=relation)
    both = price(dp.ComposedDpEvent([parallel, cheap]), delta=DELTA)  # not at the root: RDP, still valid
    assert both.epsilon > price(dear, delta=DELTA).epsilon


def test_nothing_costs_nothing_and_no_protection_costs_everything():
    assert price(dp.NoOpDpEvent(), delta=DELTA).epsilon == 0
    for event in (dp.NonPrivateDpEvent(), dp.ComposedDpEvent([SAMPLED, dp.NonPrivateDpEvent()])):
        found = price(event, delta=DELTA)
        assert found.lower == found.upper == math.inf
        assert quick_epsilon(event, delta=DELTA, relation=ADD_REMOVE) == math.inf


# --- the quick bound, reports ----------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "event",
    [
        SAMPLED,
        dp.GaussianDpEvent(2.0),
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(5.0), 20),
        dp.ZCDpEvent(0.1, 0),
    ],
    ids=str,
)
def test_the_quick_bound_is_above_the_certified_one_but_not_by_much(event, relation):
    found = price(event, delta=DELTA, relation=relation)
    quick = quick_epsilon(event, delta=DELTA, relation=relation)
    assert found.epsilon <= quick <= found.epsilon * (1 + 3e-4)


def test_a_price_becomes_a_guarantee_and_prints_rounded_up():
    found = price(SAMPLED, delta=DELTA, relation="replace-one")
    assert found.guarantee("user") == Guarantee(
        epsilon=found.upper, delta=DELTA, relation=REPLACE_ONE, privacy_unit="user"
    )
    assert str(found) == f"epsilon {round_up(found.epsilon):g} at delta 1e-05 (pld)"
    assert float(str(found).split()[1]) >= found.epsilon


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, math.nan, math.inf, True, "small"])
def test_a_bad_delta_is_refused(delta):
    with pytest.raises(InvalidParameterError, match="delta must be a number strictly between 0 and 1, but"):
        price(SAMPLED, delta=delta)


def test_an_unknown_relation_is_refused_with_the_known_ones():
    with pytest.raises(InvalidParameterError, match=r"unknown relation 'swap'.*add-remove, replace-one"):
        price(SAMPLED, delta=DELTA, relation="swap")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp.GaussianDpEvent(0.0), "noise_multiplier must be a finite number above 0, but 0.0"),
        (dp.GaussianDpEvent(math.nan), "noise_multiplier must be .* but nan"),
        (dp.LaplaceDpEvent(math.inf), "noise_multiplier must be .* but inf"),
        (dp.LaplaceDpEvent(-1.0), "noise_multiplier must be .* but -1.0"),
        (
            dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)),
            "sampling_rate must be .* at most 1, but 1.5",
        ),
        (dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(1.0)), "sampling_rate must be a number above 0"),
        (
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 0),
            "count must be a whole number, 1 or more, but 0",
        ),
        (dp.SampledWithoutReplacementDpEvent(3, 4, dp.GaussianDpEvent(1.0)), "at most source_dataset_size=3"),
        (events.PureDpEvent(math.nan), "epsilon must be a finite number above 0, but nan"),
    ],
    ids=str,
)
def test_a_bad_event_is_refused_with_its_parameter_named(event, words):
    with pytest.raises(InvalidParameterError, match=words):
        price(event, delta=DELTA, relation=REPLACE_ONE)
