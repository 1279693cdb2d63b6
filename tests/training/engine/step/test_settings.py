# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import IndependentNoise
from sfumato.training.engine.step.settings import check_settings, check_units

GOOD = {
    "noise_multiplier": 1.0,
    "expected_batch_size": 8.0,
    "microbatch_size": None,
    "recorded": False,
    "projections": None,
    "generator": None,
    "noise": None,
}


@pytest.mark.parametrize("options", [{}, {"recorded": True}, {"projections": 3}, {"generator": seeded(0)}])
def test_settings_that_fit_together_pass(options):
    check_settings(**(GOOD | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"expected_batch_size": 0.0}, "expected_batch_size"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"recorded": True, "projections": 3}, "cannot be recorded"),
        ({"generator": seeded(0), "noise": IndependentNoise(seeded(0))}, "leave one of the two out"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        check_settings(**(GOOD | options))


def test_rows_must_be_whole_units():
    check_units(6, 3)
    check_units(0, 3)
    with pytest.raises(InvalidParameterError, match="whole units of rows_per_unit=3"):
        check_units(7, 3)
    with pytest.raises(InvalidParameterError, match="rows_per_unit"):
        check_units(7, 0)
