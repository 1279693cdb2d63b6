# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.labels import Learner
from sfumato.labels.learning import Released, soft_cross_entropy

X = torch.cat([torch.randn(40, 2) - 2, torch.randn(40, 2) + 2])
TARGETS = torch.eye(2).repeat_interleave(40, 0)


def test_a_model_learns_what_was_released():
    model = nn.Linear(2, 2)
    Learner(epochs=30, batch_size=20, learning_rate=0.1)(
        model, X, Released(targets=TARGETS, loss=soft_cross_entropy)
    )
    assert (model(X).argmax(1) == TARGETS.argmax(1)).float().mean() > 0.9


@pytest.mark.parametrize(
    "options",
    [{"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"seed": -1}, {"ema_decay": 1.5}],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(InvalidParameterError, match=next(iter(options))):
        Learner(**options)


def test_a_rehearsal_changes_nothing_and_finds_what_cannot_work():
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    Learner().rehearse(model, X, classes=2)
    assert torch.equal(model.weight, before)
    with pytest.raises(SfumatoError):
        Learner().rehearse(nn.Linear(3, 2), X, classes=2)


def test_the_smallest_of_all_batches_is_rehearsed():
    seen = []

    class Counting(nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    Learner(batch_size=30).rehearse(Counting(2, 2), X, classes=2, lessons=[80, 31])
    assert set(seen) == {15}  # 31 rows are cut into batches of 15 and 16
