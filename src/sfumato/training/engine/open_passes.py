# SPDX-License-Identifier: Apache-2.0
"""Which passes a step is made of: over rows, over rows of a sharded model, or calls of something else."""

from collections.abc import Callable
from functools import partial

from torch import nn

from sfumato.errors import InvalidParameterError
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
from sfumato.training.sharding.sharded_model import ShardedModel, WholeModel
from sfumato.training.sharding.sharded_passes import ShardedPasses

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
    sharding: ShardedModel | WholeModel,
) -> Passes | ContributionPasses | NoisySumPasses:
    """Return the passes of a model, or those of what takes its place: a contributor or a noisy sum."""
    sharded = isinstance(sharding, ShardedModel)
    if sharded and isinstance(settings.engine, (NoisySummer, Contributor)):
        raise InvalidParameterError(
            f"{type(settings.engine).__name__} gives whole contributions, and each rank holds a part of the "
            "parameters. Leave fully_shard out."
        )
    if isinstance(settings.engine, NoisySummer):
        return NoisySumPasses(model, settings.engine, step=step)
    if isinstance(settings.engine, Contributor):
        return ContributionPasses(
            model, clipper, settings.engine, microbatch_size=settings.microbatch_size, step=step
        )
    rows = partial(ShardedPasses, sharding=sharding) if sharded else Passes
    return rows(
        model,
        loss,
        clipper,
        settings=settings,
        projections=projections,
        generator=generator,
        expected_batch_size=expected_batch_size,
        step=step,
    )
