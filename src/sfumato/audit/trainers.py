# SPDX-License-Identifier: Apache-2.0
"""Attack every way to train of this library: samplers, relations and styles of clipping.

Guarantee  All lower bounds together have the confidence that was asked for. Each run is short, on data of no
           importance, with canaries (`audit.canaries`), and takes its mechanism as users do.
"""

from collections.abc import Iterator

import torch
from torch import nn

from sfumato import _check
from sfumato.audit.canaries import Canaries
from sfumato.audit.results import AuditResult, confidence_of_each
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training.clipping import Clipping, Scaling
from sfumato.training.mechanism import DpSgd, NoisyStep
from sfumato.training.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.trainer import Trainer

__all__ = ["trainers"]

_ROWS = 200
_NORM = Clipping(clip_norm=1.0)
_RATE = PoissonSampling(sampling_rate=0.25)


def trainers(
    canaries: int = 2000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Train once for each way, and yield its claim with what canaries show.

    >>> from sfumato.testing import seeded
    >>> next(trainers(400, generator=seeded(0))).refuted
    False
    """
    _check.count(canaries=canaries)
    ways = list(_ways(_ROWS + canaries))
    settings = Canaries(count=canaries, confidence=confidence_of_each(confidence, ways))
    source = resolve(generator)
    for index, (name, mechanism) in enumerate(ways):
        yield _audited(name, mechanism, settings, source.fork("trainer", index))


def _ways(units: int) -> Iterator[tuple[str, DpSgd]]:
    batch = units // 4
    for relation in ("add-remove", "replace-one", "zero-out", "replace-label"):
        yield f"Poisson, {relation}", _run(_RATE, relation)
    truncated = TruncatedPoissonSampling(sampling_rate=0.25, batch_size=batch, public_size=units)
    yield "truncated Poisson, replace-one", _run(truncated, "replace-one")
    fixed = FixedSizeSampling(batch_size=batch, public_size=units)
    yield "fixed size, replace-one", _run(fixed, "replace-one")
    for kind in (ShuffledBatches, CyclicBatches):
        known = kind(batch_size=batch, public_size=units)
        yield f"{kind.__name__}, zero-out", _run(known, "zero-out")
    for name, clipping in _clippings():
        yield f"Poisson, add-remove, {name}", _run(_RATE, "add-remove", clipping)


def _clippings() -> Iterator[tuple[str, Clipping]]:
    yield "per layer", Clipping(clip_norm=1.0, per_layer=True)
    yield "automatic clipping", Clipping(clip_norm=1.0, scaling=Scaling.AUTOMATIC)
    yield "global clipping", Clipping(clip_norm=1.0, scaling=Scaling.GLOBAL, drop_above=2.0)


def _run(sampling: Sampling, relation: str, clipping: Clipping = _NORM) -> DpSgd:
    step = NoisyStep(clipping=clipping)
    return DpSgd(step=step, sampling=sampling, noise=[(1.5, 12)], relation=relation)  # type: ignore[arg-type]  # parsed


def _audited(name: str, mechanism: DpSgd, settings: Canaries, generator: Generator) -> AuditResult:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    rows = torch.ones(_ROWS, 3), torch.arange(_ROWS) % 2
    known = getattr(mechanism.sampling, "public_size", None)
    run = Trainer(
        model,
        rows,
        mechanism=mechanism,
        public_size=None if known is not None else _ROWS,
        learning_rate=0.1,
        delta=1e-5,
        audit=settings,
        progress=False,
        generator=generator,
    ).fit()
    found = run.audit
    assert isinstance(found, AuditResult)
    return AuditResult(subject=f"DP-SGD, {name}", claim=found.claim, bounds=found.bounds)
