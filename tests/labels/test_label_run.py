# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from torch import nn

from sfumato.labels import RandomizedLabels, train
from sfumato.testing import seeded
from sfumato.training.record import fingerprints

X, Y = torch.randn(60, 3), torch.randint(0, 2, (60,))
METHOD = RandomizedLabels(epsilon=2.0, classes=2)


def test_a_run_says_what_it_protects_and_what_it_does_not():
    run = train(nn.Linear(3, 2), X, Y, method=METHOD, evaluation=(X, Y))
    assert run.epsilon == pytest.approx(2) and "Features are public" in run.statement() and not run.recorded
    assert 0 <= run.accuracy <= 1


def test_its_json_has_a_fingerprint_of_all_of_it():
    facts = json.loads(train(nn.Linear(3, 2), X, Y, method=METHOD).to_json())
    assert fingerprints.fits(facts) and not fingerprints.fits(facts | {"epsilon": 1.0})
    assert (facts["method"], facts["relation"]) == (METHOD.name, "replace-label")


def test_a_seeded_run_says_that_it_protects_nobody():
    run = train(nn.Linear(3, 2), X, Y, method=METHOD, generator=seeded(0))
    assert run.study_note is not None and run.study_note[1:] in run.statement()
