# SPDX-License-Identifier: Apache-2.0
"""Every way to train is attacked, under one confidence, and none is found to claim too much."""

import pytest
import torch

from attacks import trainers as module
from attacks.trainers import trainers
from sfumato.errors import InvalidParameterError
from sfumato.labels.methods.catalogue import GRADIENT_METHODS
from sfumato.testing import seeded
from sfumato.training.privacy.clipping import Scaling
from sfumato.training.privacy.noise import IndependentNoise
from sfumato.training.privacy.sampling import __all__ as samplings

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

CANARIES = 200
WAYS = 17


def test_no_way_to_train_claims_too_much():
    found = list(trainers(CANARIES, generator=seeded(1)))
    assert len(found) == len({result.subject for result in found}) == WAYS
    assert not any(result.refuted for result in found)
    assert sum(result.best.epsilon > 0 for result in found) > WAYS / 2  # the attacks see something
    assert all(result.best.trials == CANARIES for result in found)
    units = {result.subject: result.claim.privacy_unit for result in found}
    assert units["DP-SGD, Poisson, add-remove, users of 4 rows"] == "user"
    assert units["labels, altconv, replace-label"] == "label"


def test_errors_of_all_ways_add_up_to_the_confidence_asked_for():
    first = next(trainers(CANARIES, confidence=0.9, generator=seeded(1)))
    errors = [1 - bound.confidence for bound in first.bounds] + [check.error for check in first.checks]
    assert WAYS * sum(errors) == pytest.approx(0.1)


def test_every_sampler_relation_and_style_of_clipping_is_among_the_ways():
    ways = [way.mechanism for way in module._ways(400)]
    kinds = {type(mechanism.sampling).__name__ for mechanism in ways}
    assert kinds == {name for name in samplings if name.endswith(("Sampling", "Batches"))} - {"Sampling"}
    assert len({mechanism.relation for mechanism in ways}) == 4
    assert {mechanism.step.clipping.scaling for mechanism in ways} == set(Scaling)
    assert any(mechanism.step.clipping.per_layer for mechanism in ways)
    assert any(mechanism.step.clipping.adaptive for mechanism in ways)
    assert any(mechanism.step.projections for mechanism in ways)
    assert any(way.rows_each > 1 for way in module._ways(400))


def test_every_method_of_noisy_gradients_is_among_the_ways():
    ways = [way for way in module._ways(400) if way.name.startswith("labels")]
    ran = {type(way.method) for way in ways if way.method is not None}
    (shown,) = (way.mechanism for way in ways if way.method is None)
    terms = {"epsilon": 1e6, "delta": 1e-5, "classes": 2, "public_size": 400, "noise_multiplier": 1.5}
    for kind in GRADIENT_METHODS:
        method = kind(**terms, steps=12, expected_batch_size=100)
        assert (kind in ran) != method.reveals_batches
        if method.reveals_batches:  # both take their batches, and are charged for them, as that one is
            assert method.event() == shown.event()


@pytest.mark.parametrize("part", ["Batches", "labels", "users", "projected"])
def test_noise_that_is_missing_is_found_out(monkeypatch, part):
    original = IndependentNoise.add_

    def less(self, sums, *, stddev, step):
        original(self, sums, stddev=stddev / 3, step=step)

    monkeypatch.setattr(IndependentNoise, "add_", less)
    ways = [way for way in module._ways(200 + CANARIES) if part in way.name]
    monkeypatch.setattr(module, "_ways", lambda units: iter(ways))
    found = list(trainers(CANARIES, generator=seeded(1)))
    assert found and all(result.refuted for result in found)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 12])
def test_numbers_of_canaries_that_show_nothing_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        next(trainers(wrong))
