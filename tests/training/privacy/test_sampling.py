# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import events, price
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import FastGenerator, SecureGenerator
from sfumato.testing import seeded
from sfumato.training.privacy.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
    require,
)

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL
DELTA = 1e-5
SIZE = 1000

POISSON = PoissonSampling(sampling_rate=0.05)
TRUNCATED = TruncatedPoissonSampling(sampling_rate=0.05, batch_size=100, public_size=SIZE)
FIXED = FixedSizeSampling(batch_size=50, public_size=SIZE)
SHUFFLED = ShuffledBatches(batch_size=50, public_size=SIZE)
CYCLIC = CyclicBatches(batch_size=50, public_size=SIZE)
EVERY = [POISSON, TRUNCATED, FIXED, SHUFFLED, CYCLIC]
PROVEN = {
    PoissonSampling: set(Relation),
    TruncatedPoissonSampling: set(Relation),
    FixedSizeSampling: {REPLACE_ONE, REPLACE_LABEL},
    ShuffledBatches: {ZERO_OUT, REPLACE_ONE, REPLACE_LABEL},
    CyclicBatches: {ZERO_OUT, REPLACE_ONE, REPLACE_LABEL},
}
pairs = [
    pytest.param(s, r, id=f"{type(s).__name__}-{r.value}") for s, r in itertools.product(EVERY, Relation)
]
every = pytest.mark.parametrize("sampling", EVERY, ids=lambda s: type(s).__name__)


def gaussian(noise: float) -> dp.GaussianDpEvent:
    return dp.GaussianDpEvent(noise)


def epsilon(event, relation) -> float:
    return price(event, delta=DELTA, relation=relation).epsilon


# --- which claim for which neighbors ---------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "relation"), pairs)
def test_an_event_is_given_exactly_where_there_is_a_proof_and_can_then_be_priced(sampling, relation):
    steps = [(gaussian(1.0), 40), (gaussian(2.0), 10)]
    if relation in PROVEN[type(sampling)]:
        require(sampling, relation)
        assert 0 < epsilon(sampling.event(steps, relation=relation), relation) < math.inf
        assert sampling.event(steps, relation=relation.value) == sampling.event(steps, relation=relation)
    else:
        with pytest.raises(InvalidParameterError, match=f"no guarantee of its own under {relation.value}"):
            require(sampling, relation)
        with pytest.raises(InvalidParameterError, match=r"PoissonSampling\.$"):
            sampling.event(steps, relation=relation)


def test_poisson_steps_are_poisson_sampled_and_equal_ones_counted_together():
    event = POISSON.event([(gaussian(1.0), 40), (gaussian(2.0), 10), (gaussian(1.0), 2)], relation=ADD_REMOVE)
    assert events.leaves(event) == {
        dp.PoissonSampledDpEvent(0.05, gaussian(1.0)): 42,
        dp.PoissonSampledDpEvent(0.05, gaussian(2.0)): 10,
    }
    assert event.events[0].count == 42


def test_truncated_steps_say_all_that_their_price_depends_on():
    event = TRUNCATED.event([(gaussian(1.0), 7)], relation=ADD_REMOVE)
    step = events.TruncatedPoissonSampledDpEvent(0.05, 100, SIZE, gaussian(1.0))
    assert events.leaves(event) == {step: 7}


def test_fixed_size_steps_are_sampled_without_replacement():
    event = FIXED.event([(gaussian(1.0), 7)], relation=REPLACE_ONE)
    assert events.leaves(event) == {dp.SampledWithoutReplacementDpEvent(SIZE, 50, gaussian(1.0)): 7}


def test_sampling_everybody_is_no_sampling():
    for sampling in (
        PoissonSampling(sampling_rate=1.0),
        FixedSizeSampling(batch_size=SIZE, public_size=SIZE),
        ShuffledBatches(batch_size=SIZE, public_size=SIZE),
        CyclicBatches(batch_size=SIZE, public_size=SIZE),
    ):
        event = sampling.event([(gaussian(1.0), 7)], relation=REPLACE_ONE)
        assert events.leaves(event) == {gaussian(1.0): 7}
        assert sampling.sampler(SIZE).batch(0).tolist() == list(range(SIZE))


@every
def test_several_sums_of_one_batch_are_one_event(sampling):
    both = dp.ComposedDpEvent([gaussian(3.0), gaussian(4.0)])  # 12 / 5 together
    event = sampling.event([(both, 50)], relation=REPLACE_ONE)
    alone = sampling.event([(gaussian(2.4), 50)], relation=REPLACE_ONE)
    assert epsilon(event, REPLACE_ONE) == pytest.approx(epsilon(alone, REPLACE_ONE), rel=1e-6)


@every
def test_no_steps_cost_nothing_and_half_steps_do_not_exist(sampling):
    assert sampling.event([], relation=REPLACE_ONE) == dp.NoOpDpEvent()
    for count in (0, -1, 1.5, True):
        with pytest.raises(InvalidParameterError, match="whole number, 1 or more"):
            sampling.event([(gaussian(1.0), count)], relation=REPLACE_ONE)


# --- once in an epoch ------------------------------------------------------------------------------------


def by_hand(noises: list[float], per_epoch: int) -> list[float]:
    """The slow, obvious version: list all steps, cut them into epochs, take the least noise of each."""
    return sorted(min(noises[i : i + per_epoch]) for i in range(0, len(noises), per_epoch))


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(1, 60)), min_size=1, max_size=6),
    st.integers(1, 25),
)
def test_an_epoch_costs_its_least_noise_wherever_a_unit_stands(schedule, per_epoch):
    steps = [(gaussian(noise), count) for noise, count in schedule]
    expected = by_hand([noise for noise, count in schedule for _ in range(count)], per_epoch)
    for kind in (ShuffledBatches, CyclicBatches):
        sampling = kind(batch_size=4, public_size=4 * per_epoch)
        assert sampling.steps_per_epoch == per_epoch
        counted = events.leaves(sampling.event(steps, relation=ZERO_OUT))
        found = sorted(e.noise_multiplier for e, n in counted.items() for _ in range(n))
        assert found == expected


def test_shuffling_claims_no_amplification():
    epochs = 3
    event = SHUFFLED.event([(gaussian(1.0), epochs * SHUFFLED.steps_per_epoch)], relation=REPLACE_ONE)
    assert event == dp.SelfComposedDpEvent(gaussian(1.0), epochs)
    poisson = POISSON.event([(gaussian(1.0), epochs * SHUFFLED.steps_per_epoch)], relation=REPLACE_ONE)
    assert epsilon(event, REPLACE_ONE) > epsilon(poisson, REPLACE_ONE)


def test_a_short_last_batch_is_a_step_of_its_epoch():
    assert ShuffledBatches(batch_size=30, public_size=100).steps_per_epoch == 4
    assert CyclicBatches(batch_size=30, public_size=90).steps_per_epoch == 3


# --- sizes -----------------------------------------------------------------------------------------------


def test_the_number_to_divide_by_is_public():
    assert POISSON.expected_batch_size(2000) == 100
    assert TRUNCATED.expected_batch_size() == TRUNCATED.expected_batch_size(SIZE) == 50
    assert [s.expected_batch_size() for s in (FIXED, SHUFFLED, CYCLIC)] == [50, 50, 50]
    small = TruncatedPoissonSampling(sampling_rate=0.05, batch_size=20, public_size=SIZE)
    assert small.expected_batch_size() == 20
    with pytest.raises(InvalidParameterError, match="needs a public_size"):
        POISSON.expected_batch_size()
    for sampling in (TRUNCATED, FIXED, SHUFFLED, CYCLIC):
        with pytest.raises(InvalidParameterError, match="stated for public_size=1000"):
            sampling.expected_batch_size(999)


def test_the_static_size_bounds_every_batch():
    assert POISSON.static_size is None
    for sampling in (TRUNCATED, FIXED, SHUFFLED, CYCLIC):
        sampler = sampling.sampler(SIZE, seeded(0))
        assert max(len(sampler.batch(step)) for step in range(60)) <= sampling.static_size
    assert [len(FIXED.sampler(SIZE).batch(step)) for step in range(3)] == [50, 50, 50]


@every
@pytest.mark.parametrize("generator", [None, SecureGenerator(), seeded(3), FastGenerator(3)], ids="nsdf")
def test_batches_are_sorted_indices_for_every_generator(sampling, generator):
    batch = sampling.sampler(SIZE, generator).batch(0)
    assert batch.dtype == torch.int64 and batch.ndim == 1
    assert torch.all(torch.diff(batch) > 0)
    assert torch.all((batch >= 0) & (batch < SIZE))


def test_no_units_make_empty_batches_and_no_error():
    for sampling in (POISSON, TRUNCATED, PoissonSampling(sampling_rate=1.0)):
        assert sampling.sampler(0).batch(0).tolist() == []


def test_fewer_units_than_public_are_fine_only_where_the_price_allows_them():
    assert len(TRUNCATED.sampler(1, seeded(0)).batch(0)) <= 1
    for sampling in (FIXED, SHUFFLED, CYCLIC):
        with pytest.raises(InvalidParameterError, match="does not have the public_size stated"):
            sampling.sampler(999)


@pytest.mark.parametrize("num_units", [1001, 987654, -3, 7.0, True, "7"], ids=repr)
@every
def test_a_wrong_number_of_units_is_refused_without_being_told(sampling, num_units):
    if sampling is POISSON and num_units in (1001, 987654):
        return  # any number will do
    with pytest.raises(InvalidParameterError) as refused:
        sampling.sampler(num_units)
    digits = set("123456789")
    assert not digits & set(str(refused.value))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PoissonSampling, {"sampling_rate": 0.0}),
        (PoissonSampling, {"sampling_rate": 1.1}),
        (PoissonSampling, {"sampling_rate": math.nan}),
        (PoissonSampling, {"sampling_rate": "0.1"}),
        (TruncatedPoissonSampling, {"sampling_rate": 0.1, "batch_size": 0, "public_size": 10}),
        (TruncatedPoissonSampling, {"sampling_rate": 0.1, "batch_size": 5.0, "public_size": 10}),
        (TruncatedPoissonSampling, {"sampling_rate": -0.1, "batch_size": 5, "public_size": 10}),
        (FixedSizeSampling, {"batch_size": 11, "public_size": 10}),
        (ShuffledBatches, {"batch_size": 11, "public_size": 10}),
        (ShuffledBatches, {"batch_size": -1, "public_size": 10}),
        (CyclicBatches, {"batch_size": 1, "public_size": 0}),
        (CyclicBatches, {"batch_size": True, "public_size": 10}),
    ],
    ids=range(12),
)
def test_hostile_facts_are_refused_at_birth(kind, fields):
    with pytest.raises(InvalidParameterError):
        kind(**fields)
