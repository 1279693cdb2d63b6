# SPDX-License-Identifier: Apache-2.0
"""Mixtures of Gaussians for each class, fitted to noisy sums: a generator of images in seconds.

Four releases, each a sum with Gaussian noise: class sums and counts; the second moment of what is left of
each image beside its class mean, whose largest eigenvectors are the axes of all classes; sums and counts of
clusters on these axes, some times over; and the second moment within clusters, for each class.

Guarantee  One image adds a vector of norm at most 1 to each release: it is clipped to a public norm before,
           it is in one class and in one cluster, and what it is compared with was released before. So n
           releases with noise s_1, ..., s_n are n Gaussian mechanisms, chosen adaptively (`event`).
Unit       One image; add-remove neighbors.
Edge cases Clusters with too few images for their noise stay where they are and draw nothing. Classes without
           images get the noise, and look like it.
Source     Sums with noise: SuLQ, Blum et al. 2005, for k-means and principal components; their combination
           for images is ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.class_labels import nothing_counted
from sfumato.generative.images.image_rows import ImageRows
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["MixtureSampler", "NoisyMixtures"]

_GRAY, _REST = 0.5, 0.3
_FEWEST = 10.0  # images that a class is divided by, at least
_CERTAIN = 4.0  # standard deviations of its noise that a cluster's count must exceed


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyMixtures:
    """How mixtures are fitted. Nothing here is read from data.

    Args:
        clusters: Clusters in each class.
        axes: Eigenvectors that clusters live on.
        rounds: How often clusters are moved.
        norm: The L2 norm to which the rest of an image, beside its class mean, is clipped. Default: 0.3 times
            the root of the number of its pixels. Whole images are not clipped: all of them have a norm of at
            most half that root around gray.
        shares: How the noise is divided between the four releases: shares of the squared signal-to-noise
            ratio, which add up to 1.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> NoisyMixtures(rounds=2).event(10.0)
    ComposedDpEvent(events=[...])
    """

    clusters: int = 10
    axes: int = 40
    rounds: int = 3
    norm: float | None = None
    shares: tuple[float, float, float, float] = (0.15, 0.35, 0.35, 0.15)

    def __post_init__(self) -> None:
        _check.count(clusters=self.clusters, axes=self.axes, rounds=self.rounds)
        if self.norm is not None:
            _check.in_range(1e-6, 1e6, norm=self.norm)  # below, rounding could move a row beyond its norm
        if len(self.shares) != 4 or min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-9:
            raise InvalidParameterError("shares must be four numbers above 0 that add up to 1.")

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Fit mixtures to private images; return a generator, whose draws cost nothing.

        Args:
            data: A data set of `sfumato.datasets`, or images [rows, channels, height, width] and labels.
            **keywords: The fields of `FitSettings`, such as `epsilon`, `delta`, `account` and `device`.

        Returns:
            The generator.

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
        delta = settings.delta_for(rows.public_size)
        noise = stddev_for(settings.budget, delta, 1.0)
        with settings.paid(self.event(noise)):
            sampler = self.fitted(rows, noise_multiplier=noise, generator=settings.generator)
        return settings.released(
            ImageGenerator(
                sampler=sampler,
                method="mixtures",
                classes=rows.classes,
                description=self.description(noise),
                findings=() if bool((sampler.weights > 0).any()) else (nothing_counted(rows.classes),),
                **settings.facts(self.event(noise), delta=delta),
            )
        )

    def description(self, noise_multiplier: float) -> str:
        """Return what a fit does to private images, in a sentence.

        Args:
            noise_multiplier: As for `event`.

        Returns:
            The sentence.
        """
        return (
            f"For each class a mixture of {self.clusters} Gaussians was fitted to {self.rounds + 3} sums "
            "over the private images, whose noise together is that of one sum with noise of "
            f"{noise_multiplier:.4g} times what one image adds."
        )

    def multipliers(self, noise_multiplier: float) -> tuple[float, ...]:
        """Return the noise of each release, as a multiple of what one image adds.

        Args:
            noise_multiplier: The noise of one release that would cost as much as all of them together.

        Returns:
            For class sums, for the second moment, for each round of clusters, and for covariances.

        Raises:
            InvalidParameterError: If the noise is not above 0.
        """
        _check.positive(noise_multiplier=noise_multiplier)
        sums, moments, clusters, covariances = (noise_multiplier / math.sqrt(s) for s in self.shares)
        return sums, moments, *[clusters * math.sqrt(self.rounds)] * self.rounds, covariances

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return what a fit costs.

        Args:
            noise_multiplier: The noise of one release that would cost as much as all of them together.

        Returns:
            The event.
        """
        return events.compose(*(dp.GaussianDpEvent(each) for each in self.multipliers(noise_multiplier)))

    def fitted(self, rows: ImageRows, *, noise_multiplier: float, generator: Generator | None) -> Any:
        """Return the sampler. The caller has charged `event(noise_multiplier)`.

        Args:
            rows: The private images.
            noise_multiplier: As for `event`.
            generator: The source of the noise. None uses the operating system's entropy.

        Returns:
            A `MixtureSampler`.
        """
        return _Fit(self, rows, self.multipliers(noise_multiplier), generator).sampler()


class _Fit:
    """One fit: the four releases in turn. Everything that is kept between them has noise."""

    def __init__(
        self, how: NoisyMixtures, rows: ImageRows, noise: tuple[float, ...], generator: Generator | None
    ) -> None:
        self._how, self._shape, self._classes = how, rows.shape, rows.classes
        root = math.sqrt(math.prod(rows.shape))
        self._norm = how.norm if how.norm is not None else _REST * root
        self._whole = _GRAY * root  # the norm of every image around gray, at most
        self._private = _clipped(rows.images.flatten(1).double() - _GRAY, self._whole)
        self._labels = rows.labels
        self._noise, self._generator = noise, resolve(generator)
        self._released = 0

    def sampler(self) -> "MixtureSampler":
        axes = min(self._how.axes, self._private.shape[1])
        counts, means = self._class_means()
        left = _clipped(self._private - means[self._labels], self._norm)
        directions, spread = self._directions(left, counts, axes)
        places = _clipped(left @ directions, self._norm)
        centers, weights = self._clusters(places, spread)
        roots = self._covariances(places, centers, counts)
        found = MixtureSampler(
            shape=list(self._shape), classes=self._classes, clusters=self._how.clusters, axes=axes
        )
        for name, value in (
            ("means", means + _GRAY),
            ("directions", directions),
            ("centers", centers),
            ("weights", weights),
            ("roots", roots),
        ):
            getattr(found, name).copy_(value)
        return found.to(means.device)

    def _noised(self, total: Tensor) -> Tensor:
        """Return a sum to which one image adds at most norm 1, with the noise of the next release."""
        stream = self._generator.fork("mixtures", self._released)
        stddev = self._noise[self._released]
        self._released += 1
        return tensors.add_gaussian_(total.contiguous(), stddev=stddev, generator=stream)

    def _by_cell(self, rows: Tensor, cell: Tensor, cells: int, *, norm: float) -> tuple[Tensor, Tensor]:
        """Release the count and the sum of rows of norm at most `norm`, each in one cell."""
        half = math.sqrt(0.5)  # a row adds (row / norm, 1) / sqrt 2, of norm at most 1
        joined = torch.cat([rows / norm, rows.new_ones(len(rows), 1)], 1) * half
        total = rows.new_zeros(cells, joined.shape[1]).index_add_(0, cell, joined)
        noisy = self._noised(total) / half
        return noisy[:, -1], noisy[:, :-1] * norm

    def _class_means(self) -> tuple[Tensor, Tensor]:
        counts, sums = self._by_cell(self._private, self._labels, self._classes, norm=self._whole)
        counts = counts.clamp(min=_FEWEST)
        return counts, sums / counts[:, None]

    def _second_moments(self, groups: Sequence[Tensor]) -> Tensor:
        """Release for each group the sum of the outer products of its rows, of norm at most `norm`.

        A row is in one group. As a vector with the diagonal once and the rest times the root of 2, its outer
        product has the norm of the row, squared.
        """
        size = groups[0].shape[1]
        upper = torch.triu_indices(size, size, device=groups[0].device)
        scale = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(groups[0])
        totals = torch.stack([(rows / self._norm).T @ (rows / self._norm) for rows in groups])
        noisy = self._noised(totals[:, upper[0], upper[1]] * scale) / scale
        whole = torch.zeros_like(totals)
        whole[:, upper[0], upper[1]] = noisy
        return (whole + whole.triu(1).transpose(1, 2)) * self._norm**2

    def _directions(self, left: Tensor, counts: Tensor, axes: int) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self._second_moments([left])[0])
        spread = (values[-axes:] / counts.sum()).clamp(min=1e-9).sqrt()
        return vectors[:, -axes:], spread

    def _clusters(self, places: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        classes, clusters = self._classes, self._how.clusters
        seed = torch.Generator().manual_seed(0)  # where clusters begin is public
        centers = torch.randn(classes, clusters, len(spread), generator=seed).to(places) * spread * 0.7
        counts = places.new_zeros(classes * clusters)
        for _ in range(self._how.rounds):
            cell = self._labels * clusters + _nearest(places, centers[self._labels])
            enough = _CERTAIN * math.sqrt(2) * self._noise[self._released]
            counts, sums = self._by_cell(places, cell, classes * clusters, norm=self._norm)
            moved = sums / counts.clamp(min=1)[:, None]
            kept = (counts > enough)[:, None]
            centers = torch.where(kept, moved, centers.flatten(0, 1)).unflatten(0, (classes, clusters))
            counts = counts * kept[:, 0]
        return centers, counts.unflatten(0, (classes, clusters))

    def _covariances(self, places: Tensor, centers: Tensor, counts: Tensor) -> Tensor:
        own = centers[self._labels]
        near = own[torch.arange(len(places), device=places.device), _nearest(places, own)]
        left = _clipped(places - near, self._norm)
        moments = self._second_moments([left[self._labels == number] for number in range(self._classes)])
        values, vectors = torch.linalg.eigh(moments / counts[:, None, None])
        return (vectors * values.clamp(min=1e-9).sqrt()[:, None]) @ vectors.transpose(1, 2)


def _clipped(rows: Tensor, norm: float) -> Tensor:
    return rows * (norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)


def _nearest(places: Tensor, centers: Tensor) -> Tensor:
    """Return for each place the number of the nearest of its own centers [rows, clusters, axes]."""
    parts = [
        (part[:, None] - own).square().sum(-1).argmin(1)
        for part, own in zip(places.split(8192), centers.split(8192), strict=True)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=places.device)


class MixtureSampler(nn.Module):
    """Draws images from fitted mixtures.

    Args:
        shape: Channels, height and width.
        classes: The number of classes.
        clusters: Clusters in each class.
        axes: Eigenvectors.
    """

    means: Tensor
    directions: Tensor
    centers: Tensor
    weights: Tensor
    roots: Tensor

    def __init__(self, *, shape: list[int], classes: int, clusters: int, axes: int) -> None:
        super().__init__()
        self.settings = {"shape": shape, "classes": classes, "clusters": clusters, "axes": axes}
        self._shape = shape
        pixels = math.prod(shape)
        self.register_buffer("means", torch.zeros(classes, pixels))
        self.register_buffer("directions", torch.zeros(pixels, axes))
        self.register_buffer("centers", torch.zeros(classes, clusters, axes))
        self.register_buffer("weights", torch.zeros(classes, clusters))
        self.register_buffer("roots", torch.zeros(classes, axes, axes))

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return one image in [0, 1] for each class number.

        Args:
            labels: The class numbers.
            generator: Where it draws from.

        Returns:
            [rows, channels, height, width].
        """
        weights = self.weights[labels].clamp(min=0) + 1e-6
        cluster = torch.multinomial(weights, 1, generator=generator)[:, 0]
        draws = torch.randn(len(labels), self.roots.shape[-1], device=labels.device, generator=generator)
        place = self.centers[labels, cluster] + (self.roots[labels] @ draws[:, :, None])[:, :, 0]
        flat = self.means[labels] + place @ self.directions.T
        return flat.clamp(0, 1).unflatten(1, self._shape)
