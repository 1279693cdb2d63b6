# SPDX-License-Identifier: Apache-2.0
"""The cases of every private estimator and of every method for secret labels.

- An estimator releases everything that a fit stores of the data: coefficients, means, components. A method
  that releases labels releases what there is to learn from: reports, counts or soft labels. SelfSpan and
  SelfConv, which canaries cannot audit, release the weights after a step (`trainers` has the others).
- Epsilon is 4 for estimators: they spend it on several steps, of which one event sees only a part, or on a
  worst case that hardly any data reaches. It is 2 for weights after a step, which are slow to compute, and 1
  for labels.
- Gaussian objective perturbation and TukeyEM run as `fit` runs them, but are priced beforehand: pricing them
  each time would take ten to a hundred times longer than the rest. Cases that take tens of milliseconds run
  less often.

Neighbors  One row more, or one replaced; for labels, one label replaced or both of a user's. Each pair moves
           the values that get noise as far as a few rows can: the other rows contribute nothing, or all the
           same.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn

from attacks.cells import cell_cases
from attacks.releases import ADD, DELTA, Case
from sfumato import estimators as e
from sfumato.audit.mechanisms.exact_discrete import claim_of
from sfumato.estimators.objective_perturbation import GaussianObjectivePerturbation
from sfumato.labels import (
    Alibi,
    ClusterLabels,
    Correction,
    MultiStage,
    NoisyGradients,
    PriorLabels,
    RandomizedLabels,
    SelfConv,
    SelfSpan,
    train,
)
from sfumato.labels.learning import Released
from sfumato.labels.methods.released_labels import ReleasingMethod
from sfumato.mechanisms.random import Generator
from sfumato.training.runtime import Runtime

__all__ = ["estimator_cases", "label_cases"]

_UNIT = (0.0, 1.0)
_LINE = ("coef_", "intercept_")
_PURE: dict[str, Any] = {"epsilon": 4.0}
_GAUSSIAN: dict[str, Any] = {"epsilon": 4.0, "delta": DELTA}
_SHARE = 0.25  # of the trials, where a run takes tens of milliseconds
_CLASSES = 3

Rows = tuple[Any, ...]  # what `fit` is given


# --- estimators -------------------------------------------------------------------------------------------


def estimator_cases() -> tuple[Case, ...]:
    """Return the cases of `sfumato.estimators`.

    Returns:
        The cases.
    """
    return (*_classifying(), *_regressing(), *_preprocessing(), *cell_cases(_PURE["epsilon"]))


def _fitted(
    estimator: e.PrivateEstimator,
    first: Rows,
    second: Rows,
    *,
    stored: tuple[str, ...],
    note: str = "",
    share: float = 1.0,
) -> Case:
    """Return the case of an estimator, fitted to two data sets; `stored` names the results that it stores."""
    name, results = type(estimator).__name__, attrgetter(*stored)

    def run(data: Rows, generator: Generator) -> object:
        fresh: Any = clone(estimator)
        return results(fresh.set_params(random_state=generator).fit(*data))

    return Case(
        subject=f"{name}{note}",
        audits=name,
        run=run,
        first=first,
        second=second,
        claim=e.cost(estimator),
        share=share,
    )


def _classifying() -> tuple[Case, ...]:
    none = np.zeros((4, 1)), np.zeros(4)  # rows of zeros move no coefficient
    one = np.array([[0.0]] * 4 + [[1.0]]), np.array([0.0] * 4 + [1.0])
    line: dict[str, Any] = {"clip_norm": 1.0, "classes": (0, 1), "fit_intercept": False}
    output: dict[str, Any] = {**line, "method": "output", "regularization": 10.0}
    steps: dict[str, Any] = {**line, "method": "dp-sgd", "steps": 2, "public_size": 1}
    search = e.Search(
        e.LogisticRegression(epsilon=1.0, **output),
        candidates=[{"regularization": 10.0}, {"regularization": 20.0}],
        mean_trials=2.0,
        **_PURE,
    )
    data: dict[str, Any] = {"first": none, "second": one, "stored": ("coef_",)}
    found = ("best_params_", "best_score_", "best_estimator_.coef_")
    return (
        _fitted(e.LogisticRegression(**_PURE, **output), **data, note=", output"),
        _fitted(e.LogisticRegression(**_GAUSSIAN, **output), **data, note=", output, Gaussian"),
        _fitted(e.LogisticRegression(**_PURE, **line), **data, note=", objective"),
        _perturbed(none, one),
        _fitted(e.LogisticRegression(**_GAUSSIAN, **steps), **data, note=", DP-SGD", share=_SHARE),
        _fitted(search, none, one, stored=found, share=0.5),
    )


def _perturbed(first: Rows, second: Rows) -> Case:
    """Return the case of Gaussian objective perturbation, priced beforehand."""
    mechanism = GaussianObjectivePerturbation.calibrated(
        **_GAUSSIAN, row_norm=1.0, regularization=1.0, relation=ADD
    )

    def run(data: Rows, generator: Generator) -> object:
        rows, labels = data
        return mechanism.release(rows, 2 * labels - 1, generator=generator)

    return Case(
        subject="LogisticRegression, objective, Gaussian",
        audits="LogisticRegression",
        run=run,
        first=first,
        second=second,
        claim=claim_of(mechanism, delta=DELTA, privacy_unit="row"),
    )


def _regressing() -> tuple[Case, ...]:
    corner, far = (np.zeros(20), np.zeros(20)), (np.array([0.0] * 20 + [1.0]),) * 2
    box: dict[str, Any] = {"feature_bounds": _UNIT, "target_bounds": _UNIT}
    ones = np.ones((40, 1))
    level, more = (ones[:-1], np.zeros(39)), (ones, np.array([0.0] * 39 + [1.0]))
    sums = e.AdaSSP(**_GAUSSIAN, clip_norm=1.0, target_bounds=(-1.0, 1.0), fit_intercept=False)
    return (
        _fitted(e.NoisyStats(**_PURE, **box), corner, far, stored=_LINE),
        _matched(box),
        _fitted(sums, level, more, stored=_LINE),
        _deep(),
    )


def _matched(box: dict[str, Any]) -> Case:
    """Return the case of TheilSen: the line through the last row goes far below all others, or above."""
    x, level = np.array([0.0, 0.1, 0.2, 1.0]), [0.8] * 3
    pairs = e.TheilSen(**_PURE, **box, prediction_bounds=_UNIT, matchings=1, relation="replace-one")
    return _fitted(pairs, (x, np.array([*level, -100.0])), (x, np.array([*level, 100.0])), stored=_LINE)


def _deep() -> Case:
    """Return the case of TukeyEM with a row for each model, of which as many are away as its test allows."""
    models, away = 33, 4  # the fewest that may pass; one more away, and the margin is one less
    ones, targets = np.ones((models, 1)), np.arange(models)
    point = e.TukeyEM(**_GAUSSIAN, num_models=models, fit_intercept=False, relation="replace-one")
    first, second = ((ones, (targets < out).astype(float)) for out in (away, away + 1))
    case = _fitted(point, first, second, stored=_LINE)

    def run(data: Rows, generator: Generator) -> object:
        fresh: Any = clone(point)
        fresh._learn_quietly(*data, generator)
        return fresh.coef_, fresh.intercept_

    return replace(case, run=run)


def _preprocessing() -> tuple[Case, ...]:
    middle, high = (np.full((20, 1), 0.5),), (np.array([[0.5]] * 20 + [[1.0]]),)
    none, one = (np.zeros((20, 1)),), (np.array([[0.0]] * 20 + [[1.0]]),)
    scaled: dict[str, Any] = {"first": middle, "second": high, "stored": ("mean_", "scale_")}
    parts = ("mean_", "explained_variance_", "components_")
    turned: dict[str, Any] = {"first": none, "second": one, "stored": parts}
    axis: dict[str, Any] = {"clip_norm": 1.0, "n_components": 1}
    return (
        _fitted(e.StandardScaler(**_PURE, bounds=_UNIT), **scaled),
        _fitted(e.StandardScaler(**_GAUSSIAN, bounds=_UNIT), **scaled, note=", Gaussian"),
        _fitted(e.PCA(**_PURE, **axis), **turned),
        _fitted(e.PCA(**_GAUSSIAN, **axis), **turned, note=", Gaussian"),
    )


# --- labels -----------------------------------------------------------------------------------------------


def label_cases() -> tuple[Case, ...]:
    """Return the cases of the methods of `sfumato.labels`, except those that `trainers` attacks.

    Returns:
        The cases.
    """
    return (*_reporting(), *_counting(), _stepping(SelfConv), _stepping(SelfSpan))


def _released(
    method: ReleasingMethod, first: list[int], second: list[int], *, delta: float = 0.0, note: str = ""
) -> Case:
    """Return the case of a method that releases labels: of all that there is to learn from."""

    def run(labels: list[int], generator: Generator) -> object:
        return _targets(method.release(labels, teach=_shares(len(labels)), generator=generator))

    name = type(method).__name__
    return Case(
        subject=f"{name}{note}",
        audits=name,
        run=run,
        first=first,
        second=second,
        claim=claim_of(method, delta=delta, privacy_unit="label"),
    )


def _targets(released: Released) -> Tensor:
    """Return the targets; if they follow a model, those for a model without knowledge."""
    targets = released.targets
    if isinstance(targets, Tensor):
        return targets
    return targets.at(torch.arange(len(targets)), torch.zeros(len(targets), _CLASSES))


def _shares(rows: int) -> Callable[[Tensor, Released], Tensor]:
    """Return what stages learn: the share of each class among the reports so far."""

    def teach(seen: Tensor, released: Released) -> Tensor:
        reports = _targets(released).bincount(minlength=_CLASSES)
        return ((reports + 1) / (len(seen) + _CLASSES)).expand(rows, -1)

    return teach


def _reporting() -> tuple[Case, ...]:
    first, second = [0, 0, 1, 2], [1, 0, 1, 2]
    terms: dict[str, Any] = {"epsilon": 1.0, "classes": _CLASSES}
    forward = RandomizedLabels(**terms, correction=Correction.FORWARD)
    users = RandomizedLabels(**terms, contribution_bound=2)
    return (
        _released(RandomizedLabels(**terms), first, second),
        _released(forward, first, second, note=", likelihoods"),
        _released(users, first, [1, 1, 1, 2], note=", a user's"),
        _released(PriorLabels(**terms, prior=torch.tensor([0.5, 0.4, 0.1])), first, second),
        _released(MultiStage(**terms), first, second),
        _released(Alibi(**terms), first, second),
    )


def _counting() -> tuple[Case, ...]:
    first, second = [0] * 20, [1] + [0] * 19
    terms: dict[str, Any] = {"epsilon": 1.0, "classes": _CLASSES, "clusters": torch.arange(20) // 10}
    pure, users = ClusterLabels(**terms), ClusterLabels(**terms, contribution_bound=2)
    gaussian = ClusterLabels(**terms, delta=DELTA)
    counted = _released(pure, first, second)

    def run(labels: list[int], generator: Generator) -> object:
        return pure.counts(labels, generator=generator).counts

    return (
        replace(counted, run=run, subject="ClusterLabels, counts"),
        counted,
        _released(gaussian, first, second, delta=DELTA, note=", Gaussian"),
        _released(users, first, [1, 1] + [0] * 18, note=", a user's"),
    )


def _stepping(kind: type[NoisyGradients]) -> Case:
    """Return the case of one step with noisy gradients: orthogonal rows, and the weights after the step."""
    rows = 4
    method = kind(
        epsilon=2.0,
        delta=DELTA,
        classes=2,
        public_size=rows,
        expected_batch_size=rows,
        steps=1,
        ema_decay=None,
    )

    def run(labels: list[int], generator: Generator) -> object:
        model = nn.Linear(rows, 2, bias=False)
        nn.init.zeros_(model.weight)
        train(
            model,
            100 * torch.eye(rows),  # long: gradients are clipped
            torch.tensor(labels),
            method=method,
            progress=False,
            generator=generator,
            runtime=Runtime(check=False),  # this model is as simple as can be
        )
        return model.weight

    return Case(
        subject=kind.__name__,
        audits=kind.__name__,
        run=run,
        first=[0, 0, 1, 1],
        second=[1, 0, 1, 1],
        claim=claim_of(method, delta=DELTA, privacy_unit="label"),
        share=_SHARE,
    )
