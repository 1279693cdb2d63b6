# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers learn from disjoint parts of private data, and their noisy votes teach a public student.

`plan` a labeling job, `label` public rows with it, or `train` a student in one call. Aggregators turn votes
into answers: `LNMax`, `GNMax`, `ConfidentGNMax` and `InteractiveGNMax`.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.pate.pipeline import label, train
    from sfumato.pate.planning import plan
    from sfumato.pate.private_rows import DeferredRows, PrivateRows
    from sfumato.pate.run import PateRun, ReleasedAnswers
    from sfumato.pate.settings import VoteSettings
    from sfumato.pate.students.image_changes import ImageChanges
    from sfumato.pate.students.propagation import Propagation, representative_rows
    from sfumato.pate.students.semi_supervised import FittedNetwork, SelfTraining, SemiSupervisedStudent
    from sfumato.pate.students.student_recipes import student_for, student_network
    from sfumato.pate.students.supervised import FittedEstimator, FittedStudent, Student, SupervisedStudent
    from sfumato.pate.teaching.classifier import Classifier
    from sfumato.pate.teaching.partition import Partition
    from sfumato.pate.teaching.teachers import Ensemble, train_teachers
    from sfumato.pate.teaching.torch_classifier import TorchClassifier
    from sfumato.pate.votes.aggregators import Aggregator, ConfidentGNMax, GNMax, LNMax
    from sfumato.pate.votes.individual import IndividualBudgets, Individualization
    from sfumato.pate.votes.interaction import InteractiveGNMax
    from sfumato.pate.votes.labeling import Labeling
    from sfumato.pate.votes.private_price import UnpublishedEpsilon, data_dependent_epsilon
    from sfumato.pate.votes.stability import StableLabeling

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
    "Aggregator": "votes.aggregators",
    "Classifier": "teaching.classifier",
    "ConfidentGNMax": "votes.aggregators",
    "DeferredRows": "private_rows",
    "Ensemble": "teaching.teachers",
    "FittedEstimator": "students.supervised",
    "FittedNetwork": "students.semi_supervised",
    "FittedStudent": "students.supervised",
    "GNMax": "votes.aggregators",
    "ImageChanges": "students.image_changes",
    "IndividualBudgets": "votes.individual",
    "Individualization": "votes.individual",
    "InteractiveGNMax": "votes.interaction",
    "LNMax": "votes.aggregators",
    "Labeling": "votes.labeling",
    "Partition": "teaching.partition",
    "PateRun": "run",
    "PrivateRows": "private_rows",
    "Propagation": "students.propagation",
    "ReleasedAnswers": "run",
    "SelfTraining": "students.semi_supervised",
    "SemiSupervisedStudent": "students.semi_supervised",
    "StableLabeling": "votes.stability",
    "Student": "students.supervised",
    "SupervisedStudent": "students.supervised",
    "TorchClassifier": "teaching.torch_classifier",
    "UnpublishedEpsilon": "votes.private_price",
    "VoteSettings": "settings",
    "data_dependent_epsilon": "votes.private_price",
    "label": "pipeline",
    "plan": "planning",
    "representative_rows": "students.propagation",
    "student_for": "students.student_recipes",
    "student_network": "students.student_recipes",
    "train": "pipeline",
    "train_teachers": "teaching.teachers",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
