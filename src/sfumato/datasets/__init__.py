# SPDX-License-Identifier: Apache-2.0
"""Public benchmark data sets, as tensors, with the public facts about them.

`load("digits")` and `load("breast-cancer")` work anywhere. The others are read from the folder that
SFUMATO_DATA names, else from the cache, else downloaded; every file must have its published checksum.
The sets are tensors, so loading one needs the extra `torch`.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names
from sfumato.datasets.catalog import load, names
from sfumato.datasets.errors import DataCorruptError, DataNotFoundError

if TYPE_CHECKING:
    from sfumato.datasets.dataset import Dataset, Examples, Normalization
    from sfumato.datasets.efficientnet import EfficientNetLite0, efficientnet_lite0
    from sfumato.datasets.feature_vectors import features

__all__ = [
    "DataCorruptError",
    "DataNotFoundError",
    "Dataset",
    "EfficientNetLite0",
    "Examples",
    "Normalization",
    "efficientnet_lite0",
    "features",
    "load",
    "names",
]

_HOMES = {
    "Dataset": "dataset",
    "EfficientNetLite0": "efficientnet",
    "Examples": "dataset",
    "Normalization": "dataset",
    "efficientnet_lite0": "efficientnet",
    "features": "feature_vectors",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
