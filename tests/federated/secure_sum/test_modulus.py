# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from scipy.stats import norm, skellam

from sfumato.federated.secure_sum.modulus import log_wrap_probability
from sfumato.federated.secure_sum.rotation import rotated

FACTS = {"modulus": 2**16, "clients": 50, "clip_steps": 2000.0, "size": 2**12, "noise_variance": 250.0**2}


@pytest.mark.parametrize("is_skellam", [False, True])
def test_more_of_anything_makes_wrapping_likelier(is_skellam: bool) -> None:
    base = log_wrap_probability(**FACTS, skellam=is_skellam)
    for name, factor in [("clients", 2), ("clip_steps", 2), ("noise_variance", 4)]:
        assert log_wrap_probability(**{**FACTS, name: FACTS[name] * factor}, skellam=is_skellam) > base
    assert log_wrap_probability(**{**FACTS, "modulus": 2**15}, skellam=is_skellam) > base
    assert log_wrap_probability(**{**FACTS, "modulus": 2**17}, skellam=is_skellam) < base


def test_no_room_for_rounding_means_that_everything_may_wrap() -> None:
    assert log_wrap_probability(**{**FACTS, "modulus": 64}, skellam=False) == 0.0


def test_the_bound_is_above_exact_probabilities_of_noise_alone() -> None:
    facts = {"modulus": 400, "clients": 4, "clip_steps": 1e-9, "size": 1, "noise_variance": 400.0}
    room = 200 - 4
    exactly = 2 * norm.sf(room / 40)
    assert math.log(exactly) <= log_wrap_probability(**facts, skellam=False) < math.log(exactly) + 6
    exactly = 2 * skellam.sf(room, 800, 800)
    assert math.log(exactly) <= log_wrap_probability(**facts, skellam=True) < math.log(exactly) + 6


def test_the_bound_is_above_what_rotations_of_equal_updates_show() -> None:
    update = np.zeros(64)
    update[:16] = 0.25  # norm 1, and far from even
    clients, steps, modulus = 8, 100.0, 800
    sums = np.array([clients * steps * rotated(update, seed=i) for i in range(500)])
    observed = (np.abs(sums).max(1) >= modulus / 2).mean()
    facts = {"modulus": modulus, "clients": clients, "clip_steps": steps, "size": 64}
    assert observed <= math.exp(log_wrap_probability(**facts, noise_variance=1e-9, skellam=False))
