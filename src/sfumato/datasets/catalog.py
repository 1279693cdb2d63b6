# SPDX-License-Identifier: Apache-2.0
"""The sets that can be loaded, by name."""

from collections.abc import Callable

from sfumato.datasets.adult import adult
from sfumato.datasets.cifar import cifar10
from sfumato.datasets.credit import credit_default
from sfumato.datasets.dataset import Dataset
from sfumato.datasets.embedded import breast_cancer, digits
from sfumato.datasets.idx import fashion_mnist, mnist
from sfumato.datasets.places import Folder
from sfumato.datasets.shakespeare import shakespeare
from sfumato.errors import InvalidParameterError

__all__ = ["load", "names"]

_LOADERS: dict[str, Callable[[Folder], Dataset]] = {
    "digits": lambda folder: digits(),  # these two are always at hand
    "breast-cancer": lambda folder: breast_cancer(),
    "mnist": lambda folder: mnist(folder=folder),
    "fashion-mnist": lambda folder: fashion_mnist(folder=folder),
    "cifar10": lambda folder: cifar10(folder=folder),
    "credit-default": lambda folder: credit_default(folder=folder),
    "adult": lambda folder: adult(folder=folder),
    "shakespeare": lambda folder: shakespeare(folder=folder),
}


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts; the first two need no files.

    Returns:
        The names.

    >>> names()[:2]
    ('digits', 'breast-cancer')
    """
    return tuple(_LOADERS)


def load(name: str, *, folder: Folder = None) -> Dataset:
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
    if name not in _LOADERS:
        raise InvalidParameterError(f"unknown data set {name!r}. Use one of: {', '.join(names())}.")
    return _LOADERS[name](folder)
