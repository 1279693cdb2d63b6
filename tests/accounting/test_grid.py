# SPDX-License-Identifier: Apache-2.0
import math
import sys

import numpy as np
import pytest
from scipy.signal import lfilter

from sfumato.accounting import grid


def masses(cells: int) -> np.ndarray:
    random = np.random.default_rng(cells)
    return random.random(cells) * np.exp(-np.linspace(0, 300, cells))  # as a tail falls


@pytest.fixture(params=[True, False], ids=["with scipy.signal", "without it"])
def imported(request, monkeypatch):
    """Whether scipy.signal was imported by something else."""
    if not request.param:
        monkeypatch.delitem(sys.modules, "scipy.signal")
    return request.param


@pytest.mark.parametrize("cells", [1, 2, 1000, 50_000])
@pytest.mark.parametrize("step", [1e-5, 1e-3, 0.1, 5.0])
def test_a_discounted_sum_is_that_of_a_filter_to_the_last_bit(cells, step, imported):
    factor = math.exp(-step)
    expected = lfilter([1.0], [1.0, -factor], masses(cells))
    assert np.array_equal(grid._discounted(masses(cells), factor), expected)
    assert ("scipy.signal" in sys.modules) == imported  # a short sum is not worth its import


def test_a_long_sum_and_a_short_one_are_computed_alike(monkeypatch):
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "scipy.signal")
        short = grid._discounted(masses(3000), 0.99)
    monkeypatch.setattr(grid, "LONG", 2999)
    assert np.array_equal(grid._discounted(masses(3000), 0.99), short)


def test_a_discounted_sum_is_the_sum_it_stands_for(imported):
    given, factor = masses(40), 0.9
    slow = [sum(given[j] * factor ** (i - j) for j in range(i + 1)) for i in range(40)]
    assert grid._discounted(given, factor) == pytest.approx(slow, rel=1e-12)
