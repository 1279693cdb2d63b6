# SPDX-License-Identifier: Apache-2.0
"""Queries to a classifier: rows in, a log probability for each class out.

A model is a torch module whose outputs are logits in [rows, classes] (log probabilities are logits too), or
anything with scikit-learn's `predict_proba`. Columns of the output are named by `classes_` if the model has
them, else they are 0, 1, 2,
... Weights, gradients and the mode of a module are not changed.

Edge cases A probability of zero is read as the smallest positive number, so that an attacker's other
           knowledge still decides among values that the model calls impossible.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.training.engine.evaluation_mode import evaluating

__all__ = ["as_array", "label_columns", "log_probabilities", "read_rows"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

_PIECE: Final = 4096  # rows that are asked about at once
_SMALLEST: Final = float(np.finfo(np.float64).tiny)


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return a tensor on any device, or anything else, as an array."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def read_rows(rows: Any, *, name: str) -> tuple[Floats, npt.NDArray[Any]]:
    """Return the features and labels of a pair, or of an object with these attributes, as arrays."""
    pair = (
        rows if isinstance(rows, tuple) else (getattr(rows, "features", None), getattr(rows, "labels", None))
    )
    if len(pair) != 2 or any(part is None for part in pair):
        raise InvalidParameterError(f"{name} must be a pair (features, labels), or have both as attributes.")
    features, labels = as_array(pair[0]).astype(np.float64), as_array(pair[1])
    if labels.ndim != 1 or len(labels) != len(features):
        raise InvalidParameterError(f"{name} must have one label for each row of features.")
    if not np.isfinite(features).all():
        raise InvalidParameterError(
            f"{name} has a feature that is NaN or infinite. Fill it in, or drop the row."
        )
    return features, labels


def log_probabilities(model: Any, features: Any) -> Floats:
    """Return the log probabilities of a classifier for each row, [rows, classes].

    >>> log_probabilities(nn.Identity(), np.zeros((1, 4))).round(3).tolist()
    [[-1.386, -1.386, -1.386, -1.386]]
    """
    rows = as_array(features)
    pieces = [_ask(model, rows[i : i + _PIECE]) for i in range(0, len(rows), _PIECE)]
    if not pieces or any(piece.ndim != 2 or piece.shape[1] < 2 for piece in pieces):
        raise InvalidParameterError("the model must return a number for each of two or more classes.")
    answers = np.concatenate(pieces)
    if len(answers) != len(rows) or np.isnan(answers).any():
        raise InvalidParameterError(
            "the model must return a result for each row, without NaN. Its training may have diverged: try "
            "a smaller learning rate."
        )
    return answers


def label_columns(model: Any, labels: npt.NDArray[Any], *, num_classes: int) -> Places:
    """Return the column of the model's output for each label.

    >>> label_columns(nn.Identity(), np.array([2, 0]), num_classes=3).tolist()
    [2, 0]
    """
    classes = as_array(getattr(model, "classes_", np.arange(num_classes)))
    order = np.argsort(classes, kind="stable")
    place = np.searchsorted(classes[order], labels).clip(max=len(classes) - 1)
    found = order[place].astype(np.int64)
    if not np.array_equal(classes[found], labels):
        raise InvalidParameterError(
            f"a label is not one of the {num_classes} classes of the model. Pass labels as the model was "
            "trained with them."
        )
    return found


def _ask(model: Any, rows: npt.NDArray[Any]) -> Floats:
    if isinstance(model, nn.Module):
        parameter = next(model.parameters(), torch.empty(0))
        with evaluating(model), torch.no_grad():
            logits: Tensor = model(torch.as_tensor(rows, dtype=parameter.dtype, device=parameter.device))
        return logits.double().log_softmax(-1).cpu().numpy()
    predict = getattr(model, "predict_proba", None)
    if not callable(predict):
        raise InvalidParameterError(
            f"model must be a torch module or have predict_proba, but a {type(model).__name__} was given."
        )
    return np.log(np.maximum(as_array(predict(rows)).astype(np.float64), _SMALLEST))
