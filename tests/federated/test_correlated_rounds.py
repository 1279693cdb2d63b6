# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL for clients: what one client moves over all rounds of a federation is what the event says.

With C the matrix of the correlation, the noise of all rounds is C^-1 z. So a run reveals C x + z, where x are
the sums of clipped updates, and the event must be one Gaussian release with the most that a client moves C x.
All of it is read here from the models of whole runs: updates do not depend on the model, the server's rate is
one, and runs with the same seed have the same noise.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from torch import nn

from sfumato.federated import LazyRows, LocalTraining, federate
from sfumato.testing import seeded
from sfumato.training import BandedNoise, CyclicBatches

SIZE, CLIP, NOISE, SLACK, ALPHA = 3, 0.5, 2.0, 1e-4, 1e-6
PATTERNS = [  # clients, cohort, rounds, bands
    (6, 2, 3, 1),  # once each, independent noise
    (6, 2, 7, 1),
    (6, 2, 3, 2),
    (6, 2, 7, 2),  # bands shorter than a cycle
    (6, 2, 8, 3),  # as long as a cycle
    (6, 2, 9, 5),  # longer than a cycle
    (6, 4, 6, 2),  # a last cohort that is smaller
    (4, 4, 4, 4),  # everybody in every round
]


def moved_by(model, rows):
    """A loss whose gradient is the row itself."""
    return model(rows)[:, 0]


def run_of(pattern, sent, *, seed=0):
    """Return the noisy sums of all rounds, [rounds, SIZE], and the run. `sent[client]` is one row a round."""
    clients, cohort, rounds, bands = pattern
    turns = dict.fromkeys(range(clients), 0)
    models = [torch.zeros(SIZE)]

    def rows(client):
        turns[client] += 1
        values = sent.get(client, [])
        return (torch.tensor(values[turns[client] - 1 : turns[client]]).reshape(-1, SIZE),)

    model = nn.Linear(SIZE, 1, bias=False)
    nn.init.zeros_(model.weight)
    run = federate(
        model,
        LazyRows(rows, clients=clients, like=(torch.zeros(0, SIZE),)),
        rounds=rounds,
        expected_cohort_size=cohort,
        local=LocalTraining(learning_rate=1.0, loss=moved_by),
        sampling=CyclicBatches(batch_size=cohort, public_size=clients),
        correlation=BandedNoise(bands=bands),
        relation="zero-out",
        clip_norm=CLIP,
        noise_multiplier=NOISE,
        delta=1e-5,
        evaluate_every=1,
        on_evaluation=lambda model, step: models.append(model.weight.detach()[0].clone()),
        progress=False,
        generator=seeded(seed),
    )
    steps = torch.stack(models[:-1]) - torch.stack(models[1:])
    assert len(steps) == rounds
    return steps.double().numpy() * cohort, run


def whitened(sums, bands):
    """Return C x: with the series of 1 / sqrt(1 - x), cut off after the bands."""
    first = [math.comb(2 * k, k) / 4**k for k in range(bands)]
    return sum(c * np.vstack([np.zeros((k, SIZE)), sums])[: len(sums)] for k, c in enumerate(first))


@cache
def without(pattern):
    return run_of(pattern, {})


def largest_move(pattern):
    """Return what the event says: how far a client moves C x, in L2 norm."""
    event = without(pattern)[1].mechanism.event()
    return CLIP * NOISE / event.noise_multiplier


def move(pattern, client, values):
    """Return how far a client moves C x that sends these rows, one in each round in which it takes part."""
    difference = run_of(pattern, {client: values})[0] - without(pattern)[0]
    return np.linalg.norm(whitened(difference, pattern[-1]))


any_row = st.tuples(*[st.floats(width=32)] * SIZE)


@settings(max_examples=40)
@given(st.sampled_from(PATTERNS), st.integers(0, 5), st.lists(any_row, max_size=9))
def test_a_client_moves_all_rounds_together_by_at_most_what_the_event_says(pattern, client, values):
    assert move(pattern, client % pattern[0], values) <= largest_move(pattern) * (1 + SLACK)


def first_to_take_part(pattern):
    """Return a client of the first cohort: it takes part as often as any, and as early."""
    same = [[9.0] * SIZE]
    first = [
        c for c in range(pattern[0]) if np.abs(run_of(pattern, {c: same})[0] - without(pattern)[0])[0].any()
    ]
    return first[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_client_that_sends_the_same_long_update_in_each_round_reaches_it(pattern):
    always = [[9.0] * SIZE] * pattern[2]
    assert move(pattern, first_to_take_part(pattern), always) == pytest.approx(
        largest_move(pattern), rel=SLACK
    )


def test_without_clients_runs_reveal_independent_noise_of_the_stated_size():
    sums = [(pattern[-1], run_of(pattern, {}, seed=seed)[0]) for pattern in PATTERNS for seed in range(8)]
    drawn = [whitened(found, bands) / (NOISE * CLIP) for bands, found in sums]
    values = np.concatenate([each.ravel() for each in drawn])
    assert kstest(values, norm.cdf).pvalue > ALPHA
    assert kstest(values, norm(scale=1.25).cdf).pvalue < ALPHA  # the test has power
    pairs = np.concatenate([(each[1:] * each[:-1]).ravel() for each in drawn])  # of two rounds in a row
    assert abs(pairs.mean()) * math.sqrt(pairs.size) < norm.isf(ALPHA / 2)


def test_bands_that_are_not_priced_are_caught(monkeypatch):
    """A planted bug: the sensitivity is that of independent noise."""
    pattern = (6, 2, 7, 3)
    client, always = first_to_take_part(pattern), [[9.0] * SIZE] * 7
    alone = BandedNoise(bands=1)
    whole = BandedNoise.sensitivity
    monkeypatch.setattr(BandedNoise, "sensitivity", lambda self, *given, **more: whole(alone, *given, **more))
    without.cache_clear()
    assert move(pattern, client, always) > largest_move(pattern) * 1.1
    without.cache_clear()


class Stuck:
    """A sampler whose batch is always the first one."""

    def __init__(self, own):
        self._own = own

    def __getattr__(self, name):
        return getattr(self._own, name)

    def batch(self, step):
        return self._own.batch(0)


def test_a_client_that_is_in_every_cohort_is_caught(monkeypatch):
    """A planted bug: cohorts do not change, although their event says so."""
    pattern = (6, 2, 7, 2)
    client, always = first_to_take_part(pattern), [[9.0] * SIZE] * 7
    whole = CyclicBatches.sampler
    monkeypatch.setattr(CyclicBatches, "sampler", lambda *given, **more: Stuck(whole(*given, **more)))
    without.cache_clear()
    assert move(pattern, client, always) > largest_move(pattern) * 1.1
    without.cache_clear()
