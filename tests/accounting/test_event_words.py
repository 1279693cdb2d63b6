# SPDX-License-Identifier: Apache-2.0
import pytest
from dp_accounting import dp_event as dp

from sfumato import Guarantee, Relation, price
from sfumato.accounting import event_words, events, kinds

ADD_REMOVE = Relation.ADD_REMOVE


def promise(epsilon, delta=0.0):
    return Guarantee(epsilon=epsilon, delta=delta, relation=ADD_REMOVE, privacy_unit="row")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp.GaussianDpEvent(1.23456789), "Gaussian noise of 1.234 times the sensitivity"),
        (kinds.PureDpEvent(0.123456789), "a mechanism of epsilon 0.1235"),
        (dp.DiscreteLaplaceDpEvent(0.1, 2), "discrete Laplace noise of rate 0.1, at a sensitivity of 2"),
        (dp.RandomizedResponseDpEvent(0.25, 10), "among 10 values, uniform with probability 0.25"),
        (dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0)), "on 10 of 100 units"),
        (kinds.ParallelDpEvent([kinds.PureDpEvent(1.0)]), "on disjoint parts of the data"),
        (kinds.DiscreteGaussianDpEvent(2.0, 1.0), "discrete Gaussian noise of 2"),
        (dp.SingleEpochTreeAggregationDpEvent(1.0, 3), "kind SingleEpochTreeAggregationDpEvent"),
    ],
)
def test_noise_is_rounded_down_and_cost_up(event, words):
    assert words in event_words.told(event)


def test_a_long_composition_is_cut():
    many = dp.ComposedDpEvent([kinds.PureDpEvent(0.1 * n) for n in range(1, 20)])
    assert event_words.told(many).endswith("and 13 more")


def test_a_proof_is_named_only_if_it_gives_the_epsilon():
    event = events.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=100)
    paid = price(event, delta=1e-5)
    assert event_words.proved_by(event, promise(paid.epsilon, 1e-5)) == (paid.accountant.value, paid.theorem)
    assert event_words.proved_by(event, promise(paid.epsilon * 0.99, 1e-5)) == (None, "")
    assert event_words.proved_by(event, promise(float("inf"), 1e-5)) == (None, "")


def test_what_no_accountant_prices_has_no_proof():
    assert event_words.proved_by(dp.GaussianDpEvent(1.0), promise(1.0)) == (None, "")
