# SPDX-License-Identifier: Apache-2.0
"""Copies of a private optimizer refuse to step.

Guarantee  A deep copy, or an optimizer that was saved and loaded, has lost what made it private. Its `step`
           raises, and so does that of a shallow copy.
Edge cases The state dict is as it was: the mark is kept in the optimizer's defaults, which copies take along
           and state dicts do not.
"""

import weakref
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sfumato.errors import InvalidParameterError, NotPrivateError

__all__ = ["mark", "refuse_private"]

_KEY: Final = "made_private"


class _Mark:
    """Knows the one optimizer that is private; a copy of it knows none."""

    def __init__(self, optimizer: Optimizer | None = None) -> None:
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)

    def is_of(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer is the one that was made private, and not a copy."""
        return self._optimizer is not None and self._optimizer() is optimizer

    def __reduce__(self) -> tuple[Any, ...]:
        return _Mark, ()


def refuse_private(optimizer: Optimizer) -> None:
    """Raise if an optimizer is private already, or a copy of one that is."""
    if _KEY in optimizer.defaults:
        raise InvalidParameterError(
            "the optimizer was made private before, or is a copy of one that was. Make a new one of the "
            "module's parameters."
        )


def mark(optimizer: Optimizer) -> None:
    """Remember that an optimizer is private, so that its copies can be recognized."""
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_refuse_copies)
    optimizer.defaults[_KEY] = _Mark(optimizer)


def _refuse_copies(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    found = optimizer.defaults.get(_KEY)
    if isinstance(found, _Mark) and not found.is_of(optimizer):
        raise NotPrivateError(
            "this is a copy of an optimizer that was made private, and a copy is not private: its steps "
            "would add no noise, and count nothing. Make a new optimizer, and call make_private with it."
        )


_hook: Any = None  # torch calls it at the steps of all optimizers, from the first private one on
