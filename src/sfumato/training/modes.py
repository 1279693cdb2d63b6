# SPDX-License-Identifier: Apache-2.0
"""Hold a model in evaluation mode for a while, and put each part back into the mode it was in.

`model.train(True)` would not: it also turns on parts that were frozen, such as a normalization with fixed
statistics, and training would then refuse them, or mix examples.
"""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Return a context in which all parts of a model are in evaluation mode.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     model[0].training
    False
    >>> [part.training for part in model]
    [True, False]
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
