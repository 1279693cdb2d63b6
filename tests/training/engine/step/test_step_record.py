# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import Clipping, IndependentNoise, NoisyStep, PoissonSampling
from sfumato.training.engine.step.step_record import StepRecord

NOISE = IndependentNoise(seeded(0))


def record_of(noises):
    record = StepRecord()
    for noise in noises:
        record.count(noise)
    return record


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0]), max_size=12))
def test_the_record_holds_every_step_in_order(noises):
    record = record_of(noises)
    assert [noise for noise, count in record.history for _ in range(count)] == noises
    assert record.steps == len(noises)
    assert all(a != b for (a, _), (b, _) in zip(record.history, record.history[1:], strict=False))


def test_the_event_is_that_of_all_steps():
    step, sampling = NoisyStep(clipping=Clipping(clip_norm=1.0)), PoissonSampling(sampling_rate=0.1)
    found = record_of([1.0, 1.0, 2.0]).event(step, sampling, Relation.ADD_REMOVE, NOISE)
    wanted = sampling.event([(step.event(1.0), 2), (step.event(2.0), 1)], relation=Relation.ADD_REMOVE)
    assert found == wanted
    assert found != record_of([1.0, 2.0, 2.0]).event(
        step, sampling, Relation.ADD_REMOVE, IndependentNoise(seeded(0))
    )


def test_a_checkpoint_is_loaded_into_an_empty_record_only():
    record = StepRecord()
    record.load([[1, 2.0], (2.0, 1)])
    assert record.history == ((1.0, 2), (2.0, 1))
    with pytest.raises(InvalidParameterError, match="steps were taken already"):
        record.load([])
    assert record.steps == 3
