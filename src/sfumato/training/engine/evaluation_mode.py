# SPDX-License-Identifier: Apache-2.0
"""Hold a model in evaluation mode for a while, and put each part back into the mode it was in.

`model.train(True)` would not put parts back: it also turns on those that were frozen, such as a normalization
with fixed statistics, and training would then refuse them, or mix examples.

Edge cases Layers of `nn.RNNBase` stay in training mode with their dropout at 0, which is the same function:
           on a GPU they have no gradients in evaluation mode.
"""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Return a context in which a model computes as in evaluation mode, and has gradients.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     model[0].training
    False
    >>> [part.training for part in model]
    [True, False]
    """
    modes = {module: module.training for module in model.modules()}
    recurrent = {module: module.dropout for module in modes if isinstance(module, nn.RNNBase)}
    model.eval()
    for module in recurrent:
        module.training, module.dropout = True, 0.0
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for module, dropout in recurrent.items():
            module.dropout = dropout
