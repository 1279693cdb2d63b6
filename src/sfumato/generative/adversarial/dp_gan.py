# SPDX-License-Identifier: Apache-2.0
"""DP-GAN and DP-CGAN: a discriminator that learns from private images by DP-SGD, and its generator.

Guarantee  The discriminator sees private images in Poisson batches through clipped, noisy gradients; the
           generator sees the discriminator (`game`). Both cost what DP-SGD costs.
Unit       One image; add-remove neighbors.
Edge cases Classes of generated images are drawn uniformly: how often each class occurs is private.
Failure    As in `sfumato.training`: everything is charged before an image is read, and an error after that
           leaves it spent. A run with a folder that died can be resumed there.
Source     R4 Algorithm 6 (Xie et al. 2018, arXiv:1802.06739): Wasserstein loss, bounded weights, RMSProp.
           R4 Algorithm 7 (Torkzadehmahani et al. 2019, arXiv:2001.09700): real and generated gradients are
           clipped apart, noise is on what touches private images. Bie et al. 2023, arXiv:2302.02936: many
           steps of the discriminator for one of the generator. Corrections: docs/errata.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.optim import Optimizer

from sfumato import _check
from sfumato.generative.adversarial.game import Game, StepRule
from sfumato.generative.adversarial.losses import loss_named
from sfumato.generative.adversarial.networks import NetworkSampler, check_architecture, discriminator_for
from sfumato.generative.fit_settings import FitKeywords, FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.image_rows import ImageRows
from sfumato.training.run import TrainingRun
from sfumato.training.runtime import Runtime
from sfumato.training.train import train

__all__ = ["DPCGAN", "DPGAN"]

_STEPS = StepRule(least=2, most=20, told_apart=0.6)


@dataclass(frozen=True, kw_only=True, slots=True)
class DPGAN:
    """A private GAN; `fit(data, epsilon=...)` returns a generator of images without classes.

    Args:
        architecture: "convolutional", or "dense": two layers each, as in R4.
        width: Channels of the convolutions.
        latent: How many random numbers an image is made of.
        loss: "logistic", or "wasserstein" with `weight_bound` and RMSProp, as in R4 Algorithm 6.
        steps: Steps of the discriminator, each of which is paid for.
        expected_batch_size: Private images that a step samples on average, at most a quarter of
            `public_size`.
        clip_norm: The L2 norm to which the gradient of an image is clipped, private or generated.
        generator_steps: When the generator takes a step.
        learning_rate: The rate of the discriminator's optimizer.
        generator_learning_rate: The rate of the generator's.
        weight_bound: The bound on each weight of a Wasserstein discriminator.
        ema_decay: The decay of the moving average of the generator's weights, which is what draws.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    architecture: str = "convolutional"
    width: int = 64
    latent: int = 64
    loss: str = "logistic"
    steps: int = 4000
    expected_batch_size: float = 2048
    clip_norm: float = 1.0
    generator_steps: StepRule = _STEPS
    learning_rate: float = 1e-3
    generator_learning_rate: float = 1e-3
    weight_bound: float = 0.05
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        _check.count(width=self.width, latent=self.latent, steps=self.steps)
        _check.positive(
            expected_batch_size=self.expected_batch_size,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            generator_learning_rate=self.generator_learning_rate,
            weight_bound=self.weight_bound,
        )
        _check.probability(ema_decay=self.ema_decay)
        loss_named(self.loss)

    @property
    def conditional(self) -> bool:
        """Whether images are generated for a class."""
        return False

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Learn from private images; return a generator, whose draws cost nothing.

        Args:
            data: A data set of `sfumato.datasets`, or images [rows, channels, height, width], with labels in
                a tuple if images are generated for a class.
            **keywords: The fields of `FitSettings`, such as `epsilon`, `delta`, `account` and `device`.

        Returns:
            The generator.

        Raises:
            InvalidParameterError: If a setting is missing or out of range, or images do not fit. Nothing is
                spent.
            BudgetExceededError: If the account cannot pay. Nothing is spent.
        """
        settings = FitSettings.of(keywords)
        settings.refuse("public")
        rows = ImageRows.of(
            data,
            classes=settings.classes,
            public_size=settings.public_size,
            conditional=self.conditional,
        ).to(settings.where())
        check_architecture(self.architecture, rows.shape)
        game = self._game(rows, settings.where())
        run = self._train(rows, settings, game)
        return settings.released(
            ImageGenerator(
                sampler=game.finished(),
                method="dp-cgan" if self.conditional else "dp-gan",
                classes=rows.classes,
                description=_description(run, game),
                **settings.facts(run.mechanism.event(), delta=run.price.delta),
            )
        )

    def _game(self, rows: ImageRows, device: torch.device) -> Game:
        generator = NetworkSampler(
            architecture=self.architecture,
            shape=list(rows.shape),
            classes=rows.classes,
            width=self.width,
            latent=self.latent,
        ).to(device)
        return Game(
            generator,
            loss=loss_named(self.loss),
            classes=rows.classes,
            rows=max(2, round(self._batch(rows))),
            clip_norm=self.clip_norm,
            rule=self.generator_steps,
            optimizer=self._optimizer(self.generator_learning_rate)(list(generator.parameters())),
            ema_decay=self.ema_decay,
        )

    def _batch(self, rows: ImageRows) -> float:
        return min(self.expected_batch_size, rows.public_size / 4)

    def _optimizer(self, rate: float) -> Callable[[Any], Optimizer]:
        if self.loss == "wasserstein":
            return lambda parameters: torch.optim.RMSprop(parameters, lr=rate)
        return lambda parameters: torch.optim.Adam(parameters, lr=rate, betas=(0.5, 0.999))

    def _discriminator_optimizer(self, parameters: Any) -> Optimizer:
        optimizer = self._optimizer(self.learning_rate)(parameters)
        if self.loss == "wasserstein":
            bound = self.weight_bound

            def after_step(*_: Any) -> None:
                _bound_weights(optimizer, bound)

            optimizer.register_step_post_hook(after_step)
        return optimizer

    def _train(self, rows: ImageRows, settings: FitSettings, game: Game) -> TrainingRun:
        where, previews = settings.where(), settings.previews()
        discriminator = discriminator_for(
            self.architecture, shape=rows.shape, classes=rows.classes, width=self.width
        ).to(where)
        return train(
            discriminator,
            (rows.images * 2 - 1, rows.labels),
            epsilon=settings.budget,
            delta=settings.delta_for(rows.public_size),
            steps=self.steps,
            expected_batch_size=self._batch(rows),
            public_size=rows.public_size,
            clip_norm=self.clip_norm,
            relation="add-remove",
            privacy_unit=settings.privacy_unit,
            account=settings.account,
            purpose=settings.purpose,
            loss=loss_named(self.loss).real,
            optimizer=self._discriminator_optimizer,
            denoiser=game,
            on_evaluation=lambda _, step: game.preview(previews, step),
            folder=None if settings.folder is None else Path(settings.folder) / "training",
            audit=settings.audit,
            runtime=Runtime(device=where),
            generator=settings.generator,
            progress=settings.progress,
            resume=settings.resume,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DPCGAN(DPGAN):
    """A private conditional GAN; `fit(data, epsilon=...)` returns a generator of images for each class.

    Args:
        architecture: "convolutional", or "dense": two layers each, as in R4.
        width: Channels of the convolutions.
        latent: How many random numbers an image is made of.
        loss: "logistic", or "wasserstein" with `weight_bound` and RMSProp, as in R4 Algorithm 6.
        steps: Steps of the discriminator, each of which is paid for.
        expected_batch_size: Private images that a step samples on average, at most a quarter of
            `public_size`.
        clip_norm: The L2 norm to which the gradient of an image is clipped, private or generated.
        generator_steps: When the generator takes a step.
        learning_rate: The rate of the discriminator's optimizer.
        generator_learning_rate: The rate of the generator's.
        weight_bound: The bound on each weight of a Wasserstein discriminator.
        ema_decay: The decay of the moving average of the generator's weights, which is what draws.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    @property
    def conditional(self) -> bool:
        """Whether images are generated for a class."""
        return True


@torch.no_grad()
def _bound_weights(optimizer: Optimizer, bound: float) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.clamp_(-bound, bound)


def _description(run: TrainingRun, game: Game) -> str:
    audited = "" if run.audit is None else f" {run.audit.statement()}"
    return (
        f"A discriminator learned from private images in {run.mechanism.steps} steps of DP-SGD, with noise "
        f"of {run.mechanism.noise_multiplier(0):.4g} times the norm to which the gradient of one image was "
        f"clipped. {game.statement()}{audited}"
    )
