# SPDX-License-Identifier: Apache-2.0
"""Noise that was drawn for each coordinate is not accused, and parts that are copied elsewhere are found."""

import numpy as np
import pytest

from sfumato.audit.runs.place_log import PlaceLog

ALPHA = 1e-7
WIDTH, STEPS = 3000, 3


def p_values(change=lambda noise: noise, *, width=WIDTH, steps=STEPS, seed=0):
    """Return what the tests say about steps of noise, each with the same mistake."""
    log, draws = PlaceLog(), np.random.default_rng(seed)
    for _ in range(steps):
        log.add(change(draws.normal(size=width)))
    return [found.p_value for found in log.findings()]


def copied(length, at, to, sign):
    def change(noise):
        noise[to : to + length] = sign * noise[at : at + length]
        return noise

    return change


def test_p_values_of_right_noise_are_no_smaller_than_chance_allows():
    found = np.array([p_values(width=300, seed=seed) for seed in range(200)])
    for p in (0.02, 0.1, 0.3):
        assert (np.mean(found <= p, axis=0) <= p + 4 * np.sqrt(p / 200)).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [64, 100, 128, 1024])
def test_a_part_that_is_copied_or_taken_back_is_found(length, sign):
    assert min(p_values(copied(length, 501, 501 + length, sign))) < ALPHA
    assert min(p_values(copied(length, 101, 1777, sign), steps=1)) < ALPHA


@pytest.mark.parametrize("sign", [1, -1])
def test_halves_of_long_noise_that_are_alike_or_opposite_are_found(sign):
    width = 40_000
    assert min(p_values(copied(width // 2, 0, width // 2, sign), width=width, steps=1)) < ALPHA


def test_noise_that_is_no_number_is_left_out():
    assert p_values(lambda noise: np.where(np.arange(WIDTH) == 7, np.nan, noise)) == []


@pytest.mark.parametrize("width", [0, 1, 2, 63, 64, 65, 66])
def test_few_coordinates_show_nothing(width):
    assert min(p_values(width=width), default=1.0) > ALPHA


def test_a_log_goes_on_where_it_was():
    log, again = PlaceLog(), PlaceLog()
    log.add(np.random.default_rng(0).normal(size=WIDTH))
    again.load_state_dict(log.state_dict())
    assert again.findings() == log.findings()
    for each in (log, again):
        each.add(np.random.default_rng(1).normal(size=WIDTH))
    assert again.findings() == log.findings()


def test_only_the_ends_of_very_long_noise_are_compared(monkeypatch):
    monkeypatch.setattr("sfumato.audit.runs.place_log._MOST", 2000)
    assert min(p_values(copied(500, 0, 2500, 1))) < ALPHA
