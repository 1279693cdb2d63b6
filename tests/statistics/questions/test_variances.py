# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.statistics.columns.columns import STEPS, column_of
from sfumato.statistics.questions.variances import Variance, variance
from sfumato.testing import seeded


def test_the_stated_sensitivity_is_reached(neighbors):
    question = Variance(bounds=(-1, 1), epsilon=0.5, relation="replace-one")
    calls = neighbors.replay(question, column_of([-1.0]), column_of([1.0]))
    exact = np.array(calls[0].given[0])
    assert np.abs(exact - exact[::-1]).sum() == calls[0].mechanism.l1_sensitivity == 8 * STEPS
    assert np.linalg.norm(exact - exact[::-1]) == pytest.approx(calls[0].mechanism.l2_sensitivity)


def test_a_constant_column_has_a_small_variance():
    release = variance([7.0] * 5000, bounds=(0, 10), epsilon=1.0, generator=seeded(1))
    assert 0.0 in release.interval
    assert release.value < 0.2
