# SPDX-License-Identifier: Apache-2.0
"""Fingerprints change with what they are of, and whatever a model keeps has one."""

import pytest
import torch

from sfumato.training.record.fingerprints import fingerprint_of, fits, sealed


def test_facts_that_were_changed_do_not_fit():
    facts = sealed({"epsilon": 1.0, "steps": [1, 2]})
    assert fits(facts)
    assert not fits(facts | {"epsilon": 2.0})
    assert not fits({"epsilon": 1.0})


@pytest.mark.parametrize(
    "weight",
    [
        torch.ones(2),
        torch.ones(()),
        torch.ones(0),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.bool),
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        {"extra": "state"},
        None,
    ],
    ids=["plain", "scalar", "empty", "bfloat16", "bool", "sparse", "conjugate", "extra state", "nothing"],
)
def test_whatever_a_model_keeps_has_a_fingerprint(weight):
    assert fingerprint_of({"w": weight}) == fingerprint_of({"w": weight})
    assert fingerprint_of({"w": weight}) != fingerprint_of({"v": weight})
    assert fingerprint_of({"w": weight}) != fingerprint_of({"w": torch.full((2,), 3.0)})


def test_one_weight_that_differs_shows():
    assert fingerprint_of({"w": torch.zeros(5)}) != fingerprint_of({"w": torch.tensor([0.0, 0, 0, 0, 1e-9])})
