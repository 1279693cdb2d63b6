# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training import Trainer
from sfumato.training.record import fingerprints


def test_a_run_says_what_was_set_and_what_it_ended_with():
    rows = torch.zeros(20, 3), torch.arange(20) % 2
    given = {"noise_multiplier": 1.0, "delta": 1e-3, "public_size": 20, "steps": 2, "expected_batch_size": 5}
    made = Trainer(nn.Linear(3, 2), rows, generator=seeded(1), progress=False, **given)
    run = made.fit()
    assert run.mechanism is made.mechanism and run.expected_batch_size == made.expected_batch_size == 5
    assert run.price == made.mechanism.price(delta=1e-3) and run.privacy_unit == "example"
    assert run.weights_sha256 == fingerprints.fingerprint_of(run.model.state_dict())
    assert run.study_note and run.account is None and run.stopped_after is None
