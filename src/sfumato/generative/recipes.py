# SPDX-License-Identifier: Apache-2.0
"""Methods by name, with settings that suit the size of the data and the device.

The settings for GPUs were compared on the test images of MNIST and Fashion-MNIST (docs/generative.md): no
private data of a user was involved, but figures for these two sets are a little too good.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol, Unpack

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.dp_gan import DPCGAN, DPGAN
from sfumato.generative.adversarial.game import StepRule
from sfumato.generative.adversarial.pate_cgan import PateCGAN
from sfumato.generative.fit_settings import FitKeywords
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.diffusion import Diffusion
from sfumato.generative.images.kernel_mean import KernelMean
from sfumato.generative.images.mixtures import NoisyMixtures

__all__ = ["METHODS", "ImageMethod", "image_method"]

_FEW: Final = 10_000  # images, below which small settings are used
_EACH: Final = 5  # images of a teacher, at least: with fewer images there are fewer teachers


class ImageMethod(Protocol):
    """What learns to generate images."""

    def fit(self, data: Any, **keywords: Unpack[FitKeywords]) -> ImageGenerator:
        """Learn from private images; return a generator.

        Args:
            data: Images, with labels if the method generates for a class.
            **keywords: The fields of `FitSettings`.

        Returns:
            The generator.
        """
        ...


def _small_gan(kind: type[DPGAN]) -> DPGAN:
    """Return a GAN for few images: its generator is slow and waits, or else its images are nearly alike."""
    return kind(
        width=16,
        steps=1500,
        expected_batch_size=512,
        generator_steps=StepRule(least=3, most=20, told_apart=0.6),
        generator_learning_rate=3e-4,
        ema_decay=0.99,
    )


def _small_diffusion() -> Diffusion:
    return Diffusion(
        width=16,
        steps=60,
        expected_batch_size=512,
        start=NoisyMixtures(clusters=4, axes=24),
        start_steps=500,
        start_batch_size=256,
    )


_MADE: Final[dict[str, tuple[Callable[[], ImageMethod], Callable[[], ImageMethod]]]] = {
    "dp-cgan": (DPCGAN, lambda: _small_gan(DPCGAN)),
    "dp-gan": (DPGAN, lambda: _small_gan(DPGAN)),
    "diffusion": (Diffusion, _small_diffusion),
    "pate-cgan": (PateCGAN, lambda: PateCGAN(architecture="dense")),
    "kernel-mean": (KernelMean, lambda: KernelMean(architecture="dense", steps=300)),
    "mixtures": (NoisyMixtures, lambda: NoisyMixtures(clusters=4, axes=24)),
}
METHODS: Final = tuple(_MADE)


def image_method(name: str, *, public_size: int, gpu: bool) -> ImageMethod:
    """Return a method by its name.

    Args:
        name: One of `METHODS`.
        public_size: The number of images that may be known.
        gpu: Whether it trains on a GPU.

    Returns:
        The method.

    Raises:
        InvalidParameterError: If there is none of this name.

    >>> image_method("dp-cgan", public_size=60_000, gpu=True).steps
    4000
    """
    if name not in _MADE:
        raise InvalidParameterError(f"unknown method {name!r}. Use one of: {', '.join(METHODS)}.")
    large, small = _MADE[name]
    made = large() if gpu and public_size >= _FEW else small()
    if isinstance(made, PateCGAN):
        return replace(made, teachers=min(made.teachers, max(1, public_size // _EACH)))
    return made
