# SPDX-License-Identifier: Apache-2.0
"""What a teacher can be made of."""

from typing import Any, Protocol

__all__ = ["Classifier"]


class Classifier(Protocol):
    """What a teacher is made of: an estimator of scikit-learn, a pipeline, or a `TorchClassifier`."""

    def fit(self, features: Any, labels: Any, /) -> Any:
        """Learn from rows and their class numbers.

        Args:
            features: The rows.
            labels: The class numbers.

        Returns:
            The fitted classifier.
        """
        ...

    def predict(self, features: Any, /) -> Any:
        """Return a class number for each row.

        Args:
            features: The rows.

        Returns:
            The class numbers.
        """
        ...

    def get_params(self, deep: bool = True) -> Any:
        """Return the settings.

        Args:
            deep: Whether to include the settings of parts.

        Returns:
            The settings by name.
        """
        ...
