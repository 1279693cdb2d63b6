# SPDX-License-Identifier: Apache-2.0
"""Private images as generators learn from them.

Guarantee  Shape, number of classes and `public_size` are public and checked. Values are private, and none of
           them raises: a pixel that is no number becomes 0, others are moved into [0, 1], and an image whose
           label is no class is left out. What one image becomes does not depend on another.
Unit       One image.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.images.class_labels import class_numbers, one_for_each

__all__ = ["ImageRows", "holdout_images", "public_images"]

_LEVELS = 255  # the largest value of a pixel stored in a byte
_MOST_CLASSES = 2**31  # of public images, whose classes are counted modulo the private ones


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ImageRows:
    """Images in [0, 1], their labels, and what is public about them.

    Attributes:
        images: [rows, channels, height, width], float32.
        labels: [rows], int64: class numbers. Zeros where there are no classes.
        classes: The number of classes; 1 where images have no labels.
        public_size: The number of images that may be known.
    """

    images: Tensor
    labels: Tensor
    classes: int
    public_size: int

    @classmethod
    def of(cls, data: Any, *, classes: int | None, public_size: int | None, conditional: bool) -> "ImageRows":
        """Return the images of a data set.

        Args:
            data: A data set of `sfumato.datasets`, a tensor of images, or images and labels in a tuple.
            classes: The number of classes, which is public. A data set states its own.
            public_size: The number of images that may be known. A data set states its own.
            conditional: Whether images are generated for a class.

        Returns:
            The images.

        Raises:
            InvalidParameterError: If shapes differ, labels are missing, or a public number is.
        """
        stated = getattr(data, "public_size", None)
        size = stated if public_size is None else public_size
        if size is None:
            raise InvalidParameterError(
                "pass public_size=..., the number of images that may be known, such as the planned one."
            )
        _check.count(public_size=size)
        images, labels = _parts(data)
        count = _classes(data, classes) if conditional else 1
        known = _checked_images(images)
        if not conditional:
            numbers = torch.zeros(len(known), dtype=torch.int64, device=known.device)
            return cls(images=_scaled(known), labels=numbers, classes=1, public_size=size)
        numbers = _checked_labels(labels, known, classes=count)
        kept = numbers >= 0
        return cls(images=_scaled(known)[kept], labels=numbers[kept], classes=count, public_size=size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image, which are public."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> "ImageRows":
        """Return the same images on a device."""
        return ImageRows(
            images=self.images.to(device),
            labels=self.labels.to(device),
            classes=self.classes,
            public_size=self.public_size,
        )


def _parts(data: Any) -> tuple[Any, Any]:
    scaled = getattr(data, "normalization", None)
    if hasattr(data, "train") and hasattr(data, "public_size"):
        data = data.train
    if getattr(data, "user_ids", None) is not None:
        raise InvalidParameterError(
            "these images belong to users, who may have several. Generators protect one image, so pass "
            "(images, labels) if that is what you mean to protect."
        )
    if hasattr(data, "features") and hasattr(data, "labels"):
        return data.features if scaled is None else scaled.pixels(data.features), data.labels
    if not isinstance(data, tuple):
        return data, None  # a list holds images, however many: two of them are not images and labels
    if len(data) != 2:
        raise InvalidParameterError("a tuple is images and labels. Put images that are alone into a list.")
    return data[0], data[1]


def _classes(data: Any, classes: int | None) -> int:
    found = getattr(data, "num_classes", None) if classes is None else classes
    if found is None:
        raise InvalidParameterError("pass classes=..., the number of classes: it is not read from labels.")
    _check.count(classes=found)
    return int(found)


def _checked_images(images: Any) -> Tensor:
    if isinstance(images, np.ndarray) and images.dtype == object and images.ndim == 1:
        images = images.tolist()  # each of them an array of its own
    if isinstance(images, list | tuple):
        given = [_tensor(image) for image in images]
        if len({tuple(image.shape) for image in given}) > 1:
            raise InvalidParameterError(
                "images must all have one shape, but these have several. Crop, pad or resize each of them "
                "to one size first; and put labels beside the images in a tuple, (images, labels)."
            )
        if not given:
            raise InvalidParameterError(
                "an empty list has no shape. Pass an array [0, channels, height, width]."
            )
        images = torch.stack([_scaled(image) for image in given])  # each by its own type
    known = _tensor(images)
    if known.dim() == 3:
        known = known[:, None]
    if known.dim() != 4 or 0 in known.shape[1:]:
        raise InvalidParameterError(
            "images must have the shape [rows, channels, height, width] and at least one pixel, but theirs "
            f"is {list(known.shape)[1:]} without the rows."
        )
    return known


def _tensor(values: Any) -> Tensor:
    """Return pixels as a tensor of numbers. One that is a word or None makes all of them words or objects."""
    if isinstance(values, Tensor):
        known = values.detach().to_dense()
    else:
        array = _array(values)
        known = torch.from_numpy(
            np.require(array, requirements=["C", "W"]) if array.dtype.kind in "biuf" else _pixels(array)
        )
    return torch.where(known.imag == 0, known.real, 0.0) if known.is_complex() else known


def _array(values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except Exception:  # lists of different lengths; the message may quote one
        array = np.zeros(0)
    if array.dtype == np.longdouble:  # which torch has not
        with np.errstate(all="ignore"):
            return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _pixels(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return cells that may be anything as numbers, NaN for those that are none."""
    return np.array([_real(cell) for cell in array.ravel().tolist()], dtype=np.float64).reshape(array.shape)


def _real(cell: object) -> float:
    """Return a number without an error or a warning that a value could cause; NaN for what is none."""
    try:
        plain: Any = cell.item() if hasattr(cell, "item") else cell  # type: ignore[attr-defined]
        if isinstance(plain, complex):
            return plain.real if plain.imag == 0 else math.nan
        known = isinstance(plain, int | float | str | np.floating | Decimal | Fraction)
        return float(plain) if known else math.nan
    except OverflowError:  # a whole number beyond float64
        return math.inf
    except Exception:  # whose message may quote it
        return math.nan


def _checked_labels(labels: Any, images: Tensor, *, classes: int) -> Tensor:
    if labels is None:
        raise InvalidParameterError(
            "this method generates images for a class, so each image needs a label: pass (images, labels), "
            "or use DPGAN, which needs none."
        )
    numbers = class_numbers(labels, classes=classes)
    if len(numbers) != len(images):
        raise one_for_each()
    return torch.from_numpy(numbers).to(images.device)


def _scaled(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images.float() / _LEVELS
    return images.float().nan_to_num(nan=0.0, posinf=1.0, neginf=0.0).clamp(0, 1)


def public_images(public: Any, rows: ImageRows) -> tuple[Tensor, Tensor] | None:
    """Return public images in [-1, 1] and labels, beside private ones; None if there are none.

    Images without labels get classes in turn; one whose label is no class number is left out.

    Args:
        public: Images, or images and labels in a tuple.
        rows: The private images.

    Returns:
        Images and labels, on the device of the private ones.

    Raises:
        InvalidParameterError: If public images have another shape, or there are none.
    """
    if public is None:
        return None
    images, labels = _parts(public)
    known = _scaled(_checked_images(images)).to(rows.images.device)
    if tuple(known.shape[1:]) != rows.shape or not len(known):
        raise InvalidParameterError(
            f"public images must have the shape {list(rows.shape)}, as the private ones have, but theirs is "
            f"{list(known.shape[1:])}, or there are none."
        )
    if labels is None:
        return known * 2 - 1, torch.arange(len(known), device=known.device) % rows.classes
    numbers = _checked_labels(labels, known, classes=_MOST_CLASSES)
    kept = numbers >= 0
    return known[kept] * 2 - 1, numbers[kept] % rows.classes


def holdout_images(data: Any) -> tuple[Tensor, Tensor]:
    """Return the test images of a data set of `sfumato.datasets` in [0, 1], and their labels.

    Args:
        data: The data set. Its test images are not protected.

    Returns:
        Images and labels.
    """
    features = data.test.features
    scaled = data.normalization
    return _scaled(features if scaled is None else scaled.pixels(features)), data.test.labels
