# SPDX-License-Identifier: Apache-2.0
"""What is no plan of an audit is refused in words, wherever a run begins."""

import pytest
import torch
from torch import nn

from sfumato import labels
from sfumato.audit import Canaries
from sfumato.errors import InvalidParameterError
from sfumato.labels import RandomizedLabels
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer, train

DATA = torch.zeros(20, 2), torch.zeros(20, dtype=torch.int64)


def by_trainer(audit):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(1.0, 2)],
        relation="add-remove",
    )
    return Trainer(nn.Linear(2, 2), DATA, mechanism=mechanism, public_size=20, delta=1e-5, audit=audit)


def by_train(audit):
    sizes = {"public_size": 20, "expected_batch_size": 10, "epochs": 1}
    return train(nn.Linear(2, 2), DATA, **sizes, epsilon=2, delta=1e-5, audit=audit)


def by_labels(audit):
    return labels.train(nn.Linear(2, 2), *DATA, method=RandomizedLabels(epsilon=1.0, classes=2), audit=audit)


@pytest.mark.parametrize("begin", [by_trainer, by_train, by_labels])
@pytest.mark.parametrize(
    ("audit", "told"),
    [(2000, 2000), (10, 20), (0, 20), (-3, 20), (True, 1000), (False, 1000), ("yes", 1000), (Canaries, 1000)],
)
def test_what_is_no_plan_is_refused(begin, audit, told):
    with pytest.raises(InvalidParameterError, match=rf"pass audit=Canaries\(count={told}\)"):
        begin(audit)


def test_the_least_number_that_is_advised_is_accepted():
    assert Canaries(count=20).count == 20
    with pytest.raises(InvalidParameterError, match="at least 20"):
        Canaries(count=19)
