# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers that learn from disjoint parts of private data, and vote on public queries."""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.pate.image_changes import ImageChanges
    from sfumato.pate.partition import Partition
    from sfumato.pate.propagation import Propagation, representative_rows
    from sfumato.pate.semi_supervised import FittedNetwork, SelfTraining, SemiSupervisedStudent
    from sfumato.pate.student import FittedEstimator, SupervisedStudent
    from sfumato.pate.student_recipes import student_for, student_network
    from sfumato.pate.teachers import Classifier, Ensemble, train_teachers
    from sfumato.pate.torch_classifier import TorchClassifier

__all__ = [
    "Classifier",
    "Ensemble",
    "FittedEstimator",
    "FittedNetwork",
    "ImageChanges",
    "Partition",
    "Propagation",
    "SelfTraining",
    "SemiSupervisedStudent",
    "SupervisedStudent",
    "TorchClassifier",
    "representative_rows",
    "student_for",
    "student_network",
    "train_teachers",
]

_HOMES = {
    "Classifier": "teachers",
    "Ensemble": "teachers",
    "FittedEstimator": "student",
    "FittedNetwork": "semi_supervised",
    "ImageChanges": "image_changes",
    "Partition": "partition",
    "Propagation": "propagation",
    "SelfTraining": "semi_supervised",
    "SemiSupervisedStudent": "semi_supervised",
    "SupervisedStudent": "student",
    "TorchClassifier": "torch_classifier",
    "representative_rows": "propagation",
    "student_for": "student_recipes",
    "student_network": "student_recipes",
    "train_teachers": "teachers",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
