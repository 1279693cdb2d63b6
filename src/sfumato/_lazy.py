# SPDX-License-Identifier: Apache-2.0
"""Public names that are imported when they are first used, so that importing a package is cheap.

Where the module of a name needs PyTorch and PyTorch is not installed, the error says what to install.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from sfumato._torch import without_torch

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, from the module of each name, relative to the package.

    >>> lazy_names("sfumato", {"Ledger": "ledger"})("Ledger").__name__
    'Ledger'
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(_imported(f"{package}.{homes[name]}"), name)

    return __getattr__


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise without_torch() from error
