# SPDX-License-Identifier: Apache-2.0
import io
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, chisquare

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import SecureGenerator
from sfumato.testing import seeded
from sfumato.training.privacy.batch_draws import (
    CyclicSampler,
    IndependentSampler,
    ShuffledSampler,
    permutation,
    poisson,
    subset,
    truncated_poisson,
)

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed
rates = st.floats(0, 1, exclude_min=True)


class Scripted:
    """A generator whose bytes are given."""

    secure = seeded = False

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def fill(self, out: memoryview) -> None:
        out[:] = self.parts.pop(0)

    def fork(self, label: str, index: int) -> "Scripted":
        return self


# --- Poisson ---------------------------------------------------------------------------------------------


@given(st.integers(0, 600), rates, st.integers(0, 9))
def test_a_poisson_sample_is_sorted_without_repeats_and_in_range(num_units, rate, seed):
    drawn = poisson(num_units, rate, seeded(seed))
    assert drawn.dtype == np.int64
    assert np.all(np.diff(drawn) > 0)
    assert np.isin(drawn, np.arange(num_units)).all()


def test_a_unit_is_in_exactly_if_its_64_bits_are_below_the_rate():
    leading = bytes(range(256)) + bytes([5, 5, 5])
    rate = 5.5 / 256  # the bound is 5 * 2^56 + 2^55
    rest = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], dtype="<u8")  # of the four that begin with a 5
    drawn = poisson(len(leading), rate, Scripted(leading, rest.tobytes()))
    assert drawn.tolist() == [0, 1, 2, 3, 4, 5, 256]


def test_a_rate_is_rounded_down_to_64_bits():
    smallest = np.array([0], dtype="<u8").tobytes()
    assert poisson(1, 2.0**-64, Scripted(bytes(1), smallest)).tolist() == [0]
    assert poisson(1, 2.0**-65, Scripted(bytes(1), smallest)).tolist() == []
    almost = np.array(
        [2**64 - 2**11 - 1, 2**64 - 2**11], dtype="<u8"
    )  # 1 - 2^-53, in 64 bits, less the first 8
    drawn = poisson(2, 1 - 2.0**-53, Scripted(b"\xff\xff", (almost << np.uint64(8)).tobytes()))
    assert drawn.tolist() == [0]


@pytest.mark.parametrize("rate", [0.3, 0.02, 1 / 256, 0.0007, 1 - 1 / 1024])
def test_a_unit_is_in_as_often_as_stated(rate):
    generator, draws, num_units = seeded(1), 300, 2000
    hits = sum(len(poisson(num_units, rate, generator)) for _ in range(draws))
    assert binomtest(hits, draws * num_units, rate).pvalue > ALPHA
    off = rate + 0.35 * min(rate, 1 - rate)
    assert binomtest(hits, draws * num_units, off).pvalue < ALPHA  # power, at the rarest rate too


def test_every_unit_is_in_as_often_as_every_other():
    counts = np.zeros(50)
    generator = seeded(2)
    for _ in range(4000):
        counts[poisson(50, 0.1, generator)] += 1
    assert chisquare(counts).pvalue > ALPHA
    counts[0] *= 1.5
    assert chisquare(counts).pvalue < ALPHA


def size_pvalue(sizes: list[int], num_units: int, rate: float) -> float:
    expected = binom.pmf(np.arange(num_units + 1), num_units, rate)
    common = expected * len(sizes) >= 5
    seen = np.bincount(sizes, minlength=num_units + 1)
    lumped = (
        np.append(seen[common], seen[~common].sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    return chisquare(lumped[0], lumped[1] * len(sizes)).pvalue


def test_units_are_in_independently_so_that_sizes_are_binomial():
    generator = seeded(3)
    sizes = [len(poisson(40, 0.2, generator)) for _ in range(20_000)]
    assert size_pvalue(sizes, 40, 0.2) > ALPHA
    assert size_pvalue([8] * 20_000, 40, 0.2) < ALPHA  # batches of fixed size are not Poisson


def test_two_units_and_two_steps_are_independent():
    sampler = IndependentSampler(lambda stream: poisson(2, 0.3, stream), seeded(4))
    both = Counter(tuple(sampler.batch(step).tolist()) for step in range(8000))
    seen = [both[()], both[(0,)], both[(1,)], both[(0, 1)]]
    assert chisquare(seen, np.array([0.49, 0.21, 0.21, 0.09]) * 8000).pvalue > ALPHA
    runs = [sampler.batch(step).tolist() == sampler.batch(step + 1).tolist() for step in range(0, 8000, 2)]
    same = 0.49**2 + 2 * 0.21**2 + 0.09**2
    assert binomtest(sum(runs), len(runs), same).pvalue > ALPHA
    assert binomtest(sum(runs), len(runs), same + 0.1).pvalue < ALPHA


# --- subsets, truncation, permutations -------------------------------------------------------------------


@given(st.integers(0, 300), st.data())
def test_a_subset_has_its_size_sorted_and_without_repeats(source_size, data):
    size = data.draw(st.integers(0, source_size))
    drawn = subset(source_size, size, seeded(data.draw(st.integers(0, 9))))
    assert len(drawn) == size
    assert np.all(np.diff(drawn) > 0)
    assert np.isin(drawn, np.arange(source_size)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_subset_is_as_likely_as_every_other(size):
    generator = seeded(5)
    seen = Counter(tuple(subset(6, size, generator).tolist()) for _ in range(6000))
    counts = [seen[kept] for kept in itertools.combinations(range(6), size)]
    assert sum(counts) == 6000
    assert chisquare(counts).pvalue > ALPHA
    counts[0] += counts[1]
    counts[1] = 0
    assert chisquare(counts).pvalue < ALPHA


def test_every_permutation_is_as_likely_as_every_other():
    generator = seeded(6)
    seen = Counter(tuple(permutation(4, generator).tolist()) for _ in range(12_000))
    counts = [seen[order] for order in itertools.permutations(range(4))]
    assert chisquare(counts).pvalue > ALPHA
    assert chisquare([*counts[1:], 2 * counts[0]]).pvalue < ALPHA


def test_equal_words_are_drawn_again():
    equal = np.array([7, 7], dtype="<u8").tobytes()
    unequal = np.array([9, 7], dtype="<u8").tobytes()
    assert permutation(2, Scripted(equal, unequal)).tolist() == [1, 0]


@given(st.integers(0, 300), rates, st.integers(1, 40), st.integers(0, 9))
def test_a_truncated_sample_is_never_larger_than_its_bound(num_units, rate, batch_size, seed):
    drawn = truncated_poisson(num_units, rate, batch_size, seeded(seed))
    whole = poisson(num_units, rate, seeded(seed))
    assert len(drawn) == min(len(whole), batch_size)
    assert np.isin(drawn, whole).all()
    assert np.all(np.diff(drawn) > 0)


def test_what_truncation_keeps_is_a_uniform_subset():
    generator, draws = seeded(7), 15_000
    kept = [tuple(truncated_poisson(6, 0.5, 2, generator).tolist()) for _ in range(draws)]
    pairs = list(itertools.combinations(range(6), 2))
    counts = [kept.count(pair) for pair in pairs]
    assert chisquare(counts).pvalue > ALPHA
    assert binomtest(sum(counts), draws, binom.sf(1, 6, 0.5)).pvalue > ALPHA
    first_two = Counter(tuple(poisson(6, 0.5, generator)[:2].tolist()) for _ in range(draws))
    assert chisquare([first_two[pair] for pair in pairs]).pvalue < ALPHA  # keeping the first ones is caught


# --- samplers --------------------------------------------------------------------------------------------


def independent(generator, num_units=500):
    return IndependentSampler(lambda stream: truncated_poisson(num_units, 0.1, 40, stream), generator)


def shuffled(generator, num_units=10, batch_size=4):
    return ShuffledSampler(num_units, batch_size, generator)


def test_an_empty_batch_is_an_empty_tensor_of_indices():
    batch = IndependentSampler(lambda stream: poisson(10, 1e-12, stream), None).batch(0)
    assert batch.shape == (0,)
    assert batch.dtype == torch.int64


@pytest.mark.parametrize("make", [independent, shuffled], ids=["independent", "shuffled"])
def test_a_seeded_run_resumed_at_any_step_repeats_itself(make):
    run = make(seeded(8))
    batches = [run.batch(step).tolist() for step in range(9)]
    for step in (7, 2, 4):  # in any order, without any state
        assert make(seeded(8)).batch(step).tolist() == batches[step]
        assert run.batch(step).tolist() == batches[step]
    assert make(seeded(9)).batch(7).tolist() != batches[7]


@pytest.mark.parametrize("make", [independent, shuffled], ids=["independent", "shuffled"])
def test_secure_runs_differ(make):
    drawn = {tuple(make(SecureGenerator(), num_units=100).batch(0).tolist()) for _ in range(4)}
    assert len(drawn) == 4


@given(st.integers(1, 60), st.data())
def test_an_epoch_shows_every_unit_once(num_units, data):
    batch_size = data.draw(st.integers(1, num_units))
    per_epoch = -(-num_units // batch_size)
    for sampler in (ShuffledSampler(num_units, batch_size, None), CyclicSampler(num_units, batch_size)):
        for epoch in range(3):
            batches = [sampler.batch(epoch * per_epoch + i) for i in range(per_epoch)]
            assert all(len(batch) == batch_size for batch in batches[:-1])
            assert all(torch.all(torch.diff(batch) > 0) for batch in batches)
            assert torch.cat(batches).sort().values.tolist() == list(range(num_units))


def test_epochs_are_shuffled_afresh_and_cycles_are_not():
    mixed, fixed = shuffled(seeded(1), 100, 50), CyclicSampler(100, 50)
    assert mixed.batch(0).tolist() != mixed.batch(2).tolist()
    assert fixed.batch(0).tolist() == fixed.batch(2).tolist() == list(range(50))


def test_a_run_resumed_with_its_state_finishes_the_epoch():
    run = shuffled(None)
    shown = [run.batch(3), run.batch(4)]  # the second epoch; its third batch is to come
    checkpoint = io.BytesIO()
    torch.save(run.state_dict(), checkpoint)
    checkpoint.seek(0)
    resumed = shuffled(None)
    resumed.load_state_dict(torch.load(checkpoint, weights_only=True))
    assert resumed.batch(5).tolist() == run.batch(5).tolist()
    assert torch.cat([*shown, resumed.batch(5)]).sort().values.tolist() == list(range(10))
    assert len(resumed.batch(6)) == 4  # and begins the next


def test_a_saved_state_and_its_run_do_not_share_memory():
    run = shuffled(None)
    run.batch(0)
    state = run.state_dict()
    rest = [run.batch(1).tolist(), run.batch(2).tolist()]
    resumed = shuffled(None)
    resumed.load_state_dict(state)
    state["order"].zero_()
    for sampler in (run, resumed):
        assert [sampler.batch(1).tolist(), sampler.batch(2).tolist()] == rest


def test_a_run_resumed_inside_an_epoch_without_its_state_is_refused():
    with pytest.raises(InvalidParameterError, match="load_state_dict"):
        shuffled(None).batch(4)
    run = shuffled(None)
    run.batch(3)
    with pytest.raises(InvalidParameterError, match="twice"):
        run.batch(0)  # an epoch that is over
    untouched = shuffled(None)
    untouched.load_state_dict(shuffled(None).state_dict())  # of a run that did not begin
    assert len(untouched.batch(0)) == 4


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0},
        {"epoch": 0, "order": torch.arange(10), "more": 1},
        {"epoch": 0, "order": torch.arange(11)},
        {"epoch": 0, "order": torch.zeros(10, dtype=torch.int64)},
        {"epoch": 0, "order": torch.arange(10).float()},
        {"epoch": 0, "order": list(range(10))},
        {"epoch": -1, "order": torch.arange(10)},
        {"epoch": -2, "order": torch.empty(0, dtype=torch.int64)},
        {"epoch": 1.0, "order": torch.arange(10)},
    ],
    ids=range(10),
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(InvalidParameterError, match="not a state of this sampler"):
        shuffled(None).load_state_dict(state)


def test_samplers_without_state_take_only_their_own():
    for sampler in (independent(None), CyclicSampler(10, 4)):
        sampler.load_state_dict(sampler.state_dict())
        with pytest.raises(InvalidParameterError, match="not a state"):
            sampler.load_state_dict(shuffled(None).state_dict())


@pytest.mark.parametrize("step", [-1, 1.0, True, "0", None], ids=repr)
@pytest.mark.parametrize("make", [independent, shuffled, lambda _: CyclicSampler(10, 4)], ids=["i", "s", "c"])
def test_a_step_is_a_whole_number_from_0(make, step):
    with pytest.raises(InvalidParameterError, match="step must be a whole number"):
        make(None).batch(step)


def test_the_number_of_units_is_in_no_repr():
    for sampler in (independent(None, 98_765), shuffled(None, 98_765), CyclicSampler(98_765, 4)):
        assert "98" not in repr(sampler).split(" at 0x")[0]
