# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.training import Clipping, CoordinateClipping, PassSettings
from sfumato.training.privacy.clipping import Clipper
from sfumato.training.sharding.sharded_passes import ShardedPasses

PARAMETERS = {"weight": torch.zeros(2, 2)}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("engine='functional'", {"settings": PassSettings(engine="functional")}),
        ("compile", {"settings": PassSettings(compile=True)}),
        ("cuda_graphs", {"settings": PassSettings(cuda_graphs=True)}),
        ("projections", {"projections": 5}),
        ("CoordinateClipping", {"clipping": CoordinateClipping(coordinate_bound=1.0)}),
    ],
)
def test_what_needs_whole_gradients_or_parameters_is_refused_by_its_name(name, given):
    given = {"settings": PassSettings(), "projections": None, "clipping": Clipping(clip_norm=1.0)} | given
    clipper = Clipper(given.pop("clipping"), PARAMETERS)
    with pytest.raises(InvalidParameterError) as error:
        ShardedPasses(None, None, clipper, sharding=None, generator=None, **given)
    assert name in str(error.value)
