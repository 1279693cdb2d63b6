# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import Clipping, IndependentNoise, NoisyStep, PassSettings
from sfumato.training.engine.step.settings import Engines, check_settings, check_units

STEP = NoisyStep(clipping=Clipping(clip_norm=1.0))
PROJECTED = NoisyStep(clipping=Clipping(clip_norm=1.0), projections=3)
GOOD = {
    "noise_multiplier": 1.0,
    "expected_batch_size": 8.0,
    "passes": PassSettings(),
    "step": STEP,
    "generator": None,
    "noise": None,
}
RECORDED = PassSettings(compile=True)


@pytest.mark.parametrize("options", [{}, {"passes": RECORDED}, {"step": PROJECTED}, {"generator": seeded(0)}])
def test_settings_that_fit_together_pass(options):
    check_settings(**(GOOD | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"expected_batch_size": 0.0}, "expected_batch_size"),
        ({"passes": {"engine": "auto"}}, "passes is of type dict"),
        ({"passes": RECORDED, "step": PROJECTED}, "cannot be recorded"),
        ({"generator": seeded(0), "noise": IndependentNoise(seeded(0))}, "leave one of the two out"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        check_settings(**(GOOD | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"engine": "magic"}, "unknown engine"), ({"microbatch_size": 0}, "microbatch_size")],
)
def test_settings_of_passes_are_checked_when_they_are_made(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        PassSettings(**options)


def test_passes_are_recorded_if_they_are_compiled_or_replayed_as_graphs():
    assert PassSettings(compile=True).recorded and PassSettings(cuda_graphs=True).recorded
    assert not PassSettings().recorded and PassSettings().engine is Engines.AUTO


def test_rows_must_be_whole_units():
    check_units(6, 3)
    check_units(0, 3)
    with pytest.raises(InvalidParameterError, match="whole units of rows_per_unit=3"):
        check_units(7, 3)
    with pytest.raises(InvalidParameterError, match="rows_per_unit"):
        check_units(7, 0)
