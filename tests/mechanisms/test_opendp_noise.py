# SPDX-License-Identifier: Apache-2.0
"""OpenDP's privacy maps, beside the ideal privacy loss."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.mechanisms import opendp_noise

positive = st.floats(1e-6, 1e6)


@given(positive, positive)
@settings(max_examples=40, deadline=None)
def test_opendp_proves_no_more_than_the_ideal_loss(scale, sensitivity):
    assert opendp_noise.laplace("f64", scale).map(sensitivity) <= sensitivity / scale * (1 + 1e-12)
    ideal = (sensitivity / scale) ** 2 / 2
    assert opendp_noise.gaussian("f64", scale).map(sensitivity) <= ideal * (1 + 1e-12)


@pytest.mark.parametrize(
    ("ideal", "mapped", "charged"), [(1.0, 0.9, 1.0), (1.0, 1.0 + 1e-12, 1.0), (1.0, 1.1, 1.1)]
)
def test_the_larger_loss_is_charged_unless_it_is_rounding(ideal, mapped, charged):
    assert opendp_noise.charged(ideal, mapped) == charged
