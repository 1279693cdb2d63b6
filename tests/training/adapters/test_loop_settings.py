# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.accounting import Relation
from sfumato.errors import InvalidParameterError
from sfumato.training import LoopSettings


def test_the_defaults_are_one_batch_a_step_and_add_remove():
    settings = LoopSettings()
    assert settings.batches_per_step == 1 and settings.relation is Relation.ADD_REMOVE
    assert settings.expected_batch_size is None and settings.privacy_unit is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches_per_step": 0},
        {"batches_per_step": 1.5},
        {"expected_batch_size": 0.0},
        {"expected_batch_size": math.nan},
        {"relation": "cousins"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_when_they_are_made(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        LoopSettings(**wrong)
