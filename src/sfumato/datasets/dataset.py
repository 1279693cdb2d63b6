# SPDX-License-Identifier: Apache-2.0
"""What a loader returns: examples as tensors, and the facts about them that are public.

Promise    Everything in a `Dataset` beside `train` and `test` is a published fact about a published set.
           Nothing is computed from the rows when they are loaded: neither a mean nor a range nor a list of
           classes.
Size       `public_size` is public because these sets are published with their size. A data set of your own
           has a private size until you decide otherwise.
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
    """Features and labels, row by row; a torch `TensorDataset` of the two.

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
        """How many are protected: users where there are any, else examples."""
        return len(self) if self.user_ids is None else int(self.user_ids.unique().numel())

    def __repr__(self) -> str:
        return f"Examples(features={list(self.features.shape)}, labels={list(self.labels.shape)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalization:
    """Published mean and standard deviation of the pixels, one each a channel, on a scale of 0 to 1.

    They come with the set, like its class names. Do not compute such numbers from rows that you must protect.

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
        """Return float32 features of bytes in [N, C, H, W]."""
        mean, std = self._constants()
        return pixels.to(torch.float32).div_(_LEVELS).sub_(mean).div_(std)

    def pixels(self, features: Tensor) -> Tensor:
        """Return the bytes that `apply` was given, exactly."""
        mean, std = self._constants()
        return torch.mul(features, std).add_(mean).mul_(_LEVELS).round_().to(torch.uint8)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that a feature can have."""
        ends = self.apply(torch.tensor([0, _LEVELS]).view(2, 1, 1, 1).expand(2, len(self.mean), 1, 1))
        return float(ends[0].min()), float(ends[1].max())


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A public benchmark set, split for training and testing, with its public facts."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    bounds: tuple[float, float]  # of every feature, whatever the rows
    source: str
    license: str
    privacy_unit: str = "example"
    feature_names: tuple[str, ...] = ()  # of a table's columns, after encoding
    normalization: Normalization | None = None  # of images that have one

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
