# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from sfumato.training.fast.agreement import agrees, are_alike, on_the_side
from sfumato.training.privacy.clipping import ClippedSums


def computed(total, *sums):
    return torch.tensor(total), ClippedSums({str(i): torch.tensor(s) for i, s in enumerate(sums)})


WANTED = computed(4.0, [1.0, 2.0], [0.001])


@pytest.mark.parametrize(
    ("got", "agree"),
    [
        (computed(4.0, [1.0, 2.0], [0.001]), True),
        (computed(4.0001, [1.0001, 2.0], [0.0011]), True),
        (computed(4.1, [1.0, 2.0], [0.001]), False),
        (computed(4.0, [1.1, 2.0], [0.001]), False),
        (computed(4.0, [1.0, 2.0], [0.1]), False),
        (computed(4.0, [1.002, 2.0], [0.001]), True),
        (computed(4.0, [math.nan, 2.0], [0.001]), False),
        (computed(4.0, [1.0, 2.0], [math.nan]), False),
        (computed(math.nan, [1.0, 2.0], [0.001]), False),
    ],
)
def test_sums_agree_up_to_rounding(got, agree):
    assert agrees(got, WANTED) is agree


def test_a_small_sum_that_is_missing_is_seen_though_it_is_less_than_rounding_of_the_largest():
    wanted = computed(4.0, [1.0, 2.0], [0.1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert agrees(computed(4.0, [1.05, 2.1], [0.12]), wanted)
        assert not agrees(computed(4.0, [1.0, 2.0], [0.0]), wanted)


def test_what_is_not_finite_agrees_with_what_is_not():
    assert agrees(computed(math.nan, [1.0]), computed(math.inf, [2.0]))
    assert not agrees(computed(1.0, [1.0]), computed(math.inf, [1.0]))


def test_draws_are_alike_if_their_norms_are_of_one_size():
    assert are_alike(computed(2.0, [9.0]), computed(4.0, [1.0]))
    assert not are_alike(computed(20.0, [1.0]), computed(4.0, [1.0]))
    assert not are_alike(computed(math.nan, [1.0]), computed(4.0, [1.0]))


def test_what_is_put_aside_is_equal():
    assert agrees(WANTED, on_the_side(WANTED))
