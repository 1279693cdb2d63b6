# SPDX-License-Identifier: Apache-2.0
"""The cases of every generator of synthetic data, and of the release that tells whether one copied.

- A case releases what its generator is computed from: noisy sums, noisy marginals, or answers of teachers.
  Fits are priced beforehand, because pricing takes longer than all the rest.
- What DP-SGD trains, a discriminator or a diffusion model, is audited by canaries in a whole fit. Its claim
  is that of DP-SGD alone; the mixtures that a diffusion model begins with are a case of their own.
- `generator_replays` compares whole fits on neighbors exactly, in tests.
- Epsilon is 4 where it is spent on several releases, of which one event sees only a part; else it is 1.

Neighbors  One image or row more, as far from the others as it can be, or the only one there is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.releases import ADD, DELTA, Case
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Guarantee
from sfumato.accounting.price import price
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.runs.canaries import Canaries
from sfumato.generative import (
    DPCGAN,
    DPGAN,
    Category,
    Diffusion,
    Domain,
    FitSettings,
    KernelMean,
    NoisyMarginals,
    NoisyMixtures,
)
from sfumato.generative.adversarial.networks import discriminator_for
from sfumato.generative.adversarial.paid_votes import PaidVotes
from sfumato.generative.adversarial.teacher_panel import TeacherPanel
from sfumato.generative.evaluation import TrainingRows, copy_test, near_copies
from sfumato.generative.images import diffusion
from sfumato.generative.images.image_rows import ImageRows
from sfumato.generative.tables.adaptive_rounds import TableCounts
from sfumato.generative.tables.count_noise import NoiseBudget
from sfumato.mechanisms.random import Generator
from sfumato.pate import ConfidentGNMax, Labeling, Partition
from sfumato.training.run import TrainingRun

__all__ = ["FITS", "audited_fits", "generator_cases"]

_CLASSES = 2
_SHARE = 0.25  # of the trials, where a run takes tens of milliseconds
_CANARY_ROWS = 200


def generator_cases() -> tuple[Case, ...]:
    """Return the cases of generators that are not trained by DP-SGD.

    Returns:
        The cases.

    >>> [case.subject for case in generator_cases()][:2]
    ['KernelMean', 'NoisyMixtures']
    """
    return (_means(), _mixtures(), _marginals(), _votes(), _copies())


def _rows(images: Tensor, labels: list[int]) -> ImageRows:
    return ImageRows.of((images, labels), classes=_CLASSES, public_size=4, conditional=True)


def _none_and_one() -> tuple[ImageRows, ImageRows]:
    """Return no image, and one: all of its pixels are as far from gray as they can be."""
    one = torch.tensor([[[[0.0, 1.0]]]])
    return _rows(one[:0], []), _rows(one, [1])


def _claim(event: DpEvent) -> Guarantee:
    return price(event, delta=DELTA, relation=ADD).guarantee("example")


def _means() -> Case:
    how, noise = KernelMean(features=2, bandwidths=(1.0,)), stddev_for(1.0, DELTA, 1.0)
    first, second = _none_and_one()

    def run(rows: ImageRows, generator: Generator) -> object:
        return how.means(rows, noise_multiplier=noise, generator=generator)

    return Case(
        subject="KernelMean",
        audits="KernelMean",
        run=run,
        first=first,
        second=second,
        claim=_claim(how.event(noise)),
    )


def _mixtures() -> Case:
    how, noise = NoisyMixtures(clusters=2, axes=2, rounds=1), stddev_for(4.0, DELTA, 1.0)
    first, second = _none_and_one()

    def run(rows: ImageRows, generator: Generator) -> object:
        fitted = how.fitted(rows, noise_multiplier=noise, generator=generator)
        return [fitted.means, fitted.directions, fitted.centers, fitted.weights, fitted.roots]

    return Case(
        subject="NoisyMixtures",
        audits="NoisyMixtures",
        run=run,
        first=first,
        second=second,
        claim=_claim(how.event(noise)),
    )


def _marginals() -> Case:
    how: Any = NoisyMarginals(rounds=1, degree=2, iterations=5)
    domain = Domain({"a": Category(values=(0, 1)), "b": Category(values=(0, 1))})
    claim = how.claim(domain, epsilon=4.0, delta=DELTA)
    codes = np.zeros((12, 2), dtype=np.int64)

    def run(rows: Any, generator: Generator) -> object:
        counts = TableCounts(rows, domain.sizes, rows_per_unit=1)
        budget = NoiseBudget(noise_multiplier=claim.noise_multiplier, sensitivity=1)
        model = how._plan(domain, claim).run(counts, budget, generator=generator)
        return [model.total, *(model.marginal((column,)) for column in range(2))]

    return Case(
        subject="NoisyMarginals",
        audits="NoisyMarginals",
        run=run,
        first=codes,
        second=np.concatenate([codes, [[1, 1]]]),
        claim=_claim(claim.event()),
        share=_SHARE,
    )


def _votes() -> Case:
    """Return a teacher that has an image, or none; it is asked whether that image is real."""
    aggregator = ConfidentGNMax(threshold=0.0, threshold_stddev=4.0, stddev=1.0)
    job = Labeling(aggregator=aggregator, queries=1, teachers=1, delta=DELTA)
    first, second = _none_and_one()
    asked, other = second.images * 2 - 1, 1 - second.images * 2

    def run(rows: ImageRows, generator: Generator) -> object:
        panel = TeacherPanel(
            rows,
            Partition.draw(1, generator.fork("partition", 0)),
            lambda: discriminator_for("dense", shape=rows.shape, classes=rows.classes, width=1),
            learning_rate=0.3,
            batch=2,
            blur=0.0,
            draws=torch.Generator().manual_seed(0),
        )
        for _ in range(2):
            panel.learn(other, second.labels)
        votes = PaidVotes(job, aggregator, generator)
        return votes.answer(1, lambda: panel.counts(asked, second.labels, relative=False)).tolist()

    return Case(
        subject="PateCGAN, votes of a teacher",
        audits="PateCGAN",
        run=run,
        first=first,
        second=second,
        claim=_claim(job.event()),
        share=_SHARE,
    )


def _copies() -> Case:
    synthetic, holdout = np.array([[0.0, 0.0]]), np.array([[0.1, 0.0], [0.9, 0.9]])
    test = copy_test(synthetic, holdout, quantile=0.5)

    def run(rows: Any, generator: Generator) -> object:
        found = near_copies(TrainingRows(rows=rows), test, epsilon=1.0, generator=generator)
        return found.release.value

    near = np.array([[0.05, 0.0]])
    return Case(
        subject="near_copies",
        audits="near_copies",
        run=run,
        first=near[:0],
        second=near,
        claim=Guarantee(epsilon=1.0, delta=0.0, relation=ADD, privacy_unit="row"),
    )


# --- whole fits with canaries -----------------------------------------------------------------------------

_STEPS: dict[str, Any] = {"steps": 6, "expected_batch_size": 50}
_DENSE: dict[str, Any] = {"architecture": "dense", "latent": 4, **_STEPS}
_SHORT: dict[str, Any] = {
    "width": 4,
    "views": 2,
    "start_steps": 1,
    "start_batch_size": 8,
    "levels": 2,
    **_STEPS,
}

FITS: tuple[DPGAN | Diffusion, ...] = (
    DPGAN(**_DENSE),
    DPCGAN(**_DENSE),
    Diffusion(**_SHORT, start=NoisyMixtures(clusters=2, axes=4, rounds=1)),
)


def audited_fits(settings: Canaries, *, generator: Generator) -> Iterator[AuditResult]:
    """Fit every generator that DP-SGD trains, once, and yield its claim with what canaries show.

    Args:
        settings: The canaries.
        generator: The source of randomness.

    Yields:
        The result of each.
    """
    for place, how in enumerate(FITS):
        yield _audited(how, settings, generator.fork("generator", place))


def _audited(how: DPGAN | Diffusion, settings: Canaries, generator: Generator) -> AuditResult:
    images = torch.rand(_CANARY_ROWS, 1, 8, 4, generator=torch.Generator().manual_seed(0))
    rows = ImageRows.of(
        (images, torch.arange(_CANARY_ROWS) % _CLASSES),
        classes=_CLASSES,
        public_size=_CANARY_ROWS,
        conditional=isinstance(how, DPCGAN | Diffusion),
    )
    terms = FitSettings(
        epsilon=4.0, delta=1e-5, audit=settings, device="cpu", progress=False, generator=generator
    )
    found = _trained(how, rows, terms).audit
    assert isinstance(found, AuditResult)
    return AuditResult(
        subject=f"{type(how).__name__}, a whole fit",
        claim=found.claim,
        bounds=found.bounds,
        checks=found.checks,
        unchecked=found.unchecked,
    )


def _trained(how: DPGAN | Diffusion, rows: ImageRows, terms: FitSettings) -> TrainingRun:
    """Return the run of DP-SGD, which holds the audit; a generator has only its statement."""
    inner: Any = how if isinstance(how, DPGAN) else vars(diffusion)["_Fit"](how, terms, rows)
    if isinstance(how, DPGAN):
        return inner._train(rows, terms, inner._game(rows, torch.device("cpu")))
    inner._begin(*inner._first_images(), previews=inner._start_previews())
    return inner._train()
