# SPDX-License-Identifier: Apache-2.0
"""A diffusion model of images, trained by DP-SGD, that begins from noisy mixtures or public images.

A small model spends most of its budget on what images look like at all. So the network first learns from
draws of `NoisyMixtures`, which cost a share of the budget, or from public images, which cost nothing; then
DP-SGD goes on with private ones.

Guarantee  Two mechanisms with noise that is fixed beforehand: the mixtures (Gaussian sums), and DP-SGD.
           Epsilon covers both together. What is learned from draws of the mixtures is post-processing.
           The ledger has a row for each.
Unit       One image; add-remove neighbors.
Failure    If the account cannot pay for both, nothing is spent. An error after a charge leaves it spent.
Source     Dockhorn et al. 2023, arXiv:2210.09929 (several noise levels for each image before its gradient is
           clipped). A start from noisy summaries: Li et al. 2025 (DP-FETA), who use class means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.denoising_network import DenoisingNetwork
from sfumato.generative.images.image_rows import ImageRows, public_images
from sfumato.generative.images.mixtures import NoisyMixtures
from sfumato.generative.images.noise_levels import Levels, denoising_loss, drawn
from sfumato.generative.previews import NO_PREVIEWS, Previews
from sfumato.training.privacy.clipping import Clipping
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling
from sfumato.training.record.progress import ProgressBar
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.train import train
from sfumato.training.weight_average import WeightAverage

__all__ = ["Diffusion", "DiffusionSampler"]

_MIXTURES = NoisyMixtures()
_START_RATE, _START_DECAY = 2e-3, 0.998  # of the steps that it begins with
_DRAWN = 60_000  # images of the mixtures that a network begins with, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Diffusion:
    """A diffusion model; `fit(data, epsilon=...)` returns a generator of images for each class.

    Args:
        width: Channels of the first level of the network.
        steps: Steps of DP-SGD.
        expected_batch_size: Images that a step samples on average, at most a quarter of `public_size`.
        views: Noise levels of each image, averaged before its gradient is clipped.
        clip_norm: The L2 norm to which the gradient of an image is clipped.
        learning_rate: The rate of Adam in DP-SGD.
        ema_decay: The decay of the moving average of the weights, which is what draws.
        start: The mixtures that it begins with; None begins with random weights. Public images, if there are
            any, take their place.
        start_share: The part of the budget that the mixtures take: a share of the squared signal-to-noise
            ratio.
        start_steps: Steps on draws of the mixtures, or on public images.
        start_batch_size: Images in each of them.
        levels: Noise levels that a drawn image passes through.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    width: int = 64
    steps: int = 150
    expected_batch_size: float = 4096
    views: int = 2
    clip_norm: float = 1.0
    learning_rate: float = 5e-4
    ema_decay: float = 0.995
    start: NoisyMixtures | None = _MIXTURES
    start_share: float = 0.25
    start_steps: int = 2000
    start_batch_size: int = 1024
    levels: int = 14

    def __post_init__(self) -> None:
        _check.count(
            width=self.width,
            steps=self.steps,
            views=self.views,
            start_steps=self.start_steps,
            start_batch_size=self.start_batch_size,
            levels=self.levels,
        )
        _check.positive(expected_batch_size=self.expected_batch_size, learning_rate=self.learning_rate)
        _check.positive(clip_norm=self.clip_norm)
        _check.probability(start_share=self.start_share, ema_decay=self.ema_decay)

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Learn from private images; return a generator, whose draws cost nothing.

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
        settings.refuse("resume")
        rows = ImageRows.of(
            data, classes=settings.classes, public_size=settings.public_size, conditional=True
        )
        DenoisingNetwork.require(rows.shape)
        return _Fit(self, settings, rows.to(settings.where())).generator()

    def noise(self, *, public_size: int, epsilon: float, delta: float, mixtures: bool) -> tuple[float, DpSgd]:
        """Return the noise of the mixtures, and the run of DP-SGD, that meet a budget together.

        Args:
            public_size: The number of images that may be known.
            epsilon: The privacy budget.
            delta: The delta of the guarantee.
            mixtures: Whether mixtures take a share of it.

        Returns:
            The noise multiplier of the mixtures, which is infinite if there are none, and the run.
        """
        alone = stddev_for(epsilon, delta, 1.0)  # of one Gaussian release that would take all of it
        first = alone / math.sqrt(self.start_share) if mixtures else math.inf
        expected = min(self.expected_batch_size, public_size / 4)

        def run(multiplier: float) -> DpSgd:
            return DpSgd(
                step=NoisyStep(clipping=Clipping(clip_norm=self.clip_norm)),
                sampling=PoissonSampling(sampling_rate=expected / public_size),
                noise=((multiplier, self.steps),),
                relation=Relation.ADD_REMOVE,
            )

        multiplier = calibrate(
            lambda value: run(value).event(),
            epsilon=epsilon,
            delta=delta,
            given=self._start_event(first),
        )
        return first, run(multiplier)

    def _start_event(self, noise_multiplier: float) -> DpEvent:
        if math.isinf(noise_multiplier) or self.start is None:
            return dp.NoOpDpEvent()
        return self.start.event(noise_multiplier)

    def event(self, noise_multiplier: float, run: DpSgd) -> DpEvent:
        """Return what both mechanisms cost together.

        Args:
            noise_multiplier: That of the mixtures, infinite if there are none.
            run: The run of DP-SGD.

        Returns:
            The event.
        """
        return events.compose(self._start_event(noise_multiplier), run.event())


class _Fit:
    """One fit: the start, and the run of DP-SGD after it."""

    def __init__(self, how: Diffusion, settings: FitSettings, rows: ImageRows) -> None:
        self._how, self._settings, self._rows = how, settings, rows
        self._delta = settings.delta_for(rows.public_size)
        self._public = public_images(settings.public, rows)
        mixtures = self._public is None and how.start is not None
        self._noise, self._run = how.noise(
            public_size=rows.public_size, epsilon=settings.budget, delta=self._delta, mixtures=mixtures
        )
        self._event = how.event(self._noise, self._run)
        self._sampler = DiffusionSampler(
            shape=list(rows.shape), classes=rows.classes, width=how.width, levels=how.levels
        ).to(settings.where())

    def generator(self) -> ImageGenerator:
        self._settings.require_paid(self._event)
        first = self._first_images()
        if first is not None:
            self._begin(*first, previews=self._start_previews())
        run = self._train()
        return self._settings.released(
            ImageGenerator(
                sampler=self._sampler.eval(),
                method="diffusion",
                classes=self._rows.classes,
                description=self._description(run),
                **self._settings.facts(self._event, delta=self._delta),
            )
        )

    def _first_images(self) -> tuple[Tensor, Tensor] | None:
        """Return images to begin with, in [-1, 1]: public ones, or draws of mixtures that are paid for."""
        if self._public is not None:
            return self._public
        mixtures = self._how.start
        if mixtures is None:
            return None
        with self._settings.paid(mixtures.event(self._noise), part="mixtures"):
            sampler = mixtures.fitted(
                self._rows, noise_multiplier=self._noise, generator=self._settings.generator
            )
        count = min(_DRAWN, max(2000, self._rows.public_size))
        labels = torch.arange(count, device=self._rows.images.device) % self._rows.classes
        draws = torch.Generator(labels.device).manual_seed(0)
        images = torch.cat([sampler.sample(part, draws) for part in labels.split(8192)])
        return images.float() * 2 - 1, labels

    def _start_previews(self) -> Previews:
        """Return what shows the start; nothing if it has public images: then nothing is charged yet."""
        return self._settings.previews().during("start") if self._public is None else NO_PREVIEWS

    def _begin(self, images: Tensor, labels: Tensor, *, previews: Previews) -> None:
        """Learn from images that are not protected, or draws of what was released."""
        how, network = self._how, self._sampler.network
        optimizer = torch.optim.Adam(network.parameters(), lr=_START_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _START_RATE, total_steps=how.start_steps + 1
        )
        average = WeightAverage(dict(network.named_parameters()), decay=_START_DECAY)
        levels = Levels()
        with ProgressBar(
            steps=how.start_steps, done=0, shown=self._settings.progress, title="starting"
        ) as bar:
            for step in range(1, how.start_steps + 1):
                chosen = torch.randint(len(images), (how.start_batch_size,), device=images.device)
                with self._runtime().forward(images.device):
                    loss = denoising_loss(network, *levels((images[chosen], labels[chosen]))).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                average.update()
                if previews.due(step, steps=how.start_steps):
                    with average.applied():
                        previews.draw(self._sampler, step)
                bar.advance()
        average.keep()
        optimizer.zero_grad()

    def _runtime(self) -> Runtime:
        where = self._settings.where()
        return Runtime(device=where, autocast=torch.bfloat16 if where.type == "cuda" else None)

    def _train(self) -> TrainingRun:
        """Train the network by DP-SGD, in place. The run charges itself."""
        settings, how, previews = self._settings, self._how, self._settings.previews()
        return train(
            self._sampler.network,
            (self._rows.images * 2 - 1, self._rows.labels),
            mechanism=self._run,
            public_size=self._rows.public_size,
            delta=self._delta,
            privacy_unit=settings.privacy_unit,
            account=settings.account,
            purpose=settings.purpose if math.isinf(self._noise) else settings.purpose_of("DP-SGD"),
            loss=denoising_loss,
            augment=Levels(),
            views=how.views,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=how.learning_rate),
            ema_decay=how.ema_decay,
            on_evaluation=lambda _, step: previews.draw(self._sampler, step),
            audit=settings.audit,
            runtime=self._runtime(),
            generator=settings.generator,
            progress=settings.progress,
        )

    def _description(self, run: TrainingRun) -> str:
        start = "A diffusion model was trained from random weights."
        if self._public is not None:
            start = "A diffusion model first learned from public images, which are not protected."
        elif self._how.start is not None:
            start = f"{self._how.start.description(self._noise)} A diffusion model first learned from draws."
        audited = "" if run.audit is None else f" {run.audit.statement()}"
        return (
            f"{start} DP-SGD then took {self._run.steps} steps on private images, with noise of "
            f"{self._run.noise_multiplier(0):.4g} times the norm to which the gradient of one image was "
            f"clipped.{audited}"
        )


class DiffusionSampler(nn.Module):
    """Draws images from a network, from noise to an image.

    Args:
        shape: Channels, height and width.
        classes: The number of classes.
        width: Channels of the network's first level.
        levels: Noise levels that an image passes through.
    """

    def __init__(self, *, shape: Sequence[int], classes: int, width: int, levels: int) -> None:
        super().__init__()
        self.settings = {"shape": list(shape), "classes": classes, "width": width, "levels": levels}
        self._shape, self._levels = tuple(shape), levels
        self.network = DenoisingNetwork(channels=shape[0], classes=classes, width=width)

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return one image in [0, 1] for each class number.

        Args:
            labels: The class numbers.
            generator: Where it draws from.

        Returns:
            [rows, channels, height, width].
        """
        fast = labels.is_cuda
        with torch.autocast(labels.device.type, dtype=torch.bfloat16, enabled=fast):
            made = drawn(self.network, labels, shape=self._shape, steps=self._levels, generator=generator)
        return (made.float() + 1).div(2).clamp(0, 1)
