# SPDX-License-Identifier: Apache-2.0
"""Random Fourier features of images, and how a generator learns to match their means.

The features of an image are cosines and sines of random projections of its pixels. The distance between the
means of two sets of images estimates how much their distributions differ (the maximum mean discrepancy of a
Gaussian kernel).

Guarantee  The features of every image in [0, 1] have norm 1, up to rounding. The projections are drawn from a
           public seed: they depend on settings and on the shape of images alone.
Source     Rahimi, Recht 2007 (random features); Gretton et al. 2012 (maximum mean discrepancy).
Not here   Noise and its price (`kernel_mean`). `match` is post-processing of noisy means.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.previews import NO_PREVIEWS, Previews
from sfumato.training.record.progress import ProgressBar
from sfumato.training.weight_average import WeightAverage

__all__ = ["BANDWIDTHS", "FourierFeatures", "Matching"]

BANDWIDTHS = (1e-6, 1e6)  # the least and the most: below, angles could be infinite, which no noise hides

_SEED = 2002_11603  # public: anyone may know the projections
_ROWS_AT_ONCE = 4096
_GRAY = 0.5


class FourierFeatures:
    """Cosines and sines of random projections, one half each, for several bandwidths.

    Args:
        pixels: The number of values of an image.
        count: The number of features, rounded up to a multiple of twice the number of bandwidths.
        bandwidths: The bandwidths of the Gaussian kernels, as root mean squared differences of pixels, from
            1e-6 to 1e6.

    Raises:
        InvalidParameterError: If a number is out of range.

    >>> FourierFeatures(4, count=6, bandwidths=(0.5,)).of(torch.zeros(1, 1, 2, 2)).norm()
    tensor(1.)
    """

    def __init__(self, pixels: int, *, count: int, bandwidths: Sequence[float]) -> None:
        _check.count(pixels=pixels, count=count)
        if not bandwidths:
            raise InvalidParameterError("bandwidths must hold at least one number.")
        for each in bandwidths:
            _check.in_range(*BANDWIDTHS, bandwidth=each)
        draws = torch.Generator().manual_seed(_SEED)
        each = math.ceil(count / (2 * len(bandwidths)))
        scales = [1 / (width * math.sqrt(pixels)) for width in bandwidths]
        parts = [scale * torch.randn(pixels, each, generator=draws, dtype=torch.float64) for scale in scales]
        self._projections = torch.cat(parts, dim=1)  # [pixels, projections]
        self._copies: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def size(self) -> int:
        """The number of features."""
        return 2 * self._projections.shape[1]

    def of(self, images: Tensor) -> Tensor:
        """Return the features of images.

        Args:
            images: Images in [0, 1], of float32 or float64.

        Returns:
            [rows, size], of norm 1, of the type of the images.
        """
        kind = (images.dtype, images.device)
        if kind not in self._copies:
            self._copies[kind] = self._projections.to(images)
        angles = (images.flatten(1) - _GRAY) @ self._copies[kind]
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(angles.shape[1])

    def sums(self, images: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Return the sums of the features of each class, in float64.

        Args:
            images: Images in [0, 1].
            labels: Their class numbers.
            classes: The number of classes.

        Returns:
            [classes, size].
        """
        total = torch.zeros(classes, self.size, dtype=torch.float64, device=images.device)
        for part, numbers in zip(images.split(_ROWS_AT_ONCE), labels.split(_ROWS_AT_ONCE), strict=True):
            if len(part):
                total.index_add_(0, numbers, self.of(part.double()))
        return total


class Matching:
    """Lets a generator learn images whose mean features are given, class by class.

    Args:
        features: The features.
        means: The mean features of each class, [classes, size]: what was released.
        rows: Images of each class in a step. They are two halves, whose errors are multiplied: the
            expectation of that is the squared error of the generator's own mean.
    """

    def __init__(self, features: FourierFeatures, means: Tensor, *, rows: int) -> None:
        self._features, self._means, self._half = features, means.float(), max(1, rows // 2)

    def loss(self, generator: NetworkSampler, draws: torch.Generator) -> Tensor:
        """Return how much the mean features of a batch differ from those that are given.

        Args:
            generator: The generator.
            draws: Where random numbers come from.

        Returns:
            An unbiased estimate of the squared distance, averaged over classes.
        """
        classes = len(self._means)
        labels = torch.arange(2 * self._half * classes, device=self._means.device) % classes
        images = (generator(generator.latent(len(labels), draws), labels) + 1) / 2
        found = self._features.of(images).unflatten(0, (2, self._half, classes)).mean(1)
        first, second = found - self._means
        return (first * second).sum() / classes

    def learn(
        self,
        generator: NetworkSampler,
        *,
        steps: int,
        learning_rate: float,
        ema_decay: float,
        draws: torch.Generator,
        progress: bool,
        previews: Previews = NO_PREVIEWS,
    ) -> NetworkSampler:
        """Train a generator; no private image is used.

        Args:
            generator: The generator, which is changed.
            steps: Steps of Adam, whose rate falls to 0 along a cosine.
            learning_rate: The rate at the start.
            ema_decay: The decay of the moving average of the weights, which is what is kept.
            draws: Where random numbers come from.
            progress: Whether to show a bar.
            previews: What writes grids of samples.

        Returns:
            The generator, in evaluation mode.
        """
        optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate, betas=(0.5, 0.999))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        average = WeightAverage(dict(generator.named_parameters()), decay=ema_decay)
        generator.train()
        with ProgressBar(steps=steps, done=0, shown=progress, title="matching") as bar:
            for step in range(1, steps + 1):
                optimizer.zero_grad()
                self.loss(generator, draws).backward()
                optimizer.step()
                schedule.step()
                average.update()
                if previews.due(step, steps=steps):
                    with average.applied():
                        previews.draw(generator, step)
                bar.advance()
        average.keep()
        return generator.eval()
