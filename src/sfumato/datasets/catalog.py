# SPDX-License-Identifier: Apache-2.0
"""The sets that can be loaded, by name."""

import importlib
from typing import TYPE_CHECKING

from sfumato._torch import require_torch
from sfumato.datasets.places import Folder
from sfumato.errors import InvalidParameterError

if TYPE_CHECKING:
    from sfumato.datasets.dataset import Dataset

__all__ = ["load", "names"]

_INSIDE = {"digits": "embedded", "breast-cancer": "embedded"}  # these two are always at hand
_FILES = {
    "mnist": "idx",
    "fashion-mnist": "idx",
    "cifar10": "cifar",
    "credit-default": "credit",
    "adult": "adult",
    "shakespeare": "shakespeare",
}
_HOMES = _INSIDE | _FILES  # the module that has a function of the same name


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts; the first two need no files.

    Returns:
        The names.

    >>> names()[:2]
    ('digits', 'breast-cancer')
    """
    return tuple(_HOMES)


def load(name: str, *, folder: Folder = None) -> "Dataset":
    """Load a public benchmark set.

    Files are searched in `folder` (else in the folder that SFUMATO_DATA names), then in the cache, and then
    downloaded from the public source. Every file must have its published checksum.

    Args:
        name: The name of the set, one of `names()`.
        folder: Where to look for files first. None uses the folder that SFUMATO_DATA names.

    Returns:
        The data set.

    Raises:
        InvalidParameterError: If no set has this name.
        DataNotFoundError: If a file is in none of the places and cannot be downloaded.
        DataCorruptError: If a file does not have its published checksum.

    >>> digits = load("digits")
    >>> digits.public_size, digits.bounds, digits.classes[:3]
    (1437, (0.0, 1.0), ('0', '1', '2'))
    """
    if name not in _HOMES:
        raise InvalidParameterError(f"unknown data set {name!r}. Use one of: {', '.join(names())}.")
    require_torch()
    module = importlib.import_module(f"sfumato.datasets.{_HOMES[name]}")
    loader = getattr(module, name.replace("-", "_"))
    return loader() if name in _INSIDE else loader(folder=folder)
