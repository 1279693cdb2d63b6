# SPDX-License-Identifier: Apache-2.0

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfumato.estimators.rows import augmented, clipped, row_norm

any_float = st.floats()
rows = st.lists(st.tuples(any_float, any_float, any_float), min_size=1, max_size=6)


@given(rows, st.floats(1e-3, 1e3))
def test_no_row_is_longer_than_the_clip_norm_whatever_is_in_it(rows, clip_norm):
    short = clipped(np.array(rows), clip_norm=clip_norm)
    assert np.isfinite(short).all()
    assert np.linalg.norm(short, axis=1).max() <= clip_norm * (1 + 1e-12)


@given(rows)
def test_a_row_depends_on_no_other(rows):
    together = clipped(np.array(rows), clip_norm=1.0)
    assert np.array_equal(together[-1:], clipped(np.array(rows[-1:]), clip_norm=1.0))


def test_short_rows_stay_as_they_are_and_the_rest_of_the_norm_is_the_intercept():
    short = clipped(np.array([[0.3, 0.4], [30.0, 40.0]]), clip_norm=1.0)
    assert short[0].tolist() == [0.3, 0.4]
    whole = augmented(short, np.array([True, True]), constant=0.5)
    assert np.linalg.norm(whole, axis=1).max() <= row_norm(1.0, fit_intercept=True) * (1 + 1e-12)


def test_a_row_that_is_not_present_has_no_intercept_either():
    assert augmented(np.ones((2, 1)), np.array([True, False]), constant=0.5).tolist() == [[1, 0.5], [0, 0]]
