# SPDX-License-Identifier: Apache-2.0
"""Data sets in memory: examples as tensors, and the public facts about them.

`public_size` is public because these sets are published with their size. The size of your own data is private
until you decide otherwise.

Guarantee  Everything in a `Dataset` beside `train` and `test` is a published fact about a published set.
           Nothing is computed from the rows when they are loaded: neither a mean nor a range nor a list of
           classes.
Unit       `privacy_unit` says whom one neighbor adds or removes: one example, or one user with all their
           examples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["Dataset", "Examples", "Normalization"]

_LEVELS = 255  # the largest value of a pixel stored in a byte


class Examples(TensorDataset):
    """Examples as tensors.

    Attributes:
        features: The features, [N, ...].
        labels: The labels, [N].
        user_ids: Whose each example is, [N]; None if each is its own unit.

    Raises:
        InvalidParameterError: If the tensors do not have the same number of rows.

    >>> examples = Examples(torch.zeros(5, 2), torch.arange(5))
    >>> len(examples), examples[torch.tensor([1, 3])][1]
    (5, tensor([1, 3]))
    """

    def __init__(self, features: Tensor, labels: Tensor, *, user_ids: Tensor | None = None) -> None:
        lengths = {len(t) for t in (features, labels, user_ids) if t is not None}
        if len(lengths) != 1:
            raise InvalidParameterError("features, labels and user_ids must have the same number of rows.")
        super().__init__(features, labels)
        self.user_ids = user_ids

    @property
    def features(self) -> Tensor:
        """One row for each example."""
        return self.tensors[0]

    @property
    def labels(self) -> Tensor:
        """One row for each example, int64."""
        return self.tensors[1]

    @property
    def num_units(self) -> int:
        """How many are protected: users if there are any, else examples."""
        return len(self) if self.user_ids is None else int(self.user_ids.unique().numel())

    def __repr__(self) -> str:
        return f"Examples(features={list(self.features.shape)}, labels={list(self.labels.shape)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalization:
    """The mean and the standard deviation that pixels are scaled by: public constants.

    Attributes:
        mean: The mean of each channel.
        std: The standard deviation of each channel.

    Raises:
        InvalidParameterError: If a mean is not between 0 and 1, or a deviation is not above 0.

    >>> digits = Normalization(mean=(0.1307,), std=(0.3081,))
    >>> white = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    >>> digits.pixels(digits.apply(white)).equal(white)
    True
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for mean, std in zip(self.mean, self.std, strict=True):
            _check.in_range(0, 1, mean=mean)
            _check.positive(std=std)

    def _constants(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)  # [C, 1, 1]

    def apply(self, pixels: Tensor) -> Tensor:
        """Scale pixels.

        Args:
            pixels: Bytes, [N, channels, H, W].

        Returns:
            Float32 features of the same shape.
        """
        mean, std = self._constants()
        return pixels.to(torch.float32).div_(_LEVELS).sub_(mean).div_(std)

    def pixels(self, features: Tensor) -> Tensor:
        """Return the pixels that features were made from.

        Args:
            features: Scaled features, [N, channels, H, W].

        Returns:
            Bytes of the same shape.
        """
        mean, std = self._constants()
        return torch.mul(features, std).add_(mean).mul_(_LEVELS).round_().to(torch.uint8)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that a feature can have."""
        ends = self.apply(torch.tensor([0, _LEVELS]).view(2, 1, 1, 1).expand(2, len(self.mean), 1, 1))
        return float(ends[0].min()), float(ends[1].max())


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A public benchmark set, split for training and testing, with its public facts.

    Attributes:
        name: The name of the set.
        train: The examples for training.
        test: The examples for testing.
        classes: The names of the labels, in order.
        bounds: Lower and upper bound of every feature, whatever the rows.
        source: Where the set was published.
        license: The license of the set.
        privacy_unit: Who is protected: "example", or "user" if a user has several.
        feature_names: The names of a table's columns, after encoding; empty otherwise.
        normalization: How pixels were scaled; None if they were not.

    Raises:
        InvalidParameterError: If a text is empty or the bounds are not in order.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    bounds: tuple[float, float]
    source: str
    license: str
    privacy_unit: str = "example"
    feature_names: tuple[str, ...] = ()
    normalization: Normalization | None = None

    def __post_init__(self) -> None:
        _check.text(name=self.name, source=self.source, license=self.license, privacy_unit=self.privacy_unit)
        _check.bounds(bounds=self.bounds)

    @property
    def num_classes(self) -> int:
        """How many classes a label can have."""
        return len(self.classes)

    @property
    def public_size(self) -> int:
        """How many units `train` holds, as published with the set."""
        return self.train.num_units
