# SPDX-License-Identifier: Apache-2.0
"""Noise that is what it is stated to be is not accused, and each kind of mistake is found by its own test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from sfumato.audit.runs.noise_log import Energies, NoiseLog

STEPS, WIDTH = 20, 400
ALPHA = 1e-6  # chance that right noise fails a check on a fresh seed


def noise(seed=0, steps=STEPS, width=WIDTH):
    return np.random.default_rng(seed).normal(size=(steps, width))


def worst(rows, *, known=None):
    log = NoiseLog("a layer")
    for row in rows:
        log.add(row, known=known)
    return min(log.findings(), key=lambda finding: finding.p_value)


def test_p_values_of_right_noise_are_no_smaller_than_chance_allows():
    found = [min(1.0, 5 * worst(noise(seed)).p_value) for seed in range(200)]
    for p in (0.02, 0.1, 0.3):
        assert np.mean(np.array(found) <= p) <= p + 4 * np.sqrt(p / 200)


CASES = {
    "too small": (lambda x: 0.8 * x, "too small"),
    "too small in one step": (lambda x: x * np.where(np.arange(STEPS) == 7, 0.5, 1.0)[:, None], "in step 8"),
    "missing in one step": (lambda x: x * (np.arange(STEPS) != 7)[:, None], "in step 8"),
    "cut off": (lambda x: np.clip(x, -2, 2), "not Gaussian"),
    "uniform": (lambda x: np.random.default_rng(1).uniform(-(3**0.5), 3**0.5, size=x.shape), "not Gaussian"),
    "used again": (lambda x: np.repeat(x[::2], 2, axis=0), "not fresh"),
    "taken back": (lambda x: np.repeat(x[::2], 2, axis=0) * ([[1], [-1]] * (STEPS // 2)), "not fresh"),
    "used again much later": (
        lambda x: np.concatenate([x[:-1], x[:1]]),
        "step 1 and step 20|noise of 19 step",
    ),
    "mixed with the last": (lambda x: 0.8 * x - 0.6 * np.roll(x, 1, axis=0), "take back noise of 1 step"),
    "tiled": (lambda x: np.tile(x[:, :40], WIDTH // 40), "not drawn for each coordinate"),
    "one for all": (
        lambda x: np.repeat(x[:, :1], WIDTH, axis=1),
        "not drawn for each coordinate|not fresh",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_found_and_named(case):
    change, says = CASES[case]
    found = worst(change(noise()))
    assert found.p_value < ALPHA
    assert any(said in found.message for said in says.split("|"))


def test_more_noise_than_stated_is_no_mistake():
    assert worst(1.5 * noise()).p_value > ALPHA


def test_coordinates_that_hold_more_than_noise_are_left_out():
    known = np.arange(WIDTH) % 2 == 0
    moved = noise() + 1e6 * ~known
    assert worst(moved, known=known).p_value > ALPHA


def test_a_trial_is_compared_with_all_steps():
    rows, log = noise(), NoiseLog("a layer")
    for row in rows:
        log.add(row)
    log.add(rows[4], step="a trial before step 5")
    found = min(log.findings(), key=lambda finding: finding.p_value)
    assert found.p_value < ALPHA and "step 5 and a trial before step 5 have alike noise" in found.message


def test_trials_with_the_same_noise_are_named():
    log = NoiseLog("a layer", each="trial")
    for _ in range(2):
        log.add(noise()[0])
    found = min(log.findings(), key=lambda finding: finding.p_value)
    assert found.p_value < ALPHA and "trial 1 and trial 2 have alike noise" in found.message


def test_layers_that_share_noise_are_found():
    logs = [NoiseLog(name) for name in ("one", "two", "three")]
    for row, other in zip(noise(), noise(1), strict=True):
        for log, values in zip(logs, (row, row, other), strict=True):
            log.add(values)
    assert logs[0].compared(logs[1]).p_value < ALPHA < logs[0].compared(logs[2]).p_value


def test_gradients_beneath_the_noise_do_not_make_right_noise_too_small():
    draws = np.random.default_rng(0)
    for size in (0.0, 0.5, 10.0):
        energies = Energies("a layer")
        for row in noise():
            energies.add(float(((row + size * draws.normal(size=WIDTH)) ** 2).sum()), WIDTH)
        assert min(f.p_value for f in energies.findings()) > ALPHA
    silent = Energies("a layer")
    silent.add(0.3 * WIDTH, WIDTH)
    assert min(f.p_value for f in silent.findings()) < ALPHA


def test_a_log_goes_on_where_it_was():
    whole, first = NoiseLog("a"), NoiseLog("a")
    for index, row in enumerate(noise()):
        whole.add(row)
        if index < 10:
            first.add(row)
    second = NoiseLog("a")
    second.load_state_dict(first.state_dict())
    for row in noise()[10:]:
        second.add(row)
    assert second.findings() == whole.findings()


def test_nothing_seen_is_nothing_found():
    assert NoiseLog("a").findings() == [] and Energies("a").findings() == []


@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.sampled_from([0, 3, 40, 41, 1000])), min_size=1, max_size=30)
)
def test_what_is_kept_of_energies_says_the_same_as_all_of_them(steps):
    log = Energies("a layer")
    for ratio, size in steps:
        log.add(ratio * size, size)
    kept = Energies("a layer")
    kept.load_state_dict(log.state_dict())
    sizes = np.array([size for _, size in steps])
    sums = np.array([ratio * size for ratio, size in steps])
    if not sizes.any():
        assert log.findings() == kept.findings() == []
        return
    each = np.where(sizes > 0, chi2.cdf(sums, np.maximum(sizes, 1)), 1.0)
    one, whole = kept.findings()
    assert log.findings() == [one, whole] and log.sees(1e-6) == kept.sees(1e-6)
    assert one.p_value == min(1.0, len(steps) * each.min())
    assert whole.p_value == pytest.approx(chi2.cdf(sums.sum(), sizes.sum()), rel=1e-6, abs=1e-300)
    assert one.observations == whole.observations == sizes.sum()


@pytest.mark.parametrize("energy", [float("nan"), float("inf")])
def test_an_energy_that_is_no_number_is_found_and_hides_no_other(energy):
    draws = np.random.default_rng(1)
    log, kept = Energies("a layer"), Energies("a layer")
    for _ in range(100):
        log.add(0.9 * float((draws.normal(size=100) ** 2).sum()), 100)
    before = log.findings()
    log.add(energy, 100)
    log.add(energy, 100)
    kept.load_state_dict(log.state_dict())
    broken, one, whole = kept.findings()
    assert broken.p_value == 0 and "in a layer is no finite number in step 101" in broken.message
    assert whole == before[1] and whole.p_value < ALPHA  # too little over all steps, as before
    assert one.p_value >= before[0].p_value and one.message == before[0].message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_noise_that_is_no_number_is_found_and_hides_no_other(value):
    log = NoiseLog("a layer")
    for row in 0.9 * noise():
        log.add(row)
    log.add(np.concatenate([[value], noise(1)[0][1:]]), step="a trial")
    found = log.findings()
    assert found[0].p_value == 0 and "no finite number in a trial" in found[0].message
    (whole,) = (each for each in found if "over all steps" in each.message)
    assert whole.p_value < ALPHA
    lost = NoiseLog("a layer")
    lost.add(np.full(WIDTH, value))
    assert [each.p_value for each in lost.findings()] == [0.0]


def test_a_log_of_places_that_are_seldom_known_goes_on_where_it_was():
    first, second = NoiseLog("a layer"), NoiseLog("a layer")
    known = np.arange(WIDTH) % 3 == 0  # no pair at a distance of 1 or 2
    for row in noise():
        first.add(row, known=known)
    first.add(noise(1)[0], step="a trial")
    second.load_state_dict(first.state_dict())
    for log in (first, second):
        log.add(noise(2)[0])
    assert first.findings() == second.findings()
