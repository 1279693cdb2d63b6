# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers that learn from disjoint parts of private data, and vote on public queries."""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.pate.partition import Partition
    from sfumato.pate.teachers import Classifier, Ensemble, train_teachers
    from sfumato.pate.torch_classifier import TorchClassifier

__all__ = ["Classifier", "Ensemble", "Partition", "TorchClassifier", "train_teachers"]

_HOMES = {
    "Classifier": "teachers",
    "Ensemble": "teachers",
    "Partition": "partition",
    "TorchClassifier": "torch_classifier",
    "train_teachers": "teachers",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
