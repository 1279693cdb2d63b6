# SPDX-License-Identifier: Apache-2.0
"""Teacher discriminators on disjoint parts of private images, trained and asked all at once.

Guarantee  The part of each teacher is decided once, when the panel is made, by a `Partition`, and stays. One
           image changes the weights of one teacher, and so one vote of each query: weights are stacked, and
           a gradient, a step of Adam and a score of one teacher are computed from its own slice and from
           generated images. Random numbers that choose rows have the same shape whatever the data is.
Unit       One image, known by its row number. A removed image renumbers later ones: `Partition` says why
           that changes the probability of nothing, for a key that is drawn for one fit.
Edge cases A teacher without images, and a score that is no number, vote "fake". All teachers vote always.
Failure    No value of an image raises.
Not here   Noise: `counts` are private, and go to an aggregator of `sfumato.pate` alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state  # pyright: ignore[reportPrivateImportUsage] - public in torch's documentation

from sfumato.generative.images.image_rows import ImageRows
from sfumato.pate.teaching.partition import Partition

__all__ = ["FAKE", "REAL", "TeacherPanel"]

FAKE, REAL = 0, 1  # the classes of votes
_SCORES_AT_ONCE = 1 << 20


class TeacherPanel:
    """Teachers that say which generated images look real.

    Args:
        rows: The private images.
        partition: Which teacher has which image, for good.
        make: Returns a discriminator with random weights.
        learning_rate: The rate of Adam.
        batch: Images of its own, and generated ones, that a teacher sees in a step.
        blur: The standard deviation of noise in the pixels of its own images, as generated ones have.
        draws: Where random numbers come from, on the device of the images.
    """

    def __init__(
        self,
        rows: ImageRows,
        partition: Partition,
        make: Callable[[], nn.Module],
        *,
        learning_rate: float,
        batch: int,
        blur: float,
        draws: torch.Generator,
    ) -> None:
        self.teachers, self._classes = partition.total, rows.classes
        self._batch, self._blur, self._draws = batch, blur, draws
        self._images, self._labels, self._begins, self._sizes = _parts(rows, partition)
        self._model = make()
        weights, _ = stack_module_state([make() for _ in range(self.teachers)])
        self._weights = {
            name: weight.detach().to(rows.images.device).requires_grad_() for name, weight in weights.items()
        }
        self._optimizer = torch.optim.Adam(self._weights.values(), lr=learning_rate, betas=(0.5, 0.999))

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Take one step of every teacher: its own images are real, generated ones are not.

        Half of a teacher's own images are shown with a wrong class too, as not real: otherwise it need not
        look at the class.

        Args:
            images: Generated images in [-1, 1].
            labels: Their class numbers.
        """
        own = self._own_rows()
        real, numbers = self._images[own], self._labels[own]  # [teachers, batch, ...]
        real = real + self._blur * torch.randn(real.shape, generator=self._draws, device=real.device)
        wrong = (numbers + self._shift()) % max(self._classes, 1)
        loss = torch.func.vmap(self._loss, in_dims=(0, 0, 0, 0, None, None))(
            self._weights, real, numbers, wrong, images, labels
        )
        self._optimizer.zero_grad()
        loss.sum().backward()  # the gradient of a slice of weights is that of its own teacher's loss
        self._optimizer.step()

    def _own_rows(self) -> Tensor:
        where = torch.rand(self.teachers, self._batch, generator=self._draws, device=self._images.device)
        row = self._begins[:, None] + (where * self._sizes[:, None]).long()
        last = (self._begins + self._sizes - 1)[:, None]  # rounding up must not reach the next teacher
        return torch.where(self._sizes[:, None] > 0, torch.minimum(row, last), len(self._images) - 1)

    def _shift(self) -> Tensor:
        shape = (self.teachers, self._batch)
        if self._classes < 2:
            return torch.zeros(shape, dtype=torch.int64, device=self._images.device)
        return torch.randint(1, self._classes, shape, generator=self._draws, device=self._images.device)

    def _loss(
        self, weights: Any, real: Tensor, numbers: Tensor, wrong: Tensor, images: Tensor, labels: Tensor
    ) -> Tensor:
        right = F.softplus(-self._score(weights, real, numbers)).mean()
        fake = F.softplus(self._score(weights, images, labels)).mean()
        if self._classes < 2:
            return right + fake
        half = len(real) // 2
        return right + (fake + F.softplus(self._score(weights, real[:half], wrong[:half])).mean()) / 2

    def _score(self, weights: Any, images: Tensor, labels: Tensor) -> Tensor:
        return functional_call(self._model, weights, (images, labels))

    @torch.no_grad()
    def counts(self, images: Tensor, labels: Tensor, *, relative: bool) -> npt.NDArray[np.float64]:
        """Return the votes for "fake" and "real" of each image. They are private.

        Args:
            images: Generated images in [-1, 1].
            labels: Their class numbers.
            relative: Whether a teacher votes "real" for the images that it finds more real than its median
                of this class, among those that are asked now; else for those with a score above 0.

        Returns:
            [images, 2].
        """
        at_once = max(1, _SCORES_AT_ONCE // self.teachers)
        parts = zip(images.split(at_once), labels.split(at_once), strict=True)
        score = torch.func.vmap(self._score, in_dims=(0, None, None))
        scores = torch.cat([score(self._weights, *part) for part in parts], dim=1)  # [teachers, images]
        real = scores > (_medians(scores, labels) if relative else 0.0)  # NaN is never above
        real &= (self._sizes > 0)[:, None]
        votes = real.sum(0).cpu().numpy().astype(np.float64)
        return np.stack([self.teachers - votes, votes], axis=1)


def _parts(rows: ImageRows, partition: Partition) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images sorted by teacher with one empty image after them, labels, and where parts begin."""
    numbers, teachers = partition.assign(rows=len(rows.images))
    order = torch.as_tensor(numbers, device=rows.images.device)
    blank = rows.images.new_zeros(1, *rows.shape)
    images = torch.cat([rows.images[order] * 2 - 1, blank])
    labels = torch.cat([rows.labels[order], rows.labels.new_zeros(1)])
    sizes = torch.as_tensor(np.bincount(teachers, minlength=partition.total), device=order.device)
    return images, labels, sizes.cumsum(0) - sizes, sizes


def _medians(scores: Tensor, labels: Tensor) -> Tensor:
    """Return for each teacher and image the teacher's median score of the image's class."""
    found = torch.zeros_like(scores)
    for number in labels.unique().tolist():
        own = labels == number
        found[:, own] = scores[:, own].nanmedian(dim=1, keepdim=True).values
    return found
