# SPDX-License-Identifier: Apache-2.0
"""Synthetic images of MNIST and Fashion-MNIST: what classifiers learn from them."""

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from models.results import Row
from sklearn.exceptions import ConvergenceWarning

from sfumato.datasets import load
from sfumato.experiments.r4.generators import DELTA, SETTINGS, Setting, judges
from sfumato.generative.evaluation import find_collapse, labeled_rows, train_on_synthetic
from sfumato.generative.fit_settings import FitSettings
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.image_rows import ImageRows, holdout_images

DRAWN = 60_000


@dataclass(frozen=True, kw_only=True)
class Case(Setting):
    """One method on one data set, with the bars of its scores."""

    bars: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])  # of scores


def _of_r4(name: str, bars: dict[tuple[str, str], float] | None = None) -> Case:
    """Return a case with the settings of the experiments of report R4."""
    return Case(**vars(SETTINGS[name]), bars=bars or {})


CASES = {
    "dp-cgan": _of_r4("dp-cgan", {("logistic regression", "auroc"): 0.90, ("MLP", "auroc"): 0.93}),
    "mnist-10": Case(data="mnist", method="dp-cgan", epsilon=10.0, bars={("CNN", "accuracy"): 0.95}),
    "mnist-1": Case(data="mnist", method="diffusion", epsilon=1.0, bars={("CNN", "accuracy"): 0.90}),
    "fashion-10": Case(
        data="fashion-mnist", method="dp-cgan", epsilon=10.0, bars={("CNN", "accuracy"): 0.80}
    ),
    "mixtures": Case(data="mnist", method="mixtures", epsilon=10.0),
    "kernel-mean": Case(data="mnist", method="kernel-mean", epsilon=10.0),
    "pate-10": _of_r4("pate-10"),
    "pate-best": _of_r4("pate-best"),
    "pate-r4": _of_r4("pate-r4"),
    "real": Case(data="mnist", method="real", epsilon=0.0),
}


def images(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Fit a method with each seed, draw, and score classifiers that learn from the draws."""
    case = CASES[name]
    if options.quick:
        case = replace(case, data="digits", bars={})
    data, found, seconds, made = load(case.data), list[Any](), list[float](), None
    for seed in options.seeds:
        torch.manual_seed(seed)
        began = time.perf_counter()
        made, synthetic = _made(case, data, options, seed)
        seconds.append(time.perf_counter() - began)
        found.append(_judged(synthetic, holdout_images(data), data.num_classes, options, seed))
    yield from _scores(case, found)
    yield from _claim(case, made)
    yield Row(subject=_subject(case), name="fit and draw, s", value=statistics.mean(seconds))


def _judged(synthetic: Any, holdout: Any, classes: int, options: argparse.Namespace, seed: int) -> Any:
    """Return the scores of a logistic regression, an MLP and a convolutional network, one setting each."""
    rows, public = (labeled_rows(*pair, classes=classes) for pair in (synthetic, holdout))
    shape = tuple(synthetic[0].shape[1:])
    chosen = judges(shape, classes=classes, device=options.device, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # passes are limited, for all methods alike
        scores = train_on_synthetic(rows, public, classifiers=chosen, device=options.device, seed=seed)
    return scores, find_collapse(rows, holdout=public, seed=seed)


def _made(
    case: Case, data: Any, options: argparse.Namespace, seed: int
) -> tuple[ImageGenerator | None, tuple[Any, Any]]:
    if case.method == "real":
        rows = ImageRows.of(data, classes=None, public_size=None, conditional=True)
        return None, (rows.images, rows.labels)
    where = FitSettings(epsilon=1.0, device=options.device).where()
    method = case.made(public_size=data.public_size, gpu=where.type == "cuda")
    made = method.fit(data, epsilon=case.epsilon, delta=DELTA, device=where, progress=False)
    return made, made.sample(2000 if options.quick else DRAWN, seed=seed)


def _subject(case: Case) -> str:
    promised = "without privacy" if case.method == "real" else f"at epsilon {case.epsilon:g}"
    settings = "".join(f", {name} {value}" for name, value in case.settings.items())
    return f"{case.data}, {case.method}{settings} {promised}"


def _claim(case: Case, made: ImageGenerator | None) -> Iterator[Row]:
    """Yield what the generators promise, for all seeds alike, and what the last one is warned of."""
    if made is not None:
        subject = _subject(case)
        yield Row(subject=subject, name="epsilon", value=made.guarantee.epsilon, note=str(made.guarantee))
        warned = len(made.findings)
        yield Row(subject=subject, name="warnings", value=warned, note=" ".join(made.findings))


def _scores(case: Case, found: list[Any]) -> Iterator[Row]:
    for place, first in enumerate(found[0][0]):
        for score in ("accuracy", "auroc"):
            values = [float(getattr(scores[place], score)) for scores, _ in found]
            yield Row(
                subject=_subject(case),
                name=f"{first.classifier}, {score}",
                value=statistics.mean(values),
                bar=case.bars.get((first.classifier, score)),
                at_least=True,
                note=", ".join(f"{value:.4f}" for value in values),
            )
    signs = max(len(collapse.findings) for _, collapse in found)
    yield Row(subject=_subject(case), name="signs of collapse", value=signs)
