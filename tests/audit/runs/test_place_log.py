# SPDX-License-Identifier: Apache-2.0
"""Noise that was drawn for each coordinate is not accused, and parts that are copied elsewhere are found."""

import numpy as np
import pytest
import torch

from sfumato.audit.runs.place_log import PlaceLog, ShiftLog, _Blocks, ends

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
    found = np.array([p_values(width=150, seed=seed) for seed in range(200)])
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


@pytest.mark.parametrize("told", [True, False])
def test_noise_that_is_no_number_is_a_finding(told):
    log, draws = PlaceLog(), np.random.default_rng(0)
    for _ in range(2):
        log.add(draws.normal(size=WIDTH))
    assert min(found.p_value for found in log.findings()) > ALPHA
    log.add(np.where(np.arange(WIDTH) == 7, np.nan if told else 1.0, 1.0), finite=told)
    (first, *_) = log.findings()
    assert first.p_value == 0.0 and "not a finite number" in first.message


# --- between trials ---------------------------------------------------------------------------------------


def shifted(made, *, width=WIDTH, steps=STEPS, seed=0):
    """Return what the tests say about steps of noise that `made(noise, step)` takes from one long stream."""
    log, stream = PlaceLog(), np.random.default_rng(seed).normal(size=width * (steps + 1))
    for step in range(steps):
        log.add(made(stream, step)[:width])
    return min(log.findings(), key=lambda found: found.p_value)


@pytest.mark.parametrize("advance", [1, 100, 700, 2500])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_stream_that_advances_by_less_than_a_step_is_found(advance, sign):
    found = shifted(lambda stream, step: sign**step * stream[advance * step :])
    assert found.p_value < ALPHA and f"{advance} coordinates before" in found.message


@pytest.mark.parametrize("turn", [1, -3])
def test_noise_of_a_part_that_is_rotated_is_found(turn):
    fresh = np.random.default_rng(1)

    def made(stream, step):
        noise = fresh.normal(size=WIDTH)
        noise[1000:1150] = np.roll(stream[:150], turn * step)
        return noise

    found = shifted(made)
    assert found.p_value < ALPHA and f"{abs(turn)} coordinates" in found.message


def test_a_stream_that_advances_by_a_step_is_not_accused():
    found = np.array(
        [shifted(lambda stream, step: stream[150 * step :], width=150, seed=s).p_value for s in range(200)]
    )
    for p in (0.02, 0.1, 0.3):  # of five tests
        assert np.mean(5 * found <= p) <= p + 4 * np.sqrt(p / 200)


@pytest.mark.parametrize("width", [64, 71, 100, 203])
def test_blocks_are_sums_of_neighboring_products(width):
    draws = np.random.default_rng(width)
    one, other = (signs(draws.normal(size=width)) for _ in range(2))
    blocks = _Blocks()
    blocks.add(one, other, first=-width)
    found = {}
    for shift in range(64 - width, width - 63):
        places = range(max(0, -shift), width - max(0, shift))
        products = [int(one[i + shift]) * int(other[i]) for i in places]
        found[shift] = [abs(sum(products[at : at + 64])) for at in range(0, len(products) - 63, 8)]
    largest = max(max(sums) for sums in found.values())
    first = next(shift for shift, sums in found.items() if max(sums) == largest)
    assert blocks.state == (sum(len(sums) for sums in found.values()), largest, first)


def signs(noise):
    return np.where(noise < 0, -1, 1).astype(np.int8)


def of_steps(advance, *, width=400, steps=80, seed=0, out=0.0):
    """Return the p-value of steps that count, whose noise is taken from one stream; a part does not count."""
    draws = np.random.default_rng(seed)
    log, stream = ShiftLog("a layer"), draws.normal(size=(steps + 1) * width)
    for step in range(steps):
        log.add(signs(stream[advance * step :][:width]) * (draws.random(width) >= out))
    (found,) = log.findings()
    return found.p_value


@pytest.mark.parametrize("advance", [1, 100, 390])
def test_noise_that_comes_back_in_the_next_step_is_found(advance):
    assert of_steps(advance, out=0.3) < ALPHA


def test_p_values_of_fresh_steps_are_no_smaller_than_chance_allows():
    found = np.array([of_steps(60, width=60, steps=10, seed=seed, out=0.2) for seed in range(300)])
    for p in (0.02, 0.1, 0.3):
        assert np.mean(found <= p) <= p + 4 * np.sqrt(p / 300)


def test_a_shift_log_goes_on_where_it_was():
    log, again, noise = (
        ShiftLog("a layer"),
        ShiftLog("a layer"),
        np.random.default_rng(0).normal(size=(3, 100)),
    )
    assert log.findings() == again.findings() == []
    for each in noise[:2]:
        log.add(signs(each))
    again.load_state_dict(log.state_dict())
    for each in (log, again):
        each.add(signs(noise[2]))
    assert again.findings() == log.findings() != []


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


@pytest.mark.parametrize("most", [4, 6, 10, 100])
def test_only_the_ends_of_very_long_noise_are_taken(most, monkeypatch):
    parts = [
        torch.arange(4).double(),
        torch.zeros(0),
        torch.arange(4, 6),
        torch.arange(6, 12).view(2, 3).bfloat16(),
    ]
    sizes, original = [], torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda part: (sizes.append(part.numel()), original(part))[1])
    every = list(range(12))
    kept = every if most >= 12 else every[: most // 2] + every[-(most // 2) :]
    assert ends(parts, most).tolist() == kept
    assert sum(sizes) == len(kept)  # no other number is copied


def test_no_tensors_have_no_numbers():
    assert len(ends([])) == 0
