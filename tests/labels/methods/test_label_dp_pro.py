# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.labels import AltConv, LabelDpSgd, NoisyGradients, SelfConv, SelfSpan
from sfumato.labels.methods.denoisers import AltConvDenoiser, SelfConvDenoiser, SelfSpanDenoiser

TERMS = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "classes": 3,
    "public_size": 200,
    "expected_batch_size": 50,
    "steps": 4,
}
X = torch.zeros(200, 4)
HULL = {"smoothing", "clip_columns"}


def test_each_method_has_its_denoiser_and_batches_are_secret_only_if_it_keeps_them_so():
    kinds = {AltConv: AltConvDenoiser, SelfConv: SelfConvDenoiser, SelfSpan: SelfSpanDenoiser}
    for kind, wanted in kinds.items():
        method = kind(**TERMS)
        denoiser = method.denoiser(X)
        assert type(denoiser) is wanted
        assert method.reveals_batches == denoiser.reveals_batches


def test_each_method_has_only_the_settings_that_concern_it():
    shared = {field.name for field in fields(NoisyGradients)}
    own = {kind: {field.name for field in fields(kind)} - shared for kind in (AltConv, SelfConv, SelfSpan)}
    assert own == {AltConv: HULL | {"alternative_batch_size", "averaging"}, SelfConv: HULL, SelfSpan: set()}
    assert {field.name for field in fields(LabelDpSgd)} == shared


def test_settings_reach_the_denoiser():
    hull = {"smoothing": 0.5, "clip_norm": 2.0, "clip_columns": True}
    alternative = AltConv(**TERMS, **hull, alternative_batch_size=7, averaging=0.25).denoiser(X)
    assert (alternative.batch_size, alternative.averaging) == (7, 0.25)
    for denoiser in (alternative, SelfConv(**TERMS, **hull).denoiser(X)):
        assert (denoiser.smoothing, denoiser.clip_norm, denoiser.classes) == (0.5, 2.0, 3)
    assert SelfConv(**TERMS, clip_norm=2.0).denoiser(X).clip_norm is None
    assert SelfSpan(**TERMS).denoiser(X).classes == 3


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        (AltConv, {"alternative_batch_size": 0}),
        (AltConv, {"averaging": 1.0}),
        (AltConv, {"averaging": float("nan")}),
        (AltConv, {"smoothing": 0.0}),
        (SelfConv, {"smoothing": 1.5}),
        (SelfConv, {"smoothing": float("nan")}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, terms):
    with pytest.raises(InvalidParameterError, match=next(iter(terms))):
        kind(**TERMS, **terms)


def test_an_alternative_batch_has_at_most_all_rows():
    AltConv(**TERMS, alternative_batch_size=200).check_size(rows=200, units=200)
    with pytest.raises(InvalidParameterError, match="alternative_batch_size=201"):
        AltConv(**TERMS, alternative_batch_size=201).check_size(rows=200, units=200)
    with pytest.raises(InvalidParameterError, match="public_size=199"):
        AltConv(**TERMS).check_size(rows=200, units=199)


@pytest.mark.parametrize("kind", [AltConv, SelfConv, SelfSpan])
def test_a_rehearsal_works_with_fewer_rows_than_a_batch(kind):
    model = torch.nn.Linear(4, 3)
    before = model.weight.clone()
    kind(**TERMS).rehearse(model, torch.randn(200, 4))
    assert model.weight.equal(before)
