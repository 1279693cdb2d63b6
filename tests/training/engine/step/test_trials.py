# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import IndependentNoise
from sfumato.training.engine.step.trials import Trials


def drawn(noise, step=0):
    sums = [torch.zeros(8)]
    noise.add_(sums, stddev=1.0, step=step)
    return tuple(sums[0].tolist())


def test_trials_need_an_audit_and_no_step_under_way():
    noise = IndependentNoise(seeded(0))
    with pytest.raises(InvalidParameterError, match="only an audit"):
        Trials(allowed=False).begin(noise, begun=False)
    with pytest.raises(InvalidParameterError, match="only an audit"):
        Trials(allowed=False).require()
    with pytest.raises(InvalidParameterError, match="a step has begun"):
        Trials(allowed=True).begin(noise, begun=True)


def test_no_trial_shares_its_noise_with_another_one_or_with_a_step():
    noise, trials = IndependentNoise(seeded(0)), Trials(allowed=True)
    found = [drawn(trials.begin(noise, begun=False)) for _ in range(3)]
    assert len({*found, *(drawn(noise, step) for step in range(3))}) == 6
