# SPDX-License-Identifier: Apache-2.0
"""Two small data sets that ship with scikit-learn and need no download.

Rows are taken in order of class (and of the set within a class), every fifth for testing: each class is split
in the same way. Published sets may be split so; the rule looks at all labels, which is not allowed for a
private set.

Digits have 16 grey levels a pixel. Breast cancer has the ranges of the set's description, rounded outwards.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

from sfumato.datasets.columns import Number, encode, encoded_names
from sfumato.datasets.dataset import Dataset, Examples

__all__ = ["BREAST_CANCER_COLUMNS", "breast_cancer", "digits"]

_TEST_EVERY = 5
_GREY_LEVELS = 16

# The minimum and maximum that the description publishes, rounded outwards to one and two digits.
BREAST_CANCER_COLUMNS = (
    Number("radius (mean)", 6, 29),
    Number("texture (mean)", 9, 40),
    Number("perimeter (mean)", 40, 190),
    Number("area (mean)", 100, 2600),
    Number("smoothness (mean)", 0.05, 0.17),
    Number("compactness (mean)", 0.01, 0.35),
    Number("concavity (mean)", 0, 0.43),
    Number("concave points (mean)", 0, 0.21),
    Number("symmetry (mean)", 0.1, 0.31),
    Number("fractal dimension (mean)", 0.04, 0.098),
    Number("radius (standard error)", 0.1, 2.9),
    Number("texture (standard error)", 0.3, 4.9),
    Number("perimeter (standard error)", 0.7, 22),
    Number("area (standard error)", 6, 550),
    Number("smoothness (standard error)", 0.001, 0.032),
    Number("compactness (standard error)", 0.001, 0.14),
    Number("concavity (standard error)", 0, 0.4),
    Number("concave points (standard error)", 0, 0.054),
    Number("symmetry (standard error)", 0.007, 0.08),
    Number("fractal dimension (standard error)", 0.0005, 0.035),
    Number("radius (worst)", 7, 37),
    Number("texture (worst)", 10, 50),
    Number("perimeter (worst)", 50, 260),
    Number("area (worst)", 100, 4300),
    Number("smoothness (worst)", 0.07, 0.23),
    Number("compactness (worst)", 0.02, 1.1),
    Number("concavity (worst)", 0, 1.3),
    Number("concave points (worst)", 0, 0.3),
    Number("symmetry (worst)", 0.1, 0.67),
    Number("fractal dimension (worst)", 0.05, 0.21),
)


def digits() -> Dataset:
    """Load digits: 8 x 8 grey images, 1,437 for training and 360 for testing.

    >>> data = digits()
    >>> data.train, data.public_size, data.num_classes
    (Examples(features=[1437, 1, 8, 8], labels=[1437]), 1437, 10)
    """
    pixels: Any
    labels: Any
    pixels, labels = load_digits(return_X_y=True)
    features = torch.from_numpy(pixels).to(torch.float32).div_(_GREY_LEVELS).view(-1, 1, 8, 8)
    train, test = _split(features, labels)
    return Dataset(
        name="digits",
        train=train,
        test=test,
        classes=tuple("0123456789"),
        bounds=(0.0, 1.0),
        source="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (test part)",
        license="CC BY 4.0",
    )


def breast_cancer() -> Dataset:
    """Load breast cancer: 30 measurements of cell nuclei, 455 for training and 114 for testing."""
    table: Any
    labels: Any
    table, labels = load_breast_cancer(return_X_y=True)
    train, test = _split(encode(BREAST_CANCER_COLUMNS, table.astype(str)), labels)
    return Dataset(
        name="breast-cancer",
        train=train,
        test=test,
        classes=("malignant", "benign"),
        bounds=(0.0, 1.0),
        source="W. Wolberg, N. Street and O. Mangasarian, Breast Cancer Wisconsin (Diagnostic), UCI, 1995",
        license="CC BY 4.0",
        feature_names=encoded_names(BREAST_CANCER_COLUMNS),
    )


def _split(features: Tensor, labels: npt.NDArray[np.int64]) -> tuple[Examples, Examples]:
    order = np.argsort(labels, kind="stable")
    for_test = np.zeros(len(labels), dtype=bool)
    for_test[order[::_TEST_EVERY]] = True
    return _part(features, labels, ~for_test), _part(features, labels, for_test)


def _part(features: Tensor, labels: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> Examples:
    chosen = torch.from_numpy(rows)
    return Examples(features[chosen], torch.from_numpy(labels).to(torch.int64)[chosen])
