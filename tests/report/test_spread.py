# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.report.spread import half_interval, mean_of


def test_a_mean_of_nothing_is_no_number():
    assert math.isnan(mean_of([])) and mean_of([1.0, 2.0]) == 1.5


def test_of_one_value_nothing_is_known():
    assert half_interval([1.0]) is None and half_interval([]) is None


def test_an_interval_covers_the_truth_as_often_as_it_says():
    import numpy as np

    draws = np.random.default_rng(0).normal(size=(2000, 5))
    covered = [abs(mean_of(d)) <= half_interval(d) for d in draws.tolist()]
    assert sum(covered) / 2000 == pytest.approx(0.95, abs=0.015)
