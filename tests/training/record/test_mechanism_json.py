# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.training import (
    AdaptiveClip,
    Clipping,
    CoordinateClipping,
    CyclicBatches,
    DpSgd,
    FixedSizeSampling,
    NoisyStep,
    PoissonSampling,
    Scaling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.record.mechanism_json import mechanism_from, plain_mechanism

SAMPLING = [
    PoissonSampling(sampling_rate=0.1),
    TruncatedPoissonSampling(sampling_rate=0.1, batch_size=20, public_size=100),
    FixedSizeSampling(batch_size=10, public_size=100),
    ShuffledBatches(batch_size=10, public_size=100),
    CyclicBatches(batch_size=10, public_size=100),
]
CLIPPING = [
    Clipping(clip_norm=0.3),
    Clipping(clip_norm=0.3, per_layer=True, scaling=Scaling.AUTOMATIC),
    Clipping(layer_norms={"0.weight": 1.0, "0.bias": 0.5}),
    Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=10.0)),
    CoordinateClipping(coordinate_bound=0.1),
]


def made(sampling, clipping):
    return DpSgd(
        step=NoisyStep(clipping=clipping),
        sampling=sampling,
        noise=[(1.1, 3), (2.0, 1)],
        relation="replace-one",
    )


@pytest.mark.parametrize("sampling", SAMPLING, ids=repr)
def test_what_is_read_back_is_the_same_mechanism(sampling):
    for clipping in CLIPPING:
        run = made(sampling, clipping)
        assert mechanism_from(json.loads(json.dumps(plain_mechanism(run)))) == run


def test_a_part_of_another_class_is_not_written_as_one_of_ours():
    class Mine(PoissonSampling):
        pass

    assert plain_mechanism(made(Mine(sampling_rate=0.1), CLIPPING[0])) is None
    with pytest.raises(InvalidParameterError, match="own class"):
        mechanism_from(None)


def test_a_file_cannot_name_another_class():
    plain = plain_mechanism(made(SAMPLING[0], CLIPPING[0]))
    plain["sampling"]["kind"] = "Popen"
    with pytest.raises(InvalidParameterError, match="Popen"):
        mechanism_from(plain)
