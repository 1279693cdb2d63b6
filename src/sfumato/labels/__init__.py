# SPDX-License-Identifier: Apache-2.0
"""Training when only labels are secret. Features are public and not protected."""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.labels.choose import Choice, choose
from sfumato.labels.label_run import LabelRun
from sfumato.labels.learner import Learner
from sfumato.labels.learning import learn, predictions
from sfumato.labels.methods.clusters import ClusterLabels, cluster_count
from sfumato.labels.methods.label_dp_pro import AltConv, SelfConv, SelfSpan
from sfumato.labels.methods.noisy_gradients import LabelDpSgd, NoisyGradients
from sfumato.labels.methods.randomized_response import Correction
from sfumato.labels.methods.released_labels import Alibi, MultiStage, PriorLabels, RandomizedLabels
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.simplex import onto_simplex
from sfumato.labels.projection.solvers import Accelerated, FrankWolfe, ProjectedGradient
from sfumato.labels.projection.span import Span
from sfumato.labels.train import train
from sfumato.labels.whitening import whitened

__all__ = [
    "Accelerated",
    "Alibi",
    "AltConv",
    "Choice",
    "ClusterLabels",
    "ColumnGeneration",
    "Correction",
    "FrankWolfe",
    "LabelDpSgd",
    "LabelGradients",
    "LabelRun",
    "Learner",
    "MultiStage",
    "NoisyGradients",
    "PriorLabels",
    "ProjectedGradient",
    "RandomizedLabels",
    "SelfConv",
    "SelfSpan",
    "Span",
    "choose",
    "cluster_count",
    "learn",
    "onto_simplex",
    "predictions",
    "train",
    "whitened",
]
