# SPDX-License-Identifier: Apache-2.0
"""A torch network as a classifier of scikit-learn: for teachers, and for students that learn from answers.

Edge cases Labels are class numbers from 0, one for each output of the network; a class may be absent. Arrays
           of fractions get the type of the network's parameters; whole numbers keep theirs (tokens). A row
           for which the network returns something that is not finite is predicted as -1, which is no class.
           The same seed gives the same weights on one machine; the network that was given is not changed.
Not here   Protection: a network that was fitted to private rows is private.
"""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.learning import Augment, learn, predictions

__all__ = ["TorchClassifier"]

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class TorchClassifier(ClassifierMixin, BaseEstimator):
    """Train a copy of a network with Adam, and predict classes with it.

    Args:
        model: A module that returns one logit for each class. Its weights are where each fit starts.
        epochs: The number of passes over all rows.
        batch_size: The largest number of rows in a batch.
        learning_rate: The first learning rate. It falls to zero along a cosine.
        weight_decay: The weight decay of the optimizer.
        augment: Changes the features of a batch, given a torch generator; or None. For teachers, a function
            that can be pickled.
        device: The device to train and predict on, or None for the one the model is on.
        seed: The seed of the order of rows, of augmentation and of dropout.

    Attributes:
        model_: The trained network, on the CPU.
        classes_: The class numbers.

    >>> x = np.array([[0.0, 1.0], [1.0, 0.0]] * 8)
    >>> classifier = TorchClassifier(nn.Linear(2, 2), epochs=20, batch_size=4, learning_rate=0.1)
    >>> classifier.fit(x, [1, 0] * 8).predict(x[:2])
    array([1, 0])
    """

    def __init__(
        self,
        model: nn.Module,
        epochs: int = 10,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        augment: Augment | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.augment = augment
        self.device = device
        self.seed = seed

    def fit(self, X: Any, y: Any) -> "TorchClassifier":
        """Train a copy of the network.

        Args:
            X: The rows, in an array or a tensor.
            y: The class number of each row.

        Returns:
            This classifier.

        Raises:
            InvalidParameterError: If a setting is out of range, or labels are not class numbers.
        """
        model = copy.deepcopy(self.model)
        rows, place = self._rows(X), self._place()
        outputs = self._outputs(model, rows, place)
        learn(
            model.to(place),
            rows,
            _targets(y, rows=len(rows), outputs=outputs),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            augment=self.augment,
            seed=self.seed,
        )
        self.model_ = model.cpu()  # a file of it can be read on a machine without the device
        self.classes_ = np.arange(outputs)
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class.

        Args:
            X: The rows, in an array or a tensor.

        Returns:
            Float64 [rows, classes].
        """
        check_is_fitted(self, "model_")
        model = self.model_.to(self._place())
        try:
            return predictions(model, self._rows(X)).numpy()
        finally:
            self.model_ = model.cpu()

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the most probable class of each row; -1 where the network returns no finite number.

        Args:
            X: The rows, in an array or a tensor.

        Returns:
            Class numbers.
        """
        found = self.predict_proba(X)
        return np.where(np.isfinite(found).all(axis=1), found.argmax(axis=1), -1)

    def _rows(self, X: Any) -> Tensor:
        rows = X.detach() if isinstance(X, Tensor) else torch.from_numpy(np.array(X))
        first = next(self.model.parameters(), None)
        if first is None or not rows.is_floating_point():
            return rows
        return rows.to(first.dtype)

    def _place(self) -> torch.device:
        first = next(self.model.parameters(), None)
        return torch.device(self.device or ("cpu" if first is None else first.device))

    @torch.no_grad()
    def _outputs(self, model: nn.Module, rows: Tensor, place: torch.device) -> int:
        """Return the number of classes, from what the network returns for a row, in evaluation mode."""
        model.to(place).eval()
        return int(model(rows[:1].to(place)).shape[1])


def _targets(y: Any, *, rows: int, outputs: int) -> Tensor:
    labels = y.detach().cpu() if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
    wrong = labels.dtype not in _WHOLE or tuple(labels.shape) != (rows,)
    if wrong or not bool(((labels >= 0) & (labels < outputs)).all()):
        raise InvalidParameterError(
            f"labels must be class numbers from 0 to {outputs - 1}, one for each row: the network has "
            f"{outputs} outputs."
        )
    return labels.long()
