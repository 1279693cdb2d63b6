# SPDX-License-Identifier: Apache-2.0
"""PyTorch where it is installed; an error that says what to install where it is not.

Torch comes with the extra `torch`. Statistics, estimators, the ledger and accounting work without
it, and do not import it.
"""

import importlib
import sys
from typing import Any

from sfumato._extras import how_to_install
from sfumato.errors import MissingDependencyError

__all__ = ["is_tensor", "require_torch", "without_torch"]


def require_torch() -> None:
    """Import torch; where that fails, raise an error that says what to install."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise without_torch() from error


def without_torch() -> MissingDependencyError:
    """Return the error of what needs torch where torch cannot be imported."""
    return MissingDependencyError(
        f"this needs PyTorch, which is not installed. {how_to_install('torch')} Statistics, estimators, the "
        "ledger and accounting work without it."
    )


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, which is not imported for the question.

    >>> is_tensor([1.0])
    False
    """
    torch: Any = sys.modules.get("torch")  # a process that has not imported it has no tensors
    return torch is not None and isinstance(value, torch.Tensor)
