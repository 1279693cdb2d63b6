# SPDX-License-Identifier: Apache-2.0
"""The generator's side of a private GAN, as post-processing of the discriminator's noisy gradients.

The discriminator is trained by `sfumato.training` on private images alone, with clipping, noise and batches
as DP-SGD prescribes. Here the gradient on generated images is added to that noisy gradient, clipped on its
own, and the generator takes a step against the discriminator every few steps.

Guarantee  Nothing here sees a private image or a gradient without noise: what it gets are noisy gradients and
           the weights that earlier ones made. So the generator costs nothing beyond DP-SGD's event.
Edge cases How often the generator moves may depend on how well generated images are told apart, which is a
           fact about the discriminator's weights, and not about private images.
Source     R4 Algorithms 6 and 7, corrected (docs/errata.md). Steps that adapt: Bie et al. 2023,
           arXiv:2302.02936.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.generative.adversarial.clipped_gradients import ClippedGradients
from sfumato.generative.adversarial.losses import AdversarialLoss
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.previews import Previews
from sfumato.mechanisms.random import Generator, words
from sfumato.training.weight_average import WeightAverage

__all__ = ["Game", "StepRule"]

_MEMORY = 0.9  # of the share of generated images that are told apart


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRule:
    """When the generator takes a step.

    Args:
        least: Steps of the discriminator before one of the generator, at least.
        most: Steps of the discriminator before one of the generator, at most.
        told_apart: The share of generated images that the discriminator must tell apart, on average, before
            the generator moves. 0 for a step after every `least` ones.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    least: int = 5
    most: int = 200
    told_apart: float = 0.0

    def __post_init__(self) -> None:
        _check.count(least=self.least, most=self.most)
        _check.in_range(0, 1, told_apart=self.told_apart)

    def due(self, waited: int, told_apart: float) -> bool:
        """Return whether the generator moves now.

        Args:
            waited: Steps of the discriminator since it last moved.
            told_apart: The share of generated images that were told apart lately.

        Returns:
            Whether it does.

        >>> StepRule(least=2, most=9, told_apart=0.6).due(3, 0.5), StepRule(least=2).due(2, 0.0)
        (False, True)
        """
        if waited < self.least:
            return False
        return told_apart >= self.told_apart or waited >= self.most


class Game:
    """A `Denoiser` that adds the gradient on generated images, and trains the generator.

    Args:
        generator: The generator, on its device.
        loss: What both sides learn from.
        classes: The number of classes; 1 for images without labels.
        rows: Generated images in a step.
        clip_norm: The L2 norm to which the gradient of a generated image is clipped.
        rule: When the generator moves.
        optimizer: The generator's optimizer.
        ema_decay: The decay of the moving average of the generator's weights.
    """

    holds_rows = False  # nothing of the private data
    reveals_batches = False

    def __init__(
        self,
        generator: NetworkSampler,
        *,
        loss: AdversarialLoss,
        classes: int,
        rows: int,
        clip_norm: float,
        rule: StepRule,
        optimizer: torch.optim.Optimizer,
        ema_decay: float,
    ) -> None:
        self.generator, self._loss, self._classes = generator, loss, classes
        self._rows, self._clip_norm, self._rule, self._optimizer = rows, clip_norm, rule, optimizer
        self._average = WeightAverage(dict(generator.named_parameters()), decay=ema_decay)
        self._clipped: ClippedGradients | None = None
        self._waited, self._told_apart, self.moves = 0, 0.0, 0

    def __repr__(self) -> str:
        return (
            f"Game(loss={self._loss.name!r}, classes={self._classes}, rows={self._rows}, "
            f"clip_norm={self._clip_norm:g}, rule={self._rule!r}, decay={self._average.decay:g})"
        )

    def denoise(
        self, model: nn.Module, gradient: Mapping[str, Tensor], *, rows: Tensor | None, generator: Generator
    ) -> Mapping[str, Tensor]:
        """Return the noisy gradient on private images plus the one on generated images.

        Args:
            model: The discriminator.
            gradient: Its noisy gradient, by parameter.
            rows: None: it does not know the batch.
            generator: Where random numbers come from.

        Returns:
            The sum of both.
        """
        draws = self._draws(generator)
        labels = torch.randint(self._classes, (self._rows,), device=draws.device, generator=draws)
        with torch.no_grad():
            images = self.generator.train()(self.generator.latent(self._rows, draws), labels)
        fake = self._of(model).mean(images, labels)
        both = {name: part + fake[name] if name in fake else part for name, part in gradient.items()}
        self._waited += 1
        if self._rule.told_apart > 0:
            self._watch(model, images, labels)
        if self._rule.due(self._waited, self._told_apart):
            self._move(model, draws)
        return both

    def _draws(self, generator: Generator) -> torch.Generator:
        seed = int(words(1, generator)[0] >> np.uint64(1))
        return torch.Generator(next(self.generator.parameters()).device).manual_seed(seed)

    def _of(self, model: nn.Module) -> ClippedGradients:
        if self._clipped is None:
            where = next(self.generator.parameters()).device
            self._clipped = ClippedGradients(
                model,
                self._loss.fake,
                clip_norm=self._clip_norm,
                rows=self._rows,
                cuda_graphs=where.type == "cuda",
            )
        return self._clipped

    @torch.no_grad()
    def _watch(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        share = float((model(images, labels) < 0).float().mean())
        self._told_apart = _MEMORY * self._told_apart + (1 - _MEMORY) * share

    def _move(self, model: nn.Module, draws: torch.Generator) -> None:
        """Take one step of the generator against the discriminator, whose gradients stay as they are."""
        labels = torch.randint(self._classes, (self._rows,), device=draws.device, generator=draws)
        images = self.generator(self.generator.latent(self._rows, draws), labels)
        loss = self._loss.real(model, images, labels).mean()  # it wants them to look real
        parameters = list(self.generator.parameters())
        for parameter, part in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = part
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._average.update()
        self._waited, self.moves = 0, self.moves + 1

    def finished(self) -> NetworkSampler:
        """Return the generator with the average of its weights.

        Returns:
            The generator, in evaluation mode.
        """
        if self.moves:
            self._average.keep()
        return self.generator.eval()

    def preview(self, previews: Previews, step: int) -> None:
        """Write a grid of what the generator draws now, with the average of its weights.

        Args:
            previews: What writes grids.
            step: How many steps were taken.
        """
        with self._average.applied() if self.moves else nullcontext():
            previews.draw(self.generator, step)

    def statement(self) -> str:
        """Return what it does, as a sentence for the statement.

        Returns:
            The sentence.
        """
        return (
            "To each noisy gradient of the discriminator its gradient on generated images was added, and the "
            "generator learned from the discriminator alone: it never saw a private image."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers from step to step.

        Returns:
            Weights, optimizer, average and counters.
        """
        return {
            "generator": self.generator.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": self._average.state_dict(),
            "counters": (self._waited, self._told_apart, self.moves),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Args:
            state: The state.
        """
        self.generator.load_state_dict(state["generator"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._average.load_state_dict(state["average"])
        self._waited, self._told_apart, self.moves = state["counters"]
