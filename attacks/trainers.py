# SPDX-License-Identifier: Apache-2.0
"""Attacks on every way to train: samplers, relations, clipping, owners, and secret labels.

Each run is short, on data of no importance, with canaries (`audit.runs.canaries`), and takes its mechanism
as users do. `labels.train` runs with DP-SGD and AltConv. SelfSpan and SelfConv project on features, which
canaries do not have: the gradients that they would project are attacked here, and their results in
`attacks.learners`. If norms are estimated, batches are whole, because that is priced quickly.

Guarantee  All lower bounds together have the stated confidence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.audit.runs.canaries import Canaries
from sfumato.labels import AltConv, LabelDpSgd, NoisyGradients, SelfConv, train
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training.privacy.clipping import AdaptiveClip, Clipping, Scaling
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import (
    CyclicBatches,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from sfumato.training.run import TrainingRun
from sfumato.training.trainer import Trainer

__all__ = ["trainers"]

_ROWS = 200
_DELTA = 1e-5
_STEPS = 12
_NOISE = 1.5  # multiplier
_NORM = Clipping(clip_norm=1.0)
_STEP = NoisyStep(clipping=_NORM)
_RATE = PoissonSampling(sampling_rate=0.25)


def trainers(
    canaries: int = 2000, *, confidence: float = 0.95, generator: Generator | None = None
) -> Iterator[AuditResult]:
    """Train once in each way, and yield its claim with what canaries show.

    Args:
        canaries: The number of canaries of each run.
        confidence: The confidence of all bounds together.
        generator: The source of randomness, or None for secure randomness from the operating system.

    Returns:
        The result of each way, one after the other.

    Raises:
        InvalidParameterError: If `canaries` is not a positive whole number, or too small to show anything.

    >>> from sfumato.testing import seeded
    >>> next(trainers(400, generator=seeded(0))).refuted
    False
    """
    _check.count(canaries=canaries)
    ways = list(_ways(_ROWS + canaries))
    settings = Canaries(count=canaries, confidence=confidence_of_each(confidence, ways))
    source = resolve(generator)
    for index, way in enumerate(ways):
        yield _audited(way, settings, source.fork("trainer", index))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """One way to train: a mechanism, who owns the rows, and the method of secret labels, if any."""

    name: str
    mechanism: DpSgd
    rows_each: int = 1  # of an owner
    method: NoisyGradients | None = None  # of secret labels


def _ways(units: int) -> Iterator[_Way]:
    batch = units // 4
    for relation in ("add-remove", "replace-one", "zero-out", "replace-label"):
        yield _way(f"Poisson, {relation}", _RATE, relation)
    truncated = TruncatedPoissonSampling(sampling_rate=0.25, batch_size=batch, public_size=units)
    yield _way("truncated Poisson, replace-one", truncated, "replace-one")
    fixed = FixedSizeSampling(batch_size=batch, public_size=units)
    yield _way("fixed size, replace-one", fixed, "replace-one")
    for kind in (ShuffledBatches, CyclicBatches):
        known = kind(batch_size=batch, public_size=units)
        yield _way(f"{kind.__name__}, zero-out", known, "zero-out")
    for name, clipping in _clippings():
        yield _way(f"Poisson, add-remove, {name}", _RATE, "add-remove", NoisyStep(clipping=clipping))
    yield _projected()
    yield _way("Poisson, add-remove, users of 4 rows", _RATE, "add-remove", rows_each=4)
    yield from _of_labels(units)


def _clippings() -> Iterator[tuple[str, Clipping]]:
    yield "per layer", Clipping(clip_norm=1.0, per_layer=True)
    yield "automatic clipping", Clipping(clip_norm=1.0, scaling=Scaling.AUTOMATIC)
    yield "global clipping", Clipping(clip_norm=1.0, scaling=Scaling.GLOBAL, drop_above=2.0)
    yield "adaptive clipping", Clipping(clip_norm=1.0, adaptive=AdaptiveClip(count_noise_multiplier=4.0))


def _projected() -> _Way:
    step, whole = NoisyStep(clipping=_NORM, projections=20), PoissonSampling(sampling_rate=1.0)
    run = DpSgd(step=step, sampling=whole, noise=[(4.0, 4)], relation=Relation.ADD_REMOVE)
    return _Way(name="DP-SGD, whole batches, add-remove, projected norms", mechanism=run)


def _of_labels(units: int) -> Iterator[_Way]:
    for method in (
        LabelDpSgd(**_label_terms(_ROWS)),
        AltConv(**_label_terms(_ROWS), alternative_batch_size=16),
    ):
        name = f"labels, {method.name}, replace-label"
        yield _Way(name=name, mechanism=method.mechanism(), method=method)
    shown = SelfConv(**_label_terms(units)).mechanism()
    yield _Way(name="labels, as for selfspan and selfconv, replace-label", mechanism=shown)


def _label_terms(units: int) -> dict[str, Any]:
    return {
        "epsilon": 1e6,  # no limit: steps and noise are given
        "delta": _DELTA,
        "classes": 2,
        "public_size": units,
        "steps": _STEPS,
        "expected_batch_size": units // 4,
        "noise_multiplier": _NOISE,
    }


def _way(
    name: str,
    sampling: Sampling,
    relation: str,
    step: NoisyStep = _STEP,
    *,
    rows_each: int = 1,
) -> _Way:
    run = DpSgd(step=step, sampling=sampling, noise=[(_NOISE, _STEPS)], relation=Relation.parse(relation))
    return _Way(name=f"DP-SGD, {name}", mechanism=run, rows_each=rows_each)


def _audited(way: _Way, settings: Canaries, generator: Generator) -> AuditResult:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    features, labels = torch.ones(_ROWS, 3), torch.arange(_ROWS) % 2
    if way.method is None:
        found = _trained(way, model, (features, labels), settings, generator).audit
    else:
        run = train(
            model, features, labels, method=way.method, audit=settings, progress=False, generator=generator
        ).training
        found = None if run is None else run.audit
    assert isinstance(found, AuditResult)
    return AuditResult(
        subject=way.name,
        claim=found.claim,
        bounds=found.bounds,
        checks=found.checks,
        unchecked=found.unchecked,
    )


def _trained(
    way: _Way, model: nn.Module, rows: tuple[Tensor, Tensor], settings: Canaries, generator: Generator
) -> TrainingRun:
    known, users = getattr(way.mechanism.sampling, "public_size", None), way.rows_each > 1
    return Trainer(
        model,
        rows,
        mechanism=way.mechanism,
        owners=torch.arange(_ROWS) // way.rows_each if users else None,
        contribution_bound=way.rows_each if users else None,
        public_size=None if known is not None else _ROWS // way.rows_each,
        learning_rate=0.1,
        delta=_DELTA,
        audit=settings,
        progress=False,
        generator=generator,
    ).fit()
