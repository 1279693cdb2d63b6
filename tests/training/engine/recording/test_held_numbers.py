# SPDX-License-Identifier: Apache-2.0
from functools import partial

import pytest
import torch
from torch import nn

from sfumato.training.engine.losses import weighted
from sfumato.training.engine.recording.held_numbers import HeldNumbers

SHARE = 1.0


class Scaled:
    """A loss that is an object."""

    def __init__(self):
        self.share = 1.0

    def __call__(self, model, x):
        return self.share * model(x).sum(1)

    def method(self, model, x):
        return self(model, x)


def of_global(model, x):
    return SHARE * model(x).sum(1)


def scaled(model, x, *, share):
    return share["share"] * model(x).sum(1)


def closure(share):
    return lambda model, x: share["share"] * model(x).sum(1)


def written(share):
    share["share"] = 0.5


def kinds(monkeypatch):
    one, other, held, kept = Scaled(), Scaled(), {"share": 1.0}, {"share": torch.ones(1)}
    return {
        "closure": (closure(held), lambda: written(held)),
        "tensor": (closure(kept), lambda: kept.update(share=torch.ones(1))),
        "partial": (partial(scaled, share=held), lambda: written(held)),
        "object": (one, lambda: setattr(one, "share", 0.5)),
        "method": (other.method, lambda: setattr(other, "share", 0.5)),
        "global": (of_global, lambda: monkeypatch.setitem(globals(), "SHARE", 0.5)),
    }


@pytest.mark.parametrize("kind", ["closure", "tensor", "partial", "object", "method", "global"])
def test_a_number_that_a_loss_refers_to_is_seen_when_it_changes(monkeypatch, kind):
    loss, change = kinds(monkeypatch)[kind]
    held = HeldNumbers(nn.Linear(2, 1), weighted(loss))
    assert held.of_loss() and held.of_model()
    change()
    assert not held.of_loss() and held.of_model()


def test_a_number_that_a_model_holds_is_seen_when_it_changes_and_its_mode_is_none():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    held = HeldNumbers(model, of_global)
    model.eval()
    model[0].weight.data.zero_()  # what is trained changes at each step
    assert held.of_model()
    model[1].p = 0.25
    assert not held.of_model() and held.of_loss()
