# SPDX-License-Identifier: Apache-2.0
import pytest
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import Clipping, PassSettings
from sfumato.training.engine.contributions import ContributionPasses
from sfumato.training.engine.losses import cross_entropy, weighted
from sfumato.training.engine.open_passes import open_passes
from sfumato.training.engine.passes import Passes
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.sharding.sharded_model import ShardedModel, WholeModel


class Nobody:
    def contributions(self, model, batch, *, step):
        raise NotImplementedError

    def statement(self):
        return ""


def opened(settings, sharding):
    model = nn.Linear(2, 2)
    return open_passes(
        model,
        weighted(cross_entropy),
        Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters())),
        settings=settings,
        projections=None,
        generator=seeded(0),
        expected_batch_size=4,
        step=lambda: 0,
        sharding=sharding,
    )


def test_rows_of_a_whole_model_are_passed_through_it():
    assert type(opened(PassSettings(), WholeModel())) is Passes


def test_a_contributor_takes_the_place_of_passes_over_rows():
    passes = opened(PassSettings(engine=Nobody()), WholeModel())
    assert isinstance(passes, ContributionPasses) and "Nobody" in passes.way
    passes.step_taken(1)


def test_a_contributor_is_refused_for_a_sharded_model_before_anything_is_opened():
    sharded = ShardedModel.__new__(ShardedModel)
    with pytest.raises(InvalidParameterError, match="Nobody gives whole contributions"):
        opened(PassSettings(engine=Nobody()), sharded)
