# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers learn from disjoint parts of private data, and their noisy votes teach a public student.

`plan` a labeling job, `label` public rows with it, or `train` a student in one call. Aggregators turn votes
into answers: `LNMax`, `GNMax`, `ConfidentGNMax` and `InteractiveGNMax`.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

# Not lazily: modules have the same names, and would take their place.
from sfumato.pate.plan import plan
from sfumato.pate.train import label, train

if TYPE_CHECKING:
    from sfumato.pate.aggregators import Aggregator, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
    from sfumato.pate.image_changes import ImageChanges
    from sfumato.pate.individual import IndividualBudgets, Individualization
    from sfumato.pate.labeling import Labeling
    from sfumato.pate.partition import Partition
    from sfumato.pate.private_price import UnpublishedEpsilon, data_dependent_epsilon
    from sfumato.pate.private_rows import DeferredRows, PrivateRows
    from sfumato.pate.propagation import Propagation, representative_rows
    from sfumato.pate.run import PateRun, ReleasedAnswers
    from sfumato.pate.semi_supervised import FittedNetwork, SelfTraining, SemiSupervisedStudent
    from sfumato.pate.settings import VoteSettings
    from sfumato.pate.stability import StableLabeling
    from sfumato.pate.student import FittedEstimator, FittedStudent, Student, SupervisedStudent
    from sfumato.pate.student_recipes import student_for, student_network
    from sfumato.pate.teachers import Classifier, Ensemble, train_teachers
    from sfumato.pate.torch_classifier import TorchClassifier

__all__ = [
    "Aggregator",
    "Classifier",
    "ConfidentGNMax",
    "DeferredRows",
    "Ensemble",
    "FittedEstimator",
    "FittedNetwork",
    "FittedStudent",
    "GNMax",
    "ImageChanges",
    "IndividualBudgets",
    "Individualization",
    "InteractiveGNMax",
    "LNMax",
    "Labeling",
    "Partition",
    "PateRun",
    "PrivateRows",
    "Propagation",
    "ReleasedAnswers",
    "SelfTraining",
    "SemiSupervisedStudent",
    "StableLabeling",
    "Student",
    "SupervisedStudent",
    "TorchClassifier",
    "UnpublishedEpsilon",
    "VoteSettings",
    "data_dependent_epsilon",
    "label",
    "plan",
    "representative_rows",
    "student_for",
    "student_network",
    "train",
    "train_teachers",
]

_HOMES = {
    "Aggregator": "aggregators",
    "Classifier": "teachers",
    "ConfidentGNMax": "aggregators",
    "DeferredRows": "private_rows",
    "Ensemble": "teachers",
    "FittedEstimator": "student",
    "FittedNetwork": "semi_supervised",
    "FittedStudent": "student",
    "GNMax": "aggregators",
    "ImageChanges": "image_changes",
    "IndividualBudgets": "individual",
    "Individualization": "individual",
    "InteractiveGNMax": "aggregators",
    "LNMax": "aggregators",
    "Labeling": "labeling",
    "Partition": "partition",
    "PateRun": "run",
    "PrivateRows": "private_rows",
    "Propagation": "propagation",
    "ReleasedAnswers": "run",
    "SelfTraining": "semi_supervised",
    "SemiSupervisedStudent": "semi_supervised",
    "StableLabeling": "stability",
    "Student": "student",
    "SupervisedStudent": "student",
    "TorchClassifier": "torch_classifier",
    "UnpublishedEpsilon": "private_price",
    "VoteSettings": "settings",
    "data_dependent_epsilon": "private_price",
    "representative_rows": "propagation",
    "student_for": "student_recipes",
    "student_network": "student_recipes",
    "train_teachers": "teachers",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
