# SPDX-License-Identifier: Apache-2.0
"""Steps that do not count: they show noise and clipping, and leave the run alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.audit.runs.auditor import Auditor
from sfumato.audit.runs.canaries import Canaries, CanaryRun
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, PrivateGradients, Trainer

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

ROWS, COUNT = 20, 400


def rows():
    return torch.ones(ROWS, 2), torch.zeros(ROWS, dtype=torch.int64)


def audited(model, *, sampling_rate=1.0, noise=((1.0, 4),)):
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=sampling_rate),
        noise=noise,
        relation="add-remove",
    )
    return Trainer(
        model,
        rows(),
        mechanism=run,
        public_size=ROWS,
        delta=1e-5,
        learning_rate=0.1,
        evaluate_every=run.steps,
        progress=False,
        generator=seeded(1),
        audit=Canaries(count=COUNT),
    ).fit()


def test_trials_leave_the_run_as_it_is(monkeypatch):
    found = []
    for tried in (True, False):
        if not tried:
            monkeypatch.setattr(CanaryRun, "try_out", lambda self, private, **told: None)
        model = nn.Linear(2, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        run = audited(model)
        found.append((run.audit, model.weight.tolist()))
    (with_trials, weights), (without, others) = found
    assert weights == others and with_trials.in_scores == without.in_scores
    assert len(with_trials.checks) == len(without.checks) + 2


def test_the_first_trials_are_compared_with_each_other(monkeypatch):
    """One trial shows no noise that comes back: a run of few steps has several all the same."""
    seen, original = {}, Auditor.observe_noise

    def observe_noise(self, name, noise):
        seen.setdefault(name, []).append(tuple(noise))
        original(self, name, noise)

    monkeypatch.setattr(Auditor, "observe_noise", observe_noise)
    audited(nn.Linear(2, 2))
    assert set(seen) == {"the model's weight", "the model's bias"}
    assert all(len(set(noises)) == 3 for noises in seen.values())


def test_a_trial_has_noise_of_its_own_and_is_not_counted():
    model = nn.Linear(2, 2)
    private = PrivateGradients(
        model, clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1, generator=seeded(3), trials=True
    )
    with private.trying():
        private.finish()
    tried = [model.weight.grad.clone()]
    private.drop()
    assert model.weight.grad is None and private.steps == 0
    with private.trying():
        private.finish()
    tried.append(model.weight.grad.clone())
    private.finish()
    assert private.steps == 1
    assert len({tuple(part.flatten().tolist()) for part in (*tried, model.weight.grad)}) == 3


def test_made_up_rows_are_not_tried_where_rounding_hides_the_noise():
    run = audited(nn.Linear(2, 2), noise=((1e-6, 4),))
    gaps = {gap.name: gap.why for gap in run.audit.unchecked}
    assert not run.audit.refuted
    assert "rounding of float32 sums" in gaps["contributions in the model's own tensors"]


def test_only_an_audit_may_take_steps_that_do_not_count():
    private = PrivateGradients(nn.Linear(2, 2), clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1)
    with pytest.raises(InvalidParameterError, match="only an audit"), private.trying():
        pass
    with pytest.raises(InvalidParameterError, match="only an audit"):
        private.alone(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))


def test_nothing_is_tried_out_in_the_middle_of_a_step():
    private = PrivateGradients(
        nn.Linear(2, 2), clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1, trials=True
    )
    private.accumulate(*rows())
    with pytest.raises(InvalidParameterError, match="a step has begun"), private.trying():
        pass


class Depth(nn.Module):
    """A block that is left out at random, which no module says of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(2, 8), nn.Linear(8, 2, bias=False)

    def forward(self, x):
        kept = F.dropout(torch.ones_like(x[:, :1]), 0.5, self.training)
        z = torch.relu(self.block(x))
        return self.head(0.01 * z + kept * z)


@pytest.mark.parametrize("model", [Depth, lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))])
def test_models_that_draw_are_allowed_the_whole_bound(model):
    """Their gradients have no known length: in clean runs they were called too long."""
    run = audited(model(), noise=((0.3, 200),), sampling_rate=0.3)
    found = {check.name: check for check in run.audit.checks}
    assert not run.audit.refuted
    assert found["contributions in the model's own tensors"].p_value > 1e-6
