# SPDX-License-Identifier: Apache-2.0
import dataclasses

from sfumato.mechanisms.random import SecureGenerator
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling
from sfumato.training.record.run_settings import of_claim

RUN = DpSgd(
    step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
    sampling=PoissonSampling(sampling_rate=0.1),
    noise=[(2.0, 3)],
    relation="add-remove",
)


def test_the_same_run_has_the_same_settings():
    assert of_claim(RUN, None, delta="1e-5") == of_claim(dataclasses.replace(RUN), None, delta="1e-5")


def test_everything_that_changes_the_claim_changes_the_settings():
    texts = [of_claim(RUN, None, delta="1e-5")]
    texts.append(of_claim(RUN, None, delta="1e-6"))
    texts.append(of_claim(RUN, seeded(0), delta="1e-5"))
    texts.append(of_claim(RUN, seeded(1), delta="1e-5"))
    for change in (
        {"noise": [(2.0, 4)]},
        {"noise": [(2.5, 3)]},
        {"sampling": PoissonSampling(sampling_rate=0.2)},
        {"step": NoisyStep(clipping=Clipping(clip_norm=0.5))},
        {"step": NoisyStep(clipping=Clipping(clip_norm=1.0), group_size=2)},
        {"relation": "zero-out"},
    ):
        texts.append(of_claim(dataclasses.replace(RUN, **change), None, delta="1e-5"))
    assert len({tuple(sorted(text.items())) for text in texts}) == len(texts)


def test_nothing_of_a_secret_stream_is_told():
    assert of_claim(RUN, SecureGenerator()) == of_claim(RUN, SecureGenerator()) == of_claim(RUN, None)
