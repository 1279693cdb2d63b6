# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np

from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.questions.clipped_values import ClippedShare, clipped_share
from sfumato.testing import seeded

LIMITS = (0.0, 100.0)


def test_values_at_the_bounds_are_not_clipped():
    assert clipped_share([0.0, 100.0] * 500, bounds=LIMITS, epsilon=50.0, generator=seeded(0)).value == 0.0
    beyond = [math.nextafter(100.0, 200.0), math.nextafter(0.0, -1.0)] * 500
    assert clipped_share(beyond, bounds=LIMITS, epsilon=50.0, generator=seeded(0)).value == 1.0


SAMPLE = np.random.default_rng(5).beta(2, 5, 800) * 100


def test_a_clipped_share_covers_as_often_as_it_says(check_coverage):
    question = ClippedShare(bounds=(0, 40), epsilon=0.2)
    data, generator, true = column_of(SAMPLE), FastGenerator(4), (SAMPLE > 40).mean()
    check_coverage(lambda _: true in question.answer(data, generator=generator).interval)
