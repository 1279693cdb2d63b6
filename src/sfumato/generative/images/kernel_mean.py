# SPDX-License-Identifier: Apache-2.0
"""A generator that matches noisy means of random features: one release, and no training on private images.

The features of all images of a class are added up (`mean_embedding`), with one more column for the count. The
sums of all classes get Gaussian noise in one release. A network then learns to draw images with these means.

Guarantee  One image adds a vector of norm 1 to one row of the table of sums: its features, times the root of
           1 - `count_share`, and the root of `count_share`. So the release is a Gaussian mechanism of
           sensitivity 1 (`event`). Sums are divided by noisy counts of the same release.
Unit       One image; add-remove neighbors.
Edge cases A class without images gets noise, and its images look like it. Counts below 10 are taken as 10.
           Bandwidths are public settings: the median distance of private images is private.
Failure    The release is charged before an image is read, and an error after that leaves it spent.
Source     DP-MERF: Harder, Adamczewski, Park 2021, arXiv:2002.11603. They divide by the number of images and
           release class counts apart; here both are in one vector.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import ARCHITECTURES, NetworkSampler, check_architecture
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.class_labels import nothing_counted
from sfumato.generative.images.image_rows import ImageRows
from sfumato.generative.images.mean_embedding import BANDWIDTHS, FourierFeatures, Matching
from sfumato.generative.previews import NO_PREVIEWS, Previews
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, resolve, words

__all__ = ["KernelMean"]

_FEWEST = 10.0  # images that a class is divided by, at least
_CERTAIN = 4.0  # standard deviations of its noise above which a count is of images


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelMean:
    """How noisy means are released and matched. Nothing here is read from data.

    Args:
        features: The number of random features.
        bandwidths: The bandwidths of the kernels, as root mean squared differences of pixels.
        count_share: The share of an image's squared norm that goes into the count of its class.
        architecture: "convolutional" or "dense".
        width: Channels of the convolutions.
        latent: How many random numbers an image is made of.
        steps: Steps of the generator, which are free.
        rows: Generated images of each class in a step.
        learning_rate: The rate of Adam at the start.
        ema_decay: The decay of the moving average of the generator's weights, which is what draws.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> KernelMean().event(2.0)
    GaussianDpEvent(noise_multiplier=2.0)
    """

    features: int = 4000
    bandwidths: tuple[float, ...] = (0.15, 0.3)
    count_share: float = 0.05
    architecture: str = "convolutional"
    width: int = 64
    latent: int = 16
    steps: int = 2000
    rows: int = 40
    learning_rate: float = 5e-3
    ema_decay: float = 0.99

    def __post_init__(self) -> None:
        _check.count(
            features=self.features, width=self.width, latent=self.latent, steps=self.steps, rows=self.rows
        )
        if not self.bandwidths:
            raise InvalidParameterError("bandwidths must hold at least one number.")
        for each in self.bandwidths:
            _check.in_range(*BANDWIDTHS, bandwidths=each)
        _check.positive(learning_rate=self.learning_rate)
        _check.probability(count_share=self.count_share, ema_decay=self.ema_decay)
        if self.architecture not in ARCHITECTURES:
            raise InvalidParameterError(
                f"unknown architecture {self.architecture!r}. Use one of: {', '.join(ARCHITECTURES)}."
            )

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Release noisy means of private images; return a generator that matches them.

        Args:
            data: A data set of `sfumato.datasets`, or images [rows, channels, height, width] and labels.
            **keywords: The fields of `FitSettings`, such as `epsilon`, `delta`, `account` and `device`.

        Returns:
            The generator. Its draws cost nothing.

        Raises:
            InvalidParameterError: If a setting is missing or out of range, or images do not fit. Nothing is
                spent.
            BudgetExceededError: If the account cannot pay. Nothing is spent.
        """
        settings = FitSettings.of(keywords)
        settings.refuse("audit", "public", "resume")
        rows = ImageRows.of(
            data, classes=settings.classes, public_size=settings.public_size, conditional=True
        ).to(settings.where())
        check_architecture(self.architecture, rows.shape)
        delta = settings.delta_for(rows.public_size)
        noise = stddev_for(settings.budget, delta, 1.0)
        with settings.paid(self.event(noise)):
            noisy = self._noisy(rows, noise_multiplier=noise, generator=settings.generator)
        means = self._divided(noisy)
        matching, network = self.matching(means, rows.shape), self._network(rows)
        return settings.released(
            ImageGenerator(
                sampler=self.matched(
                    matching,
                    network,
                    generator=settings.generator,
                    progress=settings.progress,
                    previews=settings.previews(),
                ),
                method="kernel mean",
                classes=rows.classes,
                description=self.description(noise),
                findings=self._findings(noisy, noise),
                **settings.facts(self.event(noise), delta=delta),
            )
        )

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return what the release costs.

        Args:
            noise_multiplier: The noise, as a multiple of what one image adds.

        Returns:
            The event.
        """
        return dp.GaussianDpEvent(noise_multiplier)

    def description(self, noise_multiplier: float) -> str:
        """Return what a fit does to private images, in sentences.

        Args:
            noise_multiplier: As for `event`.

        Returns:
            The sentences.
        """
        return (
            f"{self.features} random features of the private images and their counts were added up for each "
            f"class, with noise of {noise_multiplier:.4g} times what one image adds. The generator learned "
            "from these sums alone."
        )

    def means(self, rows: ImageRows, *, noise_multiplier: float, generator: Generator | None) -> Tensor:
        """Release the mean features of each class. The caller has charged `event(noise_multiplier)`.

        Args:
            rows: The private images.
            noise_multiplier: As for `event`.
            generator: The source of the noise. None uses the operating system's entropy.

        Returns:
            [classes, features], with noise.
        """
        return self._divided(self._noisy(rows, noise_multiplier=noise_multiplier, generator=generator))

    def _noisy(self, rows: ImageRows, *, noise_multiplier: float, generator: Generator | None) -> Tensor:
        return tensors.add_gaussian_(
            self.sums(rows), stddev=noise_multiplier, generator=resolve(generator).fork("means", 0)
        )

    def _findings(self, noisy: Tensor, noise_multiplier: float) -> tuple[str, ...]:
        """Return what is wrong by the noisy counts, which were released."""
        counted = bool((noisy[:, -1] > _CERTAIN * noise_multiplier).any())
        return () if counted else (nothing_counted(len(noisy)),)

    def _divided(self, noisy: Tensor) -> Tensor:
        counts = (noisy[:, -1:] / math.sqrt(self.count_share)).clamp(min=_FEWEST)
        return noisy[:, :-1] / math.sqrt(1 - self.count_share) / counts

    def sums(self, rows: ImageRows) -> Tensor:
        """Return the sums without noise: they are private, and one image moves them by 1.

        Args:
            rows: The private images.

        Returns:
            [classes, features and a count], float64.
        """
        found = self._features(rows.shape).sums(rows.images, rows.labels, rows.classes)
        counts = torch.bincount(rows.labels, minlength=rows.classes).to(found)[:, None]
        parts = [found * math.sqrt(1 - self.count_share), counts * math.sqrt(self.count_share)]
        return torch.cat(parts, dim=1)

    def _features(self, shape: tuple[int, int, int]) -> FourierFeatures:
        return FourierFeatures(math.prod(shape), count=self.features, bandwidths=self.bandwidths)

    def matching(self, means: Tensor, shape: tuple[int, int, int]) -> Matching:
        """Return what a generator learns from.

        Args:
            means: What was released, [classes, features].
            shape: Channels, height and width of images.

        Returns:
            The loss.
        """
        return Matching(self._features(shape), means, rows=self.rows)

    def matched(
        self,
        matching: Matching,
        network: NetworkSampler,
        *,
        generator: Generator | None,
        progress: bool,
        previews: Previews = NO_PREVIEWS,
    ) -> NetworkSampler:
        """Train a generator on means that were released. No private image is used.

        Args:
            matching: The loss.
            network: The generator, which is changed.
            generator: The source of its random numbers. None uses the operating system's entropy.
            progress: Whether to show a bar.
            previews: What writes grids of samples.

        Returns:
            The generator.
        """
        seed = int(words(1, resolve(generator).fork("matching", 0))[0] >> np.uint64(1))
        return matching.learn(
            network,
            steps=self.steps,
            learning_rate=self.learning_rate,
            ema_decay=self.ema_decay,
            draws=torch.Generator(next(network.parameters()).device).manual_seed(seed),
            progress=progress,
            previews=previews,
        )

    def _network(self, rows: ImageRows) -> NetworkSampler:
        return NetworkSampler(
            architecture=self.architecture,
            shape=list(rows.shape),
            classes=rows.classes,
            width=self.width,
            latent=self.latent,
        ).to(rows.images.device)
