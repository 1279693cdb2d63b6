# SPDX-License-Identifier: Apache-2.0
"""How do I train a network? Per-example gradients, clipping, sampling, trainer, distributed."""

from sfumato.training.adapters.make_private import (
    Privacy,
    PrivateParts,
    make_private,
    make_private_with_epsilon,
)
from sfumato.training.checkpoint import CheckpointError
from sfumato.training.clipping import AdaptiveClip, Clipping, CoordinateClipping, Scaling
from sfumato.training.distributed import OtherRankError
from sfumato.training.fixing import fix
from sfumato.training.gradients import Engines, PrivateGradients
from sfumato.training.lora import add_lora
from sfumato.training.losses import cross_entropy
from sfumato.training.mechanism import DpSgd, NoisyStep
from sfumato.training.metrics import Metrics, correct
from sfumato.training.noise import IndependentNoise, NoiseSource
from sfumato.training.planning import plan_run, train
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.trainer import Trainer
from sfumato.training.transfer import cached_features

__all__ = [
    "AdaptiveClip",
    "CheckpointError",
    "Clipping",
    "CoordinateClipping",
    "CyclicBatches",
    "DpSgd",
    "Engines",
    "FixedSizeSampling",
    "IndependentNoise",
    "Metrics",
    "NoiseSource",
    "NoisyStep",
    "OtherRankError",
    "PoissonSampling",
    "Privacy",
    "PrivateGradients",
    "PrivateParts",
    "Runtime",
    "Sampling",
    "Scaling",
    "ShuffledBatches",
    "Trainer",
    "TrainingRun",
    "TruncatedPoissonSampling",
    "add_lora",
    "cached_features",
    "correct",
    "cross_entropy",
    "fix",
    "make_private",
    "make_private_with_epsilon",
    "plan_run",
    "train",
]
