# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.encoding import client_generator, decode, encode
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.federated.secure_sum.simulated import SimulatedSums, round_seed, simulated_sum, split_sum
from sfumato.testing import seeded
from sfumato.training.engine.contributions import NoisySummer

ALPHA = 1e-6


def mechanism(**options):
    facts = {"dimension": 6, "clip_norm": 1.0, "noise_multiplier": 1e-3, "cohort": 8, "least_survivors": 4}
    return SecureSum(**{**facts, **options})


class Fixed:
    """Gives client i the vector of its number."""

    def __init__(self, vectors):
        self.vectors = torch.as_tensor(vectors, dtype=torch.float32)

    def __repr__(self):
        return "Fixed"

    def contributions(self, model, batch, *, step):
        chosen = self.vectors[batch[0]]
        return {"weight": chosen[:, :4].reshape(-1, 2, 2), "bias": chosen[:, 4:]}


def flat(found):
    return torch.cat([found["weight"].flatten(), found["bias"]]).double().numpy()


def test_the_sum_is_that_of_encoded_vectors():
    rows = np.random.default_rng(0).normal(size=(5, 6))
    total = sum(
        encode(r, mechanism(), seed=3, generator=client_generator(seeded(1), i, 3))
        for i, r in enumerate(rows)
    )
    found = simulated_sum(rows, mechanism(), seed=3, generator=seeded(1))
    assert (found == decode(total, mechanism(), seed=3)).all()


def test_too_few_clients_are_not_decoded_and_too_many_are_refused():
    assert simulated_sum(np.zeros((3, 6)), mechanism(), seed=0) is None
    with pytest.raises(InvalidParameterError, match="cohort=8"):
        simulated_sum(np.zeros((9, 6)), mechanism(), seed=0)


def test_sums_for_a_run_are_the_sums_of_clipped_updates():
    vectors = np.random.default_rng(1).normal(size=(20, 6)) / 2
    sums = SimulatedSums(Fixed(vectors), mechanism(cohort=20, bits=20))
    assert isinstance(sums, NoisySummer)
    found = sums.noisy_sum(nn.Linear(2, 2), (torch.tensor([3, 5, 6]),), step=0, noise_multiplier=1e-3)
    chosen = vectors[[3, 5, 6]]
    truth = (chosen / np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), 1.0)).sum(0)
    assert np.abs(flat(found) - truth).max() < 0.02
    assert found["weight"].dtype == torch.float32


@pytest.mark.parametrize("units", [0, 3, 8, 12])
def test_the_noise_does_not_tell_how_many_contribute(units):
    """With 0, few, all or more than `cohort` contributors there are `cohort` shares of noise."""
    sums = SimulatedSums(Fixed(np.zeros((12, 6))), mechanism(), generator=seeded(2))
    batch = (torch.arange(units),) if units else ()
    draws = [flat(sums.noisy_sum(nn.Linear(2, 2), batch, step=i, noise_multiplier=1.0)) for i in range(100)]
    scaled = mechanism(noise_multiplier=1.0)
    ratio = np.sum(np.square(draws)) / (8 * scaled.share_stddev**2 / scaled.scale**2)
    assert chi2.ppf(ALPHA, 600) < ratio < chi2.isf(ALPHA, 600)


def test_a_seeded_round_repeats_and_rounds_differ():
    sums = [SimulatedSums(Fixed(np.ones((4, 6))), mechanism(), generator=seeded(2)) for _ in range(2)]
    batch = (torch.arange(3),)
    first, again = (flat(s.noisy_sum(nn.Linear(2, 2), batch, step=1, noise_multiplier=1.0)) for s in sums)
    later = flat(sums[0].noisy_sum(nn.Linear(2, 2), batch, step=2, noise_multiplier=1.0))
    assert (first == again).all() and (first != later).any()


def test_a_model_of_another_size_is_refused():
    sums = SimulatedSums(Fixed(np.ones((4, 6))), mechanism(dimension=7))
    with pytest.raises(InvalidParameterError, match="vector of 7"):
        sums.noisy_sum(nn.Linear(2, 2), (torch.arange(2),), step=0, noise_multiplier=1.0)


def test_seeds_of_rounds_differ_and_a_sum_is_split_in_order():
    assert round_seed(seeded(1), 0) == round_seed(seeded(1), 0) != round_seed(seeded(1), 1)
    pieces = split_sum(np.arange(6.0), {"a": torch.zeros(2, 2), "b": torch.zeros(2)})
    assert pieces["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]] and pieces["b"].tolist() == [4.0, 5.0]


def test_the_same_sums_are_taken_over_another_contributor():
    sums = SimulatedSums(Fixed(np.zeros((4, 6))), mechanism(), generator=seeded(2))
    ones = sums.over(lambda inner: Fixed(np.ones((4, 6))))
    batch = (torch.arange(3),)
    first, second = (
        flat(s.noisy_sum(nn.Linear(2, 2), batch, step=1, noise_multiplier=1e-3)) for s in (sums, ones)
    )
    assert ones.summation == sums.summation and ones.generator is sums.generator
    assert np.abs(first).max() < 0.1 < np.abs(second).min()
