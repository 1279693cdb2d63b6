# SPDX-License-Identifier: Apache-2.0
"""Settings that are known to train well: one recipe for each public data set and model.

Recipes were chosen at epsilon 3 by accuracy on the public test rows, and are the same for every budget. The
search for them is not charged, because these data sets are public. On data that must be protected, a search
costs budget. Batch size, epochs and clip norm decide the noise; learning rate, momentum and average cost
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sfumato.errors import InvalidParameterError

__all__ = ["Recipe", "for_own_data", "models_of", "recipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to train one model on one data set: by SGD with momentum, averaging the weights."""

    expected_batch_size: int | None  # None: the default for the public size
    epochs: float
    clip_norm: float
    learning_rate: float
    momentum: float = 0.9
    ema_decay: float = 0.9
    width: int = 1
    contribution_bound: int | None = None  # if users own rows: the most of one user's in a step


def _table(learning_rate: float, *, batch: int, epochs: float) -> Recipe:
    return Recipe(expected_batch_size=batch, epochs=epochs, clip_norm=1.0, learning_rate=learning_rate)


def _image(learning_rate: float, *, epochs: float = 15, width: int = 1) -> Recipe:
    return Recipe(
        expected_batch_size=2048, epochs=epochs, clip_norm=1.0, learning_rate=learning_rate, width=width
    )


def _deep(learning_rate: float, *, batch: int = 2048, epochs: float = 15) -> Recipe:
    return Recipe(
        expected_batch_size=batch, epochs=epochs, clip_norm=0.1, learning_rate=learning_rate, ema_decay=0.95
    )


def _text(learning_rate: float) -> Recipe:
    return Recipe(
        expected_batch_size=200,
        epochs=10,
        clip_norm=0.3,
        learning_rate=learning_rate,
        contribution_bound=8,
    )


# The first model of each data set is its default.
_RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "digits": {
        "mlp": _table(0.5, batch=512, epochs=40),
        "cnn": _table(0.3, batch=512, epochs=40),
        "linear": _table(1.0, batch=256, epochs=20),
    },
    "breast-cancer": {
        "linear": _table(1.0, batch=228, epochs=40),
        "mlp": _table(0.3, batch=128, epochs=20),
    },
    "mnist": {"cnn": _deep(4.0), "mlp": _image(0.5, width=2), "linear": _image(0.4)},
    "fashion-mnist": {"cnn": _deep(4.0), "mlp": _image(0.5, width=2), "linear": _image(0.4)},
    "cifar10": {
        "mlp": _image(0.3, epochs=10, width=2),
        "cnn": _deep(2.0, batch=4096, epochs=20),
        "linear": _image(0.2, epochs=10),
    },
    "credit-default": {
        "linear": _table(3.0, batch=2048, epochs=20),
        "mlp": _table(1.0, batch=2048, epochs=20),
    },
    "adult": {"linear": _table(1.0, batch=1024, epochs=10), "mlp": _table(1.0, batch=2048, epochs=20)},
    "shakespeare": {"lstm": _text(6.0), "transformer": _text(0.5)},
}


_OWN: Mapping[str, Recipe] = {
    "linear": Recipe(expected_batch_size=None, epochs=20, clip_norm=1.0, learning_rate=1.0),
    "mlp": Recipe(expected_batch_size=None, epochs=20, clip_norm=1.0, learning_rate=0.5),
    "cnn": Recipe(expected_batch_size=None, epochs=20, clip_norm=0.3, learning_rate=1.0),
}


def models_of(data: str) -> tuple[str, ...]:
    """Return the models that there are recipes for, the default first.

    >>> models_of("digits")
    ('mlp', 'cnn', 'linear')
    """
    if data not in _RECIPES:
        raise InvalidParameterError(f"unknown data set {data!r}. Use one of: {', '.join(_RECIPES)}.")
    return tuple(_RECIPES[data])


def recipe(data: str, model: str) -> Recipe:
    """Return the recipe of a model on a data set.

    >>> recipe("digits", "mlp").expected_batch_size
    512
    """
    if model not in models_of(data):
        raise InvalidParameterError(
            f"no model {model!r} for the data set {data!r}. Use one of: {', '.join(models_of(data))}."
        )
    return _RECIPES[data][model]


def for_own_data(model: str) -> Recipe:
    """Return settings to begin with, for data of which nothing is known.

    >>> for_own_data("mlp").epochs
    20
    """
    if model not in _OWN:
        raise InvalidParameterError(f"no model {model!r} for your own data. Use one of: {', '.join(_OWN)}.")
    return _OWN[model]
