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
    from sfumato.generative.tables.bought_domain import UnknownCategory, UnknownColumn, UnknownNumber
    from sfumato.generative.tables.domain import Category, Domain, Number, UnknownDomainError
    from sfumato.generative.tables.noisy_marginals import NoisyMarginals
    from sfumato.generative.tables.private_table import DeferredTable
    from sfumato.generative.tables.table_generator import TableGenerator

__all__ = [
    "DPCGAN",
    "DPGAN",
    "Category",
    "DeferredTable",
    "Diffusion",
    "Domain",
    "FitSettings",
    "ImageGenerator",
    "KernelMean",
    "NoisyMarginals",
    "NoisyMixtures",
    "Number",
    "Pace",
    "PateCGAN",
    "StepRule",
    "TableGenerator",
    "UnknownCategory",
    "UnknownColumn",
    "UnknownDomainError",
    "UnknownNumber",
]

_HOMES = {
    "Category": "tables.domain",
    "DPCGAN": "adversarial.dp_gan",
    "DPGAN": "adversarial.dp_gan",
    "DeferredTable": "tables.private_table",
    "Diffusion": "images.diffusion",
    "Domain": "tables.domain",
    "FitSettings": "fit_settings",
    "ImageGenerator": "generator",
    "KernelMean": "images.kernel_mean",
    "NoisyMarginals": "tables.noisy_marginals",
    "NoisyMixtures": "images.mixtures",
    "Number": "tables.domain",
    "Pace": "adversarial.student_game",
    "PateCGAN": "adversarial.pate_cgan",
    "StepRule": "adversarial.game",
    "TableGenerator": "tables.table_generator",
    "UnknownCategory": "tables.bought_domain",
    "UnknownColumn": "tables.bought_domain",
    "UnknownDomainError": "tables.domain",
    "UnknownNumber": "tables.bought_domain",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
