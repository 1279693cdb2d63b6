# SPDX-License-Identifier: Apache-2.0
"""How well do scores tell members from others? The ROC curve, read where it matters: at few false alarms.

Promise    A score is higher where membership is likelier. `tpr_at(fpr)` puts the threshold by the scores of
           those who were out, so that at most a share `fpr` of them is above it; a tie is not above.
Intervals  Clopper and Pearson's for rates, Hoeffding's for the area: no normal approximation, any number of
           scores. They hold where the scores of different rows are independent given the threshold, as for
           rows drawn at random and one model; they say nothing of another model.
By chance  `p_value` is exact: where nothing leaks, in- and out-scores are exchangeable. That t in-scores lie
           above the (k+1)-th largest out-score means that at most k of the t + k largest scores are out, and
           their number is hypergeometric. Ties only raise it.
Source     Low false-positive rates instead of averages: Carlini et al. 2022, arXiv:2112.03570, section III.
Not here   A bound on epsilon: rows of one model are not independent runs. `audit.one_run` has such bounds.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _check
from sfumato.audit.bounds import area_from_pairs, clopper_pearson
from sfumato.errors import InvalidParameterError

__all__ = ["Interval", "OperatingPoint", "Roc", "checked_scores"]

Scores = npt.NDArray[np.float64]

_ROUNDING: Final = 1e-9  # of fpr * (number of scores): 0.29 * 100 is meant to be 29
_SMALLEST_DRAWN: Final = 1e-5  # a log axis has no place for 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate, and the ends between which the truth lies with this confidence."""

    value: float
    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g}, confidence {self.confidence:.4g})"


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """What one threshold does: who is called a member, and how many rightly."""

    threshold: float
    true_positives: int
    positives: int
    false_positives: int
    negatives: int
    p_value: float  # chance of so many true positives where nothing leaks

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
        return _rate(self.true_positives, self.positives, confidence)

    def fpr_interval(self, *, confidence: float = 0.95) -> Interval:
        """Return the share of others above the threshold, with both ends."""
        return _rate(self.false_positives, self.negatives, confidence)


class Roc:
    """The ROC curve of scores of rows that were in the training data and of rows that were not.

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
        """The chance that a member's score exceeds another's, ties counted half; 0.5 where nothing leaks."""
        below = np.searchsorted(self.out_scores, self.in_scores, side="left")
        not_above = np.searchsorted(self.out_scores, self.in_scores, side="right")
        wins = below.sum(dtype=np.float64) + 0.5 * (not_above - below).sum(dtype=np.float64)
        return float(wins / (len(self.in_scores) * len(self.out_scores)))

    def area_interval(self, *, confidence: float = 0.95) -> Interval:
        """Return the area with both ends, each with half of the error ("Pairs" of `audit.bounds`)."""
        _check.probability(confidence=confidence)
        area, pairs = self.area, min(len(self.in_scores), len(self.out_scores))
        ends = [area_from_pairs(share, pairs, confidence=(1 + confidence) / 2) for share in (area, 1 - area)]
        return Interval(value=area, low=ends[0], high=1 - ends[1], confidence=confidence)

    def points(self) -> tuple[Scores, Scores]:
        """Return false- and true-positive rates at every threshold, both rising from 0 to 1."""
        thresholds = np.unique(np.concatenate([self.in_scores, self.out_scores]))[::-1]
        fpr, tpr = (_share_at_least(scores, thresholds) for scores in (self.out_scores, self.in_scores))
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    def log_points(self, *, most: int = 200) -> list[tuple[float, float]]:
        """Return at most `most` points (log10 of FPR, log10 of TPR) of the curve, evenly spaced in FPR.

        The curve begins where a single out-score is above the threshold: below, a log axis has no place.
        """
        _check.count(most=most)
        fpr, tpr = self.points()
        wanted = np.logspace(-math.log10(len(self.out_scores)), 0, most)
        at = np.unique(np.searchsorted(fpr, wanted * (1 + _ROUNDING), side="right") - 1)
        return [(math.log10(fpr[i]), math.log10(tpr[i])) for i in at if fpr[i] > 0 and tpr[i] > 0]

    # --- one threshold -----------------------------------------------------------------------------------

    def tpr_at(self, fpr: float) -> OperatingPoint:
        """Return what the lowest threshold does that calls at most a share `fpr` of others members."""
        _check.probability(fpr=fpr)
        negatives = len(self.out_scores)
        allowed = math.floor(fpr * negatives + _ROUNDING)
        if allowed < 1:
            raise InvalidParameterError(
                f"a false-positive rate of {fpr:g} cannot be seen in {negatives} out_scores: give at least "
                f"{math.ceil(1 / fpr - _ROUNDING)}, or ask for a higher rate."
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
        """Return the area and the true-positive rates as a sentence; rates that cannot be seen are left out.

        >>> Roc([2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.5, 1.5], name="loss").describe(fprs=(0.25,))
        'loss: area 0.938 (0.37 to 0.998, confidence 0.95); TPR 1 (0.398 to 1, confidence 0.95) at FPR 0.25'
        """
        parts = [f"area {self.area_interval(confidence=confidence)}"]
        for fpr in fprs:
            if fpr * len(self.out_scores) >= 1 - _ROUNDING:
                parts.append(f"TPR {self.tpr_at(fpr).tpr_interval(confidence=confidence)} at FPR {fpr:g}")
        return f"{self.name}: {'; '.join(parts)}"

    def plot(self, axes: Any = None) -> Any:
        """Draw the curve on log-log axes, with the line of chance; return the axes. Needs matplotlib."""
        axes = _new_axes() if axes is None else axes
        fpr, tpr = self.points()
        least = max(_SMALLEST_DRAWN, 0.5 / len(self.out_scores))
        axes.plot(fpr, tpr, drawstyle="steps-post", label=f"{self.name}, area {self.area:.3f}")
        axes.plot([least, 1], [least, 1], linestyle="--", color="gray")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
        axes.legend(loc="lower right")
        return axes


def checked_scores(name: str, scores: npt.ArrayLike) -> Scores:
    """Return scores as one axis of float64; refuse none, NaN, and more axes than one."""
    found = np.asarray(scores, dtype=np.float64)
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


def _rate(hits: int, trials: int, confidence: float) -> Interval:
    _check.probability(confidence=confidence)
    low, high = clopper_pearson(hits, trials, confidence=(1 + confidence) / 2)  # each end: half of the error
    return Interval(value=hits / trials, low=low, high=high, confidence=confidence)


def _share_at_least(ascending: Scores, thresholds: Scores) -> Scores:
    return 1 - np.searchsorted(ascending, thresholds, side="left") / len(ascending)


def _new_axes() -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found]  # only for pictures
    except ImportError:
        raise InvalidParameterError(
            "a picture needs matplotlib, which is not installed: `pip install matplotlib`. `points()` gives "
            "the curve without it."
        ) from None
    return Figure(figsize=(5, 5), layout="constrained").subplots()
