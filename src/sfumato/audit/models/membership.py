# SPDX-License-Identifier: Apache-2.0
"""Membership inference: scores of rows, higher if the row was more likely in the training data.

Scores are computed from logit-scaled confidences, log p / (1 - p) of a row's own label: of the attacked
model [rows] or [rows, queries], and of shadow models, trained on random halves of the rows, [models, rows]
or [models, rows, queries], with the mask of who was in each [models, rows]. The models may be trained in any
way; `audit.models.shadow_models` trains them and computes confidences.

- `loss_from_confidences` needs no shadow models, and mostly finds which rows are easy.
- `Lira` is a likelihood-ratio test for each row, with normal distributions fitted to shadow models (Carlini
  et al. 2022, arXiv:2112.03570): online with those of in and of out, offline with out alone.
- `Rmia` ranks a row's gain in probability over the average model among that of rows of the population
  (Zarifzadeh et al. 2024, arXiv:2312.03262).

Several views of a row (mirrored, shifted) are averaged: log-ratios in LiRA, ranks in RMIA. Masks and
confidences of shadow models may be used freely, but the attacked model must not be one of them: if each row
is in exactly half of all models, the masks of the others reveal its own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["Lira", "Rmia", "Variance", "loss_from_confidences"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Variance(StrEnum):
    """How LiRA estimates the spread of a row's confidences over models."""

    FIXED = "fixed"  # one number for all rows: right with few shadow models
    PER_EXAMPLE = "per-example"  # each row's own: pays off from about 64 models (the paper's Figure 9)


def loss_from_confidences(target: npt.ArrayLike) -> Array:
    """Return the scores of the loss-threshold attack: minus the cross-entropy, averaged over queries.

    Args:
        target: Confidences of the attacked model, [rows] or [rows, queries].

    Returns:
        A score for each row.

    Raises:
        InvalidParameterError: If confidences are not finite, or have another shape.

    >>> loss_from_confidences([0.0, 100.0]).round(3).tolist()
    [-0.693, -0.0]
    """
    return _log_sigmoid(_target(target)).mean(1)


# --- LiRA ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Lira:
    """The likelihood-ratio attack.

    Args:
        online: Whether models that were trained on a row are used. False uses only models without it.
        variance: How the spread of confidences is estimated.

    Raises:
        InvalidParameterError: If the variance is unknown.

    >>> members = np.array([[True, False], [False, True], [True, False], [False, True]])
    >>> shadows = np.where(members, 3.0, 1.0) + [[0.1], [0.2], [-0.1], [-0.2]]
    >>> scores = Lira().scores([3.0, 1.0], shadows=shadows, members=members)
    >>> bool(scores[0] > 0 > scores[1])
    True
    """

    online: bool = True
    variance: Variance = Variance.FIXED

    def __post_init__(self) -> None:
        names = [kind.value for kind in Variance]
        if self.variance not in names:
            raise InvalidParameterError(
                f"unknown variance {self.variance!r}. Use one of: {', '.join(names)}."
            )

    def scores(self, target: npt.ArrayLike, *, shadows: npt.ArrayLike, members: npt.ArrayLike) -> Array:
        """Return the score of each row.

        Args:
            target: Confidences of the attacked model, [rows] or [rows, queries].
            shadows: Confidences of the shadow models, [models, rows] or [models, rows, queries].
            members: Which rows each shadow model was trained on, [models, rows].

        Returns:
            The log-likelihood ratio of each row; offline, how far its confidence is above that of models
            without it.

        Raises:
            InvalidParameterError: If shapes do not match, values are not finite, or a row has too few
                models.
        """
        seen, others, mask = _inputs(target, shadows, members)
        out = self._law(others, ~mask, "out of")
        if not self.online:
            return ((seen - out.mean) / np.sqrt(out.variance)).mean(1)
        return (self._law(others, mask, "in").log_density(seen) - out.log_density(seen)).mean(1)

    def _law(self, shadows: Array, mask: Mask, side: str) -> "_Normal":
        needed = 2 if self.variance == Variance.PER_EXAMPLE else 1
        _require_models(mask, needed, side)
        return _normal(shadows, mask, self.variance)


@dataclass(frozen=True, slots=True)
class _Normal:
    mean: Array  # [rows, queries]
    variance: Array  # broadcasts to the same

    def log_density(self, x: Array) -> Array:
        return -0.5 * ((x - self.mean) ** 2 / self.variance + np.log(self.variance))


def _normal(shadows: Array, mask: Mask, kind: Variance) -> _Normal:
    """Fit a normal law to each row and query, over the models where the mask holds."""
    weights = mask[:, :, None].astype(np.float64)  # [models, rows, 1]
    counts = weights.sum(0)  # [rows, 1]
    mean = (weights * shadows).sum(0) / counts
    squares = (weights * (shadows - mean) ** 2).sum(0)  # [rows, queries]
    pooled = squares.sum(0) / max(float((counts - 1).sum()), 1.0)  # [queries]: about each row's own mean
    if not (pooled > 0).all():
        raise InvalidParameterError(
            "no row has different confidences in shadow models with the same membership, so the spread is "
            "unknown. Use more shadow models, at least 4, each trained from other first weights."
        )
    if kind == Variance.FIXED:
        return _Normal(mean, pooled)
    own = squares / (counts - 1)
    return _Normal(mean, np.where(own > 0, own, pooled))


# --- RMIA ------------------------------------------------------------------------------------------------

_GAIN_IN: Final = 0.3  # the paper's `a` for CIFAR-10


@dataclass(frozen=True, kw_only=True, slots=True)
class Rmia:
    """The robust attack: the share of the population that gains less probability from training than the row.

    Args:
        online: Whether models that were trained on a row are used.
        gamma: The factor by which a row must gain more than a row of the population, 1 or more.
        offline_a: Offline, the probability in models with the row is estimated as `offline_a * p + 1 -
            offline_a`.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> shadows, members = np.zeros((2, 2)), np.array([[True, False], [False, True]])
    >>> population = np.zeros(8), np.zeros((2, 8))
    >>> scores = Rmia().scores([4.0, -1.0], shadows=shadows, members=members, population=population)
    >>> scores.round(2).tolist()
    [0.96, 0.04]
    """

    online: bool = True
    gamma: float = 1.0
    offline_a: float = _GAIN_IN

    def __post_init__(self) -> None:
        _check.in_range(1, 1e6, gamma=self.gamma)
        _check.in_range(0, 1, offline_a=self.offline_a)

    def scores(
        self,
        target: npt.ArrayLike,
        *,
        shadows: npt.ArrayLike,
        members: npt.ArrayLike,
        population: tuple[npt.ArrayLike, npt.ArrayLike],
    ) -> Array:
        """Return the score of each row.

        Rows that exceed the same part of the population are ordered by their gain. Otherwise all rows that
        exceed the whole of it would be tied, and low rates of false positives could not be measured.

        Args:
            target: Confidences of the attacked model, [rows] or [rows, queries].
            shadows: Confidences of the shadow models, [models, rows] or [models, rows, queries].
            members: Which rows each shadow model was trained on, [models, rows].
            population: Confidences of the attacked model and of the shadow models on rows that are in no
                model.

        Returns:
            A score in (0, 1) for each row.

        Raises:
            InvalidParameterError: If shapes do not match, values are not finite, or a row has too few
                models.
        """
        seen, others, mask = _inputs(target, shadows, members)
        crowd, crowd_others, nobody = _population(population, models=len(mask), queries=seen.shape[1])
        _require_models(~mask, 1, "out of")
        if self.online:
            _require_models(mask, 1, "in")
        gains = self._log_gain(seen, others, mask)  # [rows, queries]
        beaten = self._log_gain(crowd, crowd_others, nobody) + np.log(self.gamma)
        return np.stack([_ranked(gains[:, q], beaten[:, q]) for q in range(gains.shape[1])]).mean(0)

    def _log_gain(self, seen: Array, others: Array, mask: Mask) -> Array:
        """Return log p(row | target) - log p(row), the paper's likelihood ratio of a row."""
        return _log_sigmoid(seen) - np.log(self._average(special.expit(others), mask))

    def _average(self, probabilities: Array, mask: Mask) -> Array:
        out = _mean_where(probabilities, ~mask)
        if not self.online:
            inside = self.offline_a * out + (1 - self.offline_a)
        else:
            inside = np.where(mask.max(0)[:, None], _mean_where(probabilities, mask), out)
        return np.maximum((out + inside) / 2, np.finfo(np.float64).tiny)  # p of a row no model believes


def _ranked(gains: Array, beaten: Array) -> Array:
    below = np.searchsorted(np.sort(beaten), gains, side="left")
    return (below + special.expit(gains)) / (len(beaten) + 1)


def _mean_where(values: Array, mask: Mask) -> Array:
    weights = mask[:, :, None].astype(np.float64)
    return (weights * values).sum(0) / np.maximum(weights.sum(0), 1)


def _log_sigmoid(x: Array) -> Array:
    return -np.logaddexp(0.0, -x)


# --- input -----------------------------------------------------------------------------------------------


def _target(confidences: npt.ArrayLike, name: str = "target") -> Array:
    found = np.asarray(confidences, dtype=np.float64)
    if found.ndim not in (1, 2) or not found.size:
        raise InvalidParameterError(
            f"{name} must be confidences [rows] or [rows, queries], with at least one of each, but its shape "
            f"is {found.shape}."
        )
    _refuse_nan(found, name)
    return found if found.ndim == 2 else found[:, None]


def _inputs(
    target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike
) -> tuple[Array, Array, Mask]:
    """Return target [rows, queries], shadows [models, rows, queries] and members [models, rows]."""
    seen = _target(target)
    others = _shadows(shadows, seen, "shadows")
    mask = np.asarray(members)
    if mask.dtype != np.bool_ or mask.shape != others.shape[:2]:
        raise InvalidParameterError(
            f"members must be True or False for each shadow model and row, {list(others.shape[:2])}, but "
            f"{mask.dtype} of {list(mask.shape)} was given."
        )
    return seen, others, mask


def _shadows(shadows: npt.ArrayLike, seen: Array, name: str) -> Array:
    found = np.asarray(shadows, dtype=np.float64)
    found = found if found.ndim == 3 else found[..., None]
    if found.shape[1:] != seen.shape:
        raise InvalidParameterError(
            f"{name} must be [models, rows] or [models, rows, queries] with the {seen.shape[0]} rows and "
            f"{seen.shape[1]} queries of the attacked model, but {list(found.shape)} was given: both "
            "must have the same rows and queries."
        )
    _refuse_nan(found, name)
    return found


def _population(
    population: tuple[npt.ArrayLike, npt.ArrayLike], *, models: int, queries: int
) -> tuple[Array, Array, Mask]:
    crowd = _target(population[0], "population")
    others = _shadows(population[1], crowd, "the population's shadows")
    if len(others) != models or crowd.shape[1] != queries:
        raise InvalidParameterError(
            f"the population needs the same {models} shadow models and {queries} queries as the rows, but "
            f"has {len(others)} and {crowd.shape[1]}."
        )
    return crowd, others, np.zeros(others.shape[:2], dtype=np.bool_)


def _require_models(mask: Mask, needed: int, side: str) -> None:
    least = int(mask.sum(0).min())
    if least < needed:
        raise InvalidParameterError(
            f"every row needs at least {needed} shadow models that it was {side}, but a row has {least}. "
            f"Train {2 * needed} or more, with each row in half of them (audit.models.shadow_models.halves)."
        )


def _refuse_nan(values: Array, name: str) -> None:
    if not np.isfinite(values).all():
        raise InvalidParameterError(
            f"{name} holds confidences that are not finite: a model diverged, or its confidence was rounded "
            "to 0 or 1. Compute log p - log(1 - p) from logits (audit.confidences)."
        )
