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


def audited(model, *, sampling_rate=1.0, noise=((1.0, 4),), clip_norm=1.0, dtype=torch.float32, size=ROWS):
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=clip_norm)),
        sampling=PoissonSampling(sampling_rate=sampling_rate),
        noise=noise,
        relation="add-remove",
    )
    return Trainer(
        model.to(dtype),
        (rows()[0].to(dtype), rows()[1]),
        mechanism=run,
        public_size=size,
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
    assert all(len(set(noises)) == 8 for noises in seen.values())


def test_noise_is_looked_at_before_it_is_rounded(monkeypatch):
    """Rounded to bfloat16, more of it lies within 1, 1.5, 2 ... standard deviations than should."""
    seen, original = [], Auditor.observe_noise

    def observe_noise(self, name, noise):
        seen.append(tuple(noise))
        original(self, name, noise)

    monkeypatch.setattr(Auditor, "observe_noise", observe_noise)
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        seen.clear()
        assert not audited(nn.Linear(2, 2), dtype=dtype).audit.refuted
        found[dtype] = list(seen)
    assert len(found[torch.float32]) == 16  # two tensors in eight trials
    assert found[torch.float32] == found[torch.bfloat16] == found[torch.float16]


@pytest.mark.parametrize(("clip_norm", "size"), [(1e-3, 50_000), (1e7, ROWS)])
def test_gradients_that_float16_cannot_hold_accuse_nobody(clip_norm, size):
    """Noise that is rounded to zero, or to infinity, on its way to a parameter was added all the same."""
    audit = audited(nn.Linear(2, 2), dtype=torch.float16, clip_norm=clip_norm, size=size).audit
    assert [check.message for check in audit.failures] == []


def test_a_number_that_is_not_finite_in_any_coordinate_is_seen(monkeypatch):
    told, original = [], Auditor.observe_places

    def observe_places(self, noise, *, finite):
        told.append(finite)
        original(self, noise, finite=finite)

    def released(self):
        found = self._sums.released()
        found["model.weight"][-1, -1] = float("inf")
        return found

    monkeypatch.setattr(Auditor, "observe_places", observe_places)
    assert not audited(nn.Linear(2, 2)).audit.refuted
    monkeypatch.setattr(PrivateGradients, "released", released)
    assert audited(nn.Linear(2, 2)).audit.refuted
    assert told == [True] * 8 + [False] * 8


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
    assert "rounding could look like too much" in gaps["contributions in the model's own tensors"]


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
