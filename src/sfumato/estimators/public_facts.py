# SPDX-License-Identifier: Apache-2.0
"""What is public of the data of a fit: its columns, and whether there is a target.

Guarantee  Nothing here reads a row, nor counts them: of an array or a frame it takes the number and the names
           of the columns, and of rows that are read later what their source says of itself.
Not here   What estimators require of it: `PrivateEstimator.require_fitting`.
"""

from dataclasses import dataclass
from typing import Any

__all__ = ["PublicFacts", "ReadLater"]


class ReadLater:
    """Rows that nothing has read yet; `n_features` says how many columns they have, if that is known."""

    n_features: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicFacts:
    """What is known of X and y before a row is read.

    Attributes:
        features: The number of columns of X; None if only its rows would tell, as those of a list.
        names: The names of the columns, or None if they have none.
        has_target: Whether there is a y.

    >>> import numpy as np
    >>> PublicFacts.of(np.zeros((5, 3)), None)
    PublicFacts(features=3, names=None, has_target=False)
    """

    features: int | None
    names: tuple[str, ...] | None
    has_target: bool

    @classmethod
    def of(cls, X: Any, y: Any) -> "PublicFacts":
        """Return what is known of X and y.

        Args:
            X: The rows.
            y: The targets, or None.

        Returns:
            The facts.
        """
        if isinstance(X, ReadLater):
            return cls(features=X.n_features, names=None, has_target=y is not None)
        shape: Any = getattr(X, "shape", ())
        is_matrix = isinstance(shape, tuple) and len(shape) == 2
        return cls(features=int(shape[1]) if is_matrix else None, names=_names(X), has_target=y is not None)


def _names(X: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a frame, if all are text, as scikit-learn notes them."""
    columns: Any = getattr(X, "columns", None)
    names = () if columns is None else tuple(columns)
    return names if names and all(isinstance(name, str) for name in names) else None
