# SPDX-License-Identifier: Apache-2.0
"""Train networks with differential privacy: per-example gradients, clipping, sampling, the trainer."""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.training.adapters.loop_settings import LoopSettings
from sfumato.training.adapters.make_private import (
    PrivateParts,
    SpentPrivacy,
    make_private,
    make_private_with_epsilon,
)
from sfumato.training.description import Charge, Evaluation, Optimization, Privacy, Storage
from sfumato.training.distributed import OtherRankError
from sfumato.training.engine.contributions import Contributor, NoisySummer
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import cross_entropy
from sfumato.training.engine.step.settings import Engines, PassSettings
from sfumato.training.models.batch_norm import fix
from sfumato.training.models.lora import add_lora
from sfumato.training.models.transfer import cached_features
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, CoordinateClipping, Scaling
from sfumato.training.privacy.correlated_noise import BandedNoise, CorrelatedNoise
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.noise import IndependentNoise, NoiseSource, Summation
from sfumato.training.privacy.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.record.metrics import Metrics, correct_rows
from sfumato.training.record.run_folder import CheckpointError
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.train import train
from sfumato.training.trainer import Trainer

__all__ = [
    "AdaptiveClip",
    "BandedNoise",
    "Charge",
    "CheckpointError",
    "Clipping",
    "Contributor",
    "CoordinateClipping",
    "CorrelatedNoise",
    "CyclicBatches",
    "DpSgd",
    "Engines",
    "Evaluation",
    "FixedSizeSampling",
    "IndependentNoise",
    "LoopSettings",
    "Metrics",
    "NoiseSource",
    "NoisyStep",
    "NoisySummer",
    "Optimization",
    "OtherRankError",
    "PassSettings",
    "PoissonSampling",
    "Privacy",
    "PrivateGradients",
    "PrivateParts",
    "Runtime",
    "Sampling",
    "Scaling",
    "ShuffledBatches",
    "SpentPrivacy",
    "Storage",
    "Summation",
    "Trainer",
    "TrainingRun",
    "TruncatedPoissonSampling",
    "add_lora",
    "cached_features",
    "correct_rows",
    "cross_entropy",
    "fix",
    "make_private",
    "make_private_with_epsilon",
    "train",
]
