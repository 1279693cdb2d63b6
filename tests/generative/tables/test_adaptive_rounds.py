# SPDX-License-Identifier: Apache-2.0
"""One row moves a score by its weight and a marginal by one; nothing but mechanisms sees private counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.audit.mechanisms.neighbor_distances import WATCHED, LeakError, Watch
from sfumato.audit.mechanisms.replay import replay
from sfumato.generative.tables import adaptive_rounds
from sfumato.generative.tables.adaptive_rounds import GRID, AdaptiveRounds, TableCounts, score
from sfumato.generative.tables.count_noise import CountNoise, NoiseBudget
from sfumato.generative.tables.model.graphical_model import estimate
from sfumato.generative.tables.noisy_marginals import MarginalsClaim
from sfumato.generative.tables.workload import all_marginals, candidates
from sfumato.testing import seeded

SIZES = (3, 2, 2)
RNG = np.random.default_rng(5)
CODES = np.column_stack([RNG.integers(0, size, 60) for size in SIZES])


def _within(mechanism, one, two):
    moved = np.linalg.norm((one[0] - two[0]).astype(float).ravel())
    if one[0].shape != two[0].shape or moved > mechanism.sensitivity * (1 + 1e-9):
        raise LeakError("a neighbor moves counts by more than was stated")


WATCH = (*WATCHED, Watch(CountNoise, "add", _within))


def rounds(**changes):
    terms = {
        "sizes": SIZES,
        "weights": candidates(all_marginals(3, 2)),
        "rounds": 4,
        "selection_epsilon": 0.3,
        "first_share": 0.2,
        "most_cells": 1000,
        "iterations": 20,
    }
    return AdaptiveRounds(**{**terms, **changes})


def release(rows_per_unit=1, plan=None, noise_multiplier=2.0):
    def run(codes, generator):
        table = TableCounts(codes, SIZES, rows_per_unit=rows_per_unit)
        budget = NoiseBudget(noise_multiplier=noise_multiplier, sensitivity=rows_per_unit)
        model = (plan or rounds()).run(table, budget, generator=generator)
        return [model.total, *(values for _, values in sorted(model.potentials.items()))]

    return run


# --- sensitivity ------------------------------------------------------------------------------------------

counts = st.lists(st.integers(0, 1000), min_size=1, max_size=12)


@given(counts, st.integers(1, 9), st.floats(0.01, 1e3), st.data())
def test_one_row_moves_a_score_by_at_most_its_weight(found, weight, stddev, data):
    expected = np.array(data.draw(st.lists(st.floats(0, 2000), min_size=len(found), max_size=len(found))))
    before = np.array(found)
    after = before.copy()
    after[data.draw(st.integers(0, len(found) - 1))] += 1
    one, two = (score(each, expected, weight, stddev=stddev) for each in (before, after))
    assert abs(one - two) <= GRID * weight


@given(counts, st.integers(1, 5), st.integers(1, 6), st.data())
def test_a_unit_of_many_rows_moves_a_score_by_as_many_times_its_weight(found, weight, rows, data):
    expected = np.zeros(len(found))
    before = np.array(found)
    places = data.draw(st.lists(st.integers(0, len(found) - 1), min_size=rows, max_size=rows))
    after = before + np.bincount(places, minlength=len(found))
    one, two = (score(each, expected, weight, stddev=1.0) for each in (before, after))
    assert abs(one - two) <= GRID * weight * rows


def test_a_huge_score_is_cut_off_where_floats_hold_it():
    huge = score(np.array([2**40]), np.zeros(1), 2**20, stddev=1.0)
    assert huge == 2**53 and float(huge) == huge
    assert score(np.zeros(4, dtype=np.int64), np.zeros(4), 2**20, stddev=2.0**40) == -(2**53)


def test_counts_that_are_not_kept_are_the_same(monkeypatch):
    kept = release()(CODES, seeded(3))
    monkeypatch.setattr(adaptive_rounds, "_MOST_KEPT", 4)
    for one, two in zip(kept, release()(CODES, seeded(3)), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("row", [0, 17, 59])
def test_only_outputs_of_mechanisms_leave_the_rounds(row):
    calls = replay(release(), CODES, np.delete(CODES, row, axis=0), watch=WATCH)
    kinds = [type(call.mechanism).__name__ for call in calls]
    assert kinds.count("CountNoise") - 3 == kinds.count("Exponential") <= 4


def test_a_unit_of_three_rows_needs_the_noise_of_three():
    replay(release(rows_per_unit=3), CODES, CODES[3:], watch=WATCH)
    with pytest.raises(LeakError):
        replay(release(rows_per_unit=1), CODES, CODES[3:], watch=WATCH)


# --- planted bugs -----------------------------------------------------------------------------------------


def test_a_number_of_rows_that_is_read_for_free_is_found(monkeypatch):
    def leaky(sizes, measurements, **terms):
        model = estimate(sizes, measurements, **terms)
        object.__setattr__(model, "total", float(leaky.rows))
        return model

    def run(codes, generator):
        leaky.rows = len(codes)
        return release()(codes, generator)

    monkeypatch.setattr(adaptive_rounds, "estimate", leaky)
    with pytest.raises(LeakError):
        replay(run, CODES, CODES[1:], watch=WATCH)


def test_a_histogram_that_is_read_for_free_is_found():
    def run(codes, generator):
        return [*release()(codes, generator), np.bincount(codes[:, 0])]

    with pytest.raises(LeakError):
        replay(run, CODES, CODES[1:], watch=WATCH)


def test_a_score_relative_to_the_private_number_of_rows_is_found(monkeypatch):
    def relative(found, expected, weight, *, stddev):
        shares = found / found.sum()
        return weight * int(GRID * 1000 * np.abs(shares - expected / expected.sum()).sum())

    monkeypatch.setattr(adaptive_rounds, "score", relative)
    with pytest.raises(LeakError):
        replay(release(), CODES[:12], CODES[1:12], watch=WATCH)


# --- the attack -------------------------------------------------------------------------------------------

CLAIM = MarginalsClaim(noise_multiplier=2.0, selection_epsilon=0.1, rounds=2, purchase=dp.NoOpDpEvent())
PROMISED = price(CLAIM.event(), delta=1e-3).guarantee("row")
ONE, TWO = np.zeros((21, 1), dtype=np.int64), np.zeros((20, 1), dtype=np.int64)


def attacked(noise_multiplier, trials):
    plan = AdaptiveRounds(
        sizes=(2,), weights=candidates([(0,)]), rounds=2, selection_epsilon=0.1, first_share=0.3,
        most_cells=100, iterations=1,
    )  # fmt: skip

    def run(codes, generator):
        table = TableCounts(codes, (2,), rows_per_unit=1)
        budget = NoiseBudget(noise_multiplier=noise_multiplier, sensitivity=1)
        found = []
        noisy = table.noisy
        table.noisy = lambda *given: found.append(noisy(*given)) or found[-1]
        plan.run(table, budget, generator=generator)
        # The best statistic of all that was released: counts of the first cell, weighted by variances.
        weights = np.array([each.stddev**-2 for each in found])
        return float(np.array([each.values[0] for each in found]) @ weights / weights.sum())

    return audit_mechanism(run, ONE, TWO, trials=trials, claim=PROMISED, generator=seeded(0))


def test_an_attack_on_all_noisy_counts_stays_below_the_claim_and_sees_something():
    found = attacked(CLAIM.noise_multiplier, 800)
    assert not found.refuted and found.best.epsilon > 0.3


def test_an_attack_contradicts_the_claim_if_the_noise_is_too_small():
    assert attacked(CLAIM.noise_multiplier / 5, 800).refuted


# --- the rounds -------------------------------------------------------------------------------------------


def test_the_wrong_marginal_is_chosen_at_a_large_epsilon():
    codes = np.column_stack([CODES[:, 0], CODES[:, 1], CODES[:, 1]])  # columns 1 and 2 are equal
    table = TableCounts(np.tile(codes, (50, 1)), SIZES, rows_per_unit=1)
    single = [table.noisy((c,), CountNoise(stddev=0.1, sensitivity=1), seeded(0)) for c in range(3)]
    model = estimate(SIZES, single)
    pairs = {pair: 1 for pair in all_marginals(3, 2)}
    assert table.worst(pairs, model, stddev=0.1, epsilon=50.0, generator=seeded(1)) == (1, 2)


def test_the_tree_never_grows_beyond_its_limit():
    plan = rounds(most_cells=11, selection_epsilon=5.0)
    found = plan.run(
        TableCounts(CODES, SIZES, rows_per_unit=1),
        NoiseBudget(noise_multiplier=0.5, sensitivity=1),
        generator=seeded(0),
    )
    assert sum(table.size for table in found.beliefs.tables) <= 11


def test_an_empty_table_is_fitted():
    found = release()(np.zeros((0, 3), dtype=np.int64), seeded(0))
    assert all(np.isfinite(part).all() for part in found)
