# SPDX-License-Identifier: Apache-2.0
from torch import nn

from sfumato.testing import seeded
from sfumato.training import Clipping
from sfumato.training.engine.contributions import ContributionPasses
from sfumato.training.engine.losses import cross_entropy, weighted
from sfumato.training.engine.open_passes import open_passes
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.privacy.clipping import Clipper


class Nobody:
    def contributions(self, model, batch, *, step):
        raise NotImplementedError

    def statement(self):
        return ""


def opened(settings):
    model = nn.Linear(2, 2)
    clipper = Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters()))
    options = {"projections": None, "generator": seeded(0), "expected_batch_size": 4, "step": lambda: 0}
    return open_passes(model, weighted(cross_entropy), clipper, settings=settings, **options)


def test_rows_of_a_model_are_passed_through_it():
    assert isinstance(opened(PassSettings()), Passes)


def test_a_contributor_takes_the_place_of_passes_over_rows():
    passes = opened(PassSettings(engine=Nobody()))
    assert isinstance(passes, ContributionPasses) and "Nobody" in passes.way
    passes.step_taken()
