# SPDX-License-Identifier: Apache-2.0
"""Synthetic images of MNIST and Fashion-MNIST: what classifiers learn from them."""

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from models.results import Row
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from synthesis.cases import CASES, Case

from sfumato.datasets import load
from sfumato.experiments.r4.generators import DELTA, judges
from sfumato.generative.evaluation import find_collapse, frechet_distance, labeled_rows, train_on_synthetic
from sfumato.generative.evaluation.rows import LabeledRows
from sfumato.generative.fit_settings import FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.image_rows import ImageRows, holdout_images

DRAWN = 60_000
_ALONE: Any = {"classes": None, "public_size": None, "conditional": False}  # images without labels
JUDGED = 5000  # images of which the Frechet distance is measured


def images(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the figures of a part: of each of its cases, with each seed."""
    for case in CASES[name]:
        yield from _measured(replace(case, data="digits", bars={}) if options.quick else case, options)


def _measured(case: Case, options: argparse.Namespace) -> Iterator[Row]:
    """Fit a method with each seed, draw, and score classifiers that learn from the draws."""
    data, found, seconds, made = load(case.data), list[Any](), list[float](), None
    holdout = labeled_rows(*holdout_images(data), classes=data.num_classes)
    for seed in options.seeds:
        torch.manual_seed(seed)
        began = time.perf_counter()
        made, synthetic = _made(case, data, options, seed)
        seconds.append(time.perf_counter() - began)
        rows = labeled_rows(*synthetic, classes=data.num_classes)
        judged = _without_classes if made is not None and made.classes == 1 else _judged
        found.append(judged(rows, holdout, options, seed))
    yield from _scores(case, found)
    yield from _claim(case, data, made)
    yield Row(subject=case.subject, name="fit and draw, s", value=statistics.mean(seconds))


Scores = dict[tuple[str, str], float]


def _judged(rows: LabeledRows, holdout: LabeledRows, options: argparse.Namespace, seed: int) -> Scores:
    """Return the scores of a logistic regression, an MLP and a convolutional network, one setting each."""
    chosen = judges(rows.features.shape[1:], classes=rows.classes, device=options.device, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # passes are limited, for all methods alike
        scores = train_on_synthetic(rows, holdout, classifiers=chosen, device=options.device, seed=seed)
    found: Scores = {}
    for score in scores:
        assert score.auroc is not None
        found[score.classifier, "accuracy"] = score.accuracy
        found[score.classifier, "auroc"] = score.auroc
    signs = find_collapse(rows, holdout=holdout, seed=seed).findings
    return found | _distances(rows, holdout, seed) | {("signs of collapse", "number"): len(signs)}


def _without_classes(
    rows: LabeledRows, holdout: LabeledRows, options: argparse.Namespace, seed: int
) -> Scores:
    """Return what can be said of images without classes: nothing can learn to classify from them."""
    judge = LogisticRegression(max_iter=1000)
    shape = (len(holdout), -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        judge.fit(holdout.features.reshape(shape), holdout.labels)
    classes = judge.predict(rows.features.reshape(len(rows), -1))
    shares = np.bincount(classes, minlength=rows.classes) / len(classes)
    entropy = -sum(share * np.log(share) for share in shares if share > 0)
    return {("classes that are drawn", "exp of the entropy"): float(np.exp(entropy))} | _distances(
        rows, holdout, seed
    )


def _distances(rows: LabeledRows, holdout: LabeledRows, seed: int) -> Scores:
    found = frechet_distance(rows.take(np.arange(min(JUDGED, len(rows)))), holdout, seed=seed)
    assert found.floor is not None
    return {("Frechet distance", "of images"): found.distance, ("Frechet distance", "floor"): found.floor}


def _made(
    case: Case, data: Any, options: argparse.Namespace, seed: int
) -> tuple[ImageGenerator | None, tuple[Any, Any]]:
    if case.method == "real":
        rows = ImageRows.of(data, classes=None, public_size=None, conditional=True)
        return None, (rows.images, rows.labels)
    where = FitSettings(epsilon=1.0, device=options.device).where()
    method = case.made(public_size=data.public_size, gpu=where.type == "cuda")
    public = _public(case, ImageRows.of(data, **_ALONE).shape)
    made = method.fit(data, epsilon=case.epsilon, delta=DELTA, device=where, public=public, progress=False)
    return made, made.sample(2000 if options.quick else DRAWN, seed=seed)


def _public(case: Case, shape: tuple[int, int, int]) -> Any:
    """Return public images of another size, averaged over blocks; with labels if the case has them."""
    if case.public is None:
        return None
    rows = ImageRows.of(load(case.public), classes=None, public_size=None, conditional=True)
    images = rows.images
    block = images.shape[-1] // shape[-1]
    cut = (images.shape[-1] - block * shape[-1]) // 2
    inner = images[..., cut : cut + block * shape[-1], cut : cut + block * shape[-1]]
    small = torch.nn.functional.avg_pool2d(inner, block)
    return (small, rows.labels) if case.public_labels else small


def _claim(case: Case, data: Any, made: ImageGenerator | None) -> Iterator[Row]:
    """Yield what the generators promise, for all seeds alike, and what the last one is warned of."""
    if made is None:
        return
    subject = case.subject
    yield Row(subject=subject, name="epsilon", value=made.guarantee.epsilon, note=str(made.guarantee))
    if case.method == "pate-cgan":
        method = case.made(public_size=data.public_size, gpu=False)  # the plan is that of any network
        planned = method.plan(epsilon=case.epsilon, delta=DELTA)[1].queries
        yield Row(subject=subject, name="queries that are paid for", value=planned)
    yield Row(subject=subject, name="warnings", value=len(made.findings), note=" ".join(made.findings))


def _scores(case: Case, found: list[Scores]) -> Iterator[Row]:
    for of, score in found[0]:
        values = [each[of, score] for each in found]
        yield Row(
            subject=case.subject,
            name=f"{of}, {score}",
            value=statistics.mean(values),
            bar=case.bars.get((of, score)),
            at_least=True,
            note=", ".join(f"{value:.4f}" for value in values),
        )
