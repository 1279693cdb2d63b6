# SPDX-License-Identifier: Apache-2.0
"""The base of classifiers over public classes: labels are compared with them, and never listed from y."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats, PrivateEstimator
from sfumato.estimators.label_codes import alike, codes

__all__ = ["PublicClassifier", "public_labels"]


def public_labels(classes: Any) -> npt.NDArray[Any]:
    """Return the declared classes as an array; raise unless there are two different ones of one kind."""
    labels = np.asarray(classes)
    if not (labels.ndim == 1 and len(labels) >= 2 and _are_alike(classes)):
        raise InvalidParameterError(
            "classes must list at least two different labels, all of them text or all of them numbers, "
            f"but {classes!r} was given. They are public: which labels occur must not be read from "
            "the data."
        )
    if labels.dtype.kind in "biuf" and (np.abs(labels.astype(np.float64)) >= 2.0**53).any():
        raise InvalidParameterError(
            "classes must be below 2^53 in size, where readers of files tell whole numbers apart. Give them "
            "as text with a letter, such as 'id-12', or number them from 0."
        )
    pair = alike(labels)
    if pair is not None:
        raise InvalidParameterError(
            f"the classes {pair[0]!r} and {pair[1]!r} say the same number, and a column that is read as "
            "numbers cannot tell them apart. Name them otherwise."
        )
    return labels


def _are_alike(classes: Any) -> bool:
    """Whether labels differ, and are all text, all bytes, all true or false, or all finite numbers."""
    labels = [label.item() if isinstance(label, np.generic) else label for label in classes]
    one_kind = any(all(isinstance(label, kind) for label in labels) for kind in (str, bytes, int | float))
    finite = all(not isinstance(label, float) or math.isfinite(label) for label in labels)
    return one_kind and finite and len(set(labels)) == len(labels)


class PublicClassifier(ClassifierMixin, PrivateEstimator):
    """A private classifier that has `classes`, and predicts from probabilities."""

    classes: Any
    classes_: npt.NDArray[Any]

    def public_classes(self) -> npt.NDArray[Any]:
        """Return `classes` as an array.

        Returns:
            The labels, in order.

        Raises:
            InvalidParameterError: If there are fewer than two different labels, or they are of mixed types.
        """
        return public_labels(self.classes)

    def _labelled(self, X: Any, y: Any) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return the rows whose label is one of the classes, and the places of their labels."""
        rows = self._matrix(X, reset=True)
        known = codes(self._column(y, rows=len(rows)), self.public_classes())
        return rows[known >= 0], known[known >= 0]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most likely class of each row.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The classes.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The probabilities, [rows, classes], in the order of `classes_`.
        """
        check_is_fitted(self, "classes_")
        with np.errstate(all="ignore"):  # a warning would tell of a row
            return self._probabilities(self._matrix(X, reset=False))

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of `predict_proba`.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            The logarithms, [rows, classes].
        """
        with np.errstate(all="ignore"):
            return np.log(self.predict_proba(X))

    def _probabilities(self, rows: Floats) -> Floats:
        raise NotImplementedError
