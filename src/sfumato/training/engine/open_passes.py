# SPDX-License-Identifier: Apache-2.0
"""The passes of a model, or of what takes its place: a contributor, or a noisy sum."""

from collections.abc import Callable

from torch import nn

from sfumato.mechanisms.random import Generator
from sfumato.training.engine.contributions import (
    ContributionPasses,
    Contributor,
    NoisySummer,
    NoisySumPasses,
)
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.privacy.clipping import Clipper

__all__ = ["open_passes"]


def open_passes(
    model: nn.Module,
    loss: Loss,
    clipper: Clipper,
    *,
    settings: PassSettings,
    projections: int | None,
    generator: Generator,
    expected_batch_size: float,
    step: Callable[[], int],
) -> Passes | ContributionPasses | NoisySumPasses:
    """Return the passes of a model, or those of what takes its place: a contributor or a noisy sum."""
    if isinstance(settings.engine, NoisySummer):
        return NoisySumPasses(model, settings.engine, step=step)
    if isinstance(settings.engine, Contributor):
        return ContributionPasses(
            model, clipper, settings.engine, microbatch_size=settings.microbatch_size, step=step
        )
    return Passes(
        model,
        loss,
        clipper,
        settings=settings,
        projections=projections,
        generator=generator,
        expected_batch_size=expected_batch_size,
        step=step,
    )
