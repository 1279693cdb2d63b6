# SPDX-License-Identifier: Apache-2.0
"""A price that depends on votes is marked, is not shown, and is below that of the noise alone."""

import numpy as np
import pytest

from sfumato.accounting import price
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import ConfidentGNMax, GNMax
from sfumato.pate.votes.private_price import data_dependent_epsilon

AGREED = np.tile([245.0, 3.0, 2.0], (100, 1))


@pytest.mark.parametrize(
    "aggregator", [GNMax(stddev=40.0), ConfidentGNMax(threshold=150.0, threshold_stddev=150.0, stddev=40.0)]
)
def test_agreement_is_cheap_and_disagreement_is_not(aggregator):
    agreed = data_dependent_epsilon(AGREED, aggregator, delta=1e-5).private_value
    split = data_dependent_epsilon(
        np.tile([84.0, 83.0, 83.0], (100, 1)), aggregator, delta=1e-5
    ).private_value
    whole = price(aggregator.event(100), delta=1e-5).epsilon
    assert agreed < 0.6 * whole
    assert split > agreed


def test_the_number_is_in_no_text():
    found = data_dependent_epsilon(AGREED, GNMax(stddev=40.0), delta=1e-5)
    for text in (repr(found), str(found), f"{found}"):
        assert f"{found.private_value:.3f}"[:5] not in text
    assert "must not be published" in str(found)


def test_a_delta_out_of_range_is_refused():
    with pytest.raises(InvalidParameterError):
        data_dependent_epsilon(AGREED, GNMax(stddev=40.0), delta=0.0)
