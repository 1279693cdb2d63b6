# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers learn from disjoint parts of private data, and their noisy votes teach a public student.

`plan` a labeling job, `label` public rows with it, or `train` a student in one call. Aggregators turn votes
into answers: `LNMax`, `GNMax`, `ConfidentGNMax` and `InteractiveGNMax`.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

# Not lazily: modules have the same names, and would take their place.
from sfumato.pate.plan import plan
from sfumato.pate.train import FittedStudent, Student, label, train

if TYPE_CHECKING:
    from sfumato.pate.aggregators import Aggregator, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
    from sfumato.pate.individual import IndividualBudgets, Individualization
    from sfumato.pate.labeling import Labeling
    from sfumato.pate.partition import Partition
    from sfumato.pate.private_price import UnpublishedEpsilon, data_dependent_epsilon
    from sfumato.pate.run import PateRun, ReleasedAnswers
    from sfumato.pate.settings import VoteSettings
    from sfumato.pate.stability import StableLabeling
    from sfumato.pate.teachers import Classifier, Ensemble, train_teachers
    from sfumato.pate.torch_classifier import TorchClassifier

__all__ = [
    "Aggregator",
    "Classifier",
    "ConfidentGNMax",
    "Ensemble",
    "FittedStudent",
    "GNMax",
    "IndividualBudgets",
    "Individualization",
    "InteractiveGNMax",
    "LNMax",
    "Labeling",
    "Partition",
    "PateRun",
    "ReleasedAnswers",
    "StableLabeling",
    "Student",
    "TorchClassifier",
    "UnpublishedEpsilon",
    "VoteSettings",
    "data_dependent_epsilon",
    "label",
    "plan",
    "train",
    "train_teachers",
]

_HOMES = {
    "Aggregator": "aggregators",
    "Classifier": "teachers",
    "ConfidentGNMax": "aggregators",
    "Ensemble": "teachers",
    "GNMax": "aggregators",
    "IndividualBudgets": "individual",
    "Individualization": "individual",
    "InteractiveGNMax": "aggregators",
    "LNMax": "aggregators",
    "Labeling": "labeling",
    "Partition": "partition",
    "PateRun": "run",
    "ReleasedAnswers": "run",
    "StableLabeling": "stability",
    "TorchClassifier": "torch_classifier",
    "UnpublishedEpsilon": "private_price",
    "VoteSettings": "settings",
    "data_dependent_epsilon": "private_price",
    "train_teachers": "teachers",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
