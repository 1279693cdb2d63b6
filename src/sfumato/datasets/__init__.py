# SPDX-License-Identifier: Apache-2.0
"""Public benchmark data sets, as tensors, with the public facts about them.

`load("digits")` and `load("breast-cancer")` work anywhere. The others are read from the folder that
SFUMATO_DATA names, else from the cache, else downloaded; every file must have its published checksum.
"""

from sfumato.datasets.catalog import load, names
from sfumato.datasets.dataset import Dataset, Examples, Normalization
from sfumato.datasets.efficientnet import EfficientNetLite0, efficientnet_lite0
from sfumato.datasets.errors import DataCorruptError, DataNotFoundError
from sfumato.datasets.features import features

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
