# SPDX-License-Identifier: Apache-2.0
"""The ROC curve of membership scores, with intervals, at low false-positive rates.

A score is higher if membership is likelier. `tpr_at(fpr)` puts the threshold by the scores of those who were
out, so that at most a share `fpr` of them is above it; a tie is not above. Intervals are those of Clopper
and Pearson for rates and of Hoeffding for the area: no normal approximation, any number of scores. They hold
if the scores of different rows are independent given the threshold, as for rows drawn at random and one
model; they do not apply to another model. `p_value` is exact: if nothing leaks, in- and out-scores are
exchangeable. That t in-scores lie above the (k+1)-th largest out-score means that at most k of the t + k
largest scores are out, and their number is hypergeometric. Ties only raise it.

Source     Low false-positive rates instead of averages: Carlini et al. 2022, arXiv:2112.03570, section III.
Not here   A bound on epsilon: rows of one model are not independent runs. `one_run` has such bounds.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _check
from sfumato.audit.evidence.bounds import area_from_pairs
from sfumato.audit.evidence.proportions import Interval, share
from sfumato.errors import InvalidParameterError

__all__ = ["Interval", "OperatingPoint", "Roc", "checked_scores"]

Scores = npt.NDArray[np.float64]

_ROUNDING: Final = 1e-9  # of fpr * (number of scores): 0.29 * 100 is meant to be 29


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """The effect of one threshold.

    Attributes:
        threshold: Rows with a score above it are called members.
        true_positives: The number of members called so.
        positives: The number of members.
        false_positives: The number of others called members.
        negatives: The number of others.
        p_value: The probability of so many true positives if nothing leaks.
    """

    threshold: float
    true_positives: int
    positives: int
    false_positives: int
    negatives: int
    p_value: float

    @property
    def tpr(self) -> float:
        """The share of members called so."""
        return self.true_positives / self.positives

    @property
    def fpr(self) -> float:
        """The share of others called members."""
        return self.false_positives / self.negatives

    def tpr_interval(self, *, confidence: float = 0.95) -> Interval:
        """Return the share of members above the threshold, with both ends."""
        return share(self.true_positives, self.positives, confidence=confidence)

    def fpr_interval(self, *, confidence: float = 0.95) -> Interval:
        """Return the share of others above the threshold, with both ends."""
        return share(self.false_positives, self.negatives, confidence=confidence)


class Roc:
    """The ROC curve of scores of rows that were in the training data and of rows that were not.

    Args:
        in_scores: Scores of rows that were in, one number for each row.
        out_scores: Scores of rows that were not.
        name: The name of the attack.

    Raises:
        InvalidParameterError: If a group is empty, or a score is not a number.

    >>> roc = Roc([2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.5, 1.5])
    >>> roc.area, roc.tpr_at(0.25).tpr
    (0.9375, 1.0)
    """

    def __init__(self, in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, *, name: str = "attack") -> None:
        _check.text(name=name)
        self.name = name
        self.in_scores = np.sort(checked_scores("in_scores", in_scores))
        self.out_scores = np.sort(checked_scores("out_scores", out_scores))

    def __repr__(self) -> str:
        return f"Roc({self.name!r}, {len(self.in_scores)} in, {len(self.out_scores)} out)"

    # --- the whole curve ---------------------------------------------------------------------------------

    @property
    def area(self) -> float:
        """The probability that a member has a higher score than another, ties counted half; 0.5 if nothing
        leaks.
        """
        below = np.searchsorted(self.out_scores, self.in_scores, side="left")
        not_above = np.searchsorted(self.out_scores, self.in_scores, side="right")
        wins = below.sum(dtype=np.float64) + 0.5 * (not_above - below).sum(dtype=np.float64)
        return float(wins / (len(self.in_scores) * len(self.out_scores)))

    def area_interval(self, *, confidence: float = 0.95) -> Interval:
        """Return the area with both ends, each with half of the error ("Pairs" in `bounds`).

        Args:
            confidence: The confidence of the interval.

        Returns:
            The area and its interval.

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        _check.probability(confidence=confidence)
        area, pairs = self.area, min(len(self.in_scores), len(self.out_scores))
        ends = [area_from_pairs(part, pairs, confidence=(1 + confidence) / 2) for part in (area, 1 - area)]
        return Interval(value=area, low=ends[0], high=1 - ends[1], confidence=confidence)

    def points(self) -> tuple[Scores, Scores]:
        """Return the curve.

        Returns:
            False- and true-positive rates at every threshold, both rising from 0 to 1.
        """
        thresholds = np.unique(np.concatenate([self.in_scores, self.out_scores]))[::-1]
        fpr, tpr = (_share_at_least(scores, thresholds) for scores in (self.out_scores, self.in_scores))
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    def log_points(self, *, most: int = 200) -> list[tuple[float, float]]:
        """Return points of the curve for axes with logarithmic scales, evenly spaced in FPR.

        The curve begins where a single out-score is above the threshold.

        Args:
            most: The largest number of points.

        Returns:
            Points (log10 of FPR, log10 of TPR).

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        _check.count(most=most)
        fpr, tpr = self.points()
        wanted = np.logspace(-math.log10(len(self.out_scores)), 0, most)
        at = np.unique(np.searchsorted(fpr, wanted * (1 + _ROUNDING), side="right") - 1)
        return [(math.log10(fpr[i]), math.log10(tpr[i])) for i in at if fpr[i] > 0 and tpr[i] > 0]

    # --- one threshold -----------------------------------------------------------------------------------

    def tpr_at(self, fpr: float) -> OperatingPoint:
        """Return the effect of the lowest threshold with at most this rate of false positives.

        Args:
            fpr: The largest share of others that may be called members.

        Returns:
            The counts at that threshold.

        Raises:
            InvalidParameterError: If there are too few out-scores for this rate.
        """
        _check.probability(fpr=fpr)
        negatives = len(self.out_scores)
        allowed = math.floor(fpr * negatives + _ROUNDING)
        if allowed < 1:
            raise InvalidParameterError(
                f"a false-positive rate of {fpr:g} cannot be measured with {negatives} out_scores. Give at "
                f"least {math.ceil(1 / fpr - _ROUNDING)}, or use a higher rate."
            )
        return self._at(float(self.out_scores[negatives - 1 - allowed]), allowed)

    def _at(self, threshold: float, allowed: int) -> OperatingPoint:
        above = [int((scores > threshold).sum()) for scores in (self.in_scores, self.out_scores)]
        positives, negatives = len(self.in_scores), len(self.out_scores)
        return OperatingPoint(
            threshold=threshold,
            true_positives=above[0],
            positives=positives,
            false_positives=above[1],
            negatives=negatives,
            p_value=float(stats.hypergeom.cdf(allowed, positives + negatives, negatives, above[0] + allowed)),
        )

    # --- for people --------------------------------------------------------------------------------------

    def describe(self, *, fprs: tuple[float, ...] = (0.001, 0.01), confidence: float = 0.95) -> str:
        """Describe the area and true-positive rates in a sentence.

        Args:
            fprs: False-positive rates. Those with too few scores are left out.
            confidence: The confidence of each interval.

        Returns:
            The sentence.

        >>> Roc([2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.5, 1.5], name="loss").describe(fprs=(0.25,))
        'loss: area 0.938 (0.37 to 0.998, confidence 0.95); TPR 1 (0.398 to 1, confidence 0.95) at FPR 0.25'
        """
        parts = [f"area {self.area_interval(confidence=confidence)}"]
        for fpr in fprs:
            if fpr * len(self.out_scores) >= 1 - _ROUNDING:
                parts.append(f"TPR {self.tpr_at(fpr).tpr_interval(confidence=confidence)} at FPR {fpr:g}")
        return f"{self.name}: {'; '.join(parts)}"


def checked_scores(name: str, scores: npt.ArrayLike) -> Scores:
    """Return scores as one axis of float64; raise if they are empty, NaN, not numbers, or have more axes.

    >>> checked_scores("in_scores", [1, 2.5])
    array([1. , 2.5])
    """
    given = np.asarray(scores)
    if given.size and given.dtype.kind not in "buif":
        raise InvalidParameterError(f"{name} must be real numbers, one score a row.")
    found = given.astype(np.float64)
    if found.ndim != 1:
        raise InvalidParameterError(
            f"{name} must have one axis, one score a row, but it has {found.ndim}. In- and out-scores must "
            "be made alike: one number for each row of either group."
        )
    if not found.size:
        raise InvalidParameterError(f"{name} is empty: give at least one score of each group.")
    if np.isnan(found).any():
        raise InvalidParameterError(
            f"{name} holds NaN: a row without a score can be called neither member nor not. Find out why the "
            "attack gave none; to leave such rows out, do so in both groups by a rule that knows neither."
        )
    return found


def _share_at_least(ascending: Scores, thresholds: Scores) -> Scores:
    return 1 - np.searchsorted(ascending, thresholds, side="left") / len(ascending)
