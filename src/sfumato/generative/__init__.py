# SPDX-License-Identifier: Apache-2.0
"""Private synthetic data: generators of images and tables, and what they are worth.

Each method is a frozen description of itself: `DPCGAN().fit(data, epsilon=10)` returns a generator, which is
what was released; `generator.sample(1000)` costs nothing.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.generative.adversarial.dp_gan import DPCGAN, DPGAN
    from sfumato.generative.adversarial.game import StepRule
    from sfumato.generative.adversarial.pate_cgan import PateCGAN
    from sfumato.generative.adversarial.student_game import Pace
    from sfumato.generative.fit_settings import FitSettings
    from sfumato.generative.generator import ImageGenerator
    from sfumato.generative.images.diffusion import Diffusion
    from sfumato.generative.images.kernel_mean import KernelMean
    from sfumato.generative.images.mixtures import NoisyMixtures

__all__ = [
    "DPCGAN",
    "DPGAN",
    "Diffusion",
    "FitSettings",
    "ImageGenerator",
    "KernelMean",
    "NoisyMixtures",
    "Pace",
    "PateCGAN",
    "StepRule",
]

_HOMES = {
    "DPCGAN": "adversarial.dp_gan",
    "DPGAN": "adversarial.dp_gan",
    "Diffusion": "images.diffusion",
    "FitSettings": "fit_settings",
    "ImageGenerator": "generator",
    "KernelMean": "images.kernel_mean",
    "NoisyMixtures": "images.mixtures",
    "Pace": "adversarial.student_game",
    "PateCGAN": "adversarial.pate_cgan",
    "StepRule": "adversarial.game",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
