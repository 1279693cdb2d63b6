# SPDX-License-Identifier: Apache-2.0
"""PATE: teachers vote on private data, and a student learns from their answers and public rows."""

from sfumato import _needs_torch  # noqa: F401  # pyright: ignore[reportUnusedImport] - an error where torch is missing
from sfumato.pate.image_changes import ImageChanges
from sfumato.pate.propagation import Propagation, representative_rows
from sfumato.pate.semi_supervised import FittedNetwork, SelfTraining, SemiSupervisedStudent
from sfumato.pate.student import Classifier, FittedEstimator, Student, SupervisedStudent
from sfumato.pate.student_recipes import student_for, student_network

__all__ = [
    "Classifier",
    "FittedEstimator",
    "FittedNetwork",
    "ImageChanges",
    "Propagation",
    "SelfTraining",
    "SemiSupervisedStudent",
    "Student",
    "SupervisedStudent",
    "representative_rows",
    "student_for",
    "student_network",
]
