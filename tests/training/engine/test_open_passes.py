# SPDX-License-Identifier: Apache-2.0
import pytest
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import resolve
from sfumato.training import Clipping, PassSettings
from sfumato.training.engine.losses import cross_entropy
from sfumato.training.engine.open_passes import open_passes
from sfumato.training.engine.passes import Passes
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.sharding.sharded_model import ShardedModel, WholeModel


class Contributor:
    def contributions(self, model, batch, *, step):
        return {}

    def statement(self):
        return ""


def opened(sharding, **settings):
    model = nn.Linear(2, 2)
    return open_passes(
        model,
        cross_entropy,
        Clipper(Clipping(clip_norm=1.0), dict(model.named_parameters())),
        settings=PassSettings(**settings),
        projections=None,
        generator=resolve(None),
        expected_batch_size=1.0,
        step=lambda: 0,
        sharding=sharding,
    )


def test_a_whole_model_has_ordinary_passes():
    assert type(opened(WholeModel())) is Passes


def test_a_contributor_is_refused_for_a_sharded_model_before_anything_is_opened():
    sharded = ShardedModel.__new__(ShardedModel)
    with pytest.raises(InvalidParameterError, match="Contributor gives whole contributions"):
        opened(sharded, engine=Contributor())
