# SPDX-License-Identifier: Apache-2.0
"""Robust simple linear regression: DP-TheilSenMatch, and kMatch.

With N(t) of m predictions below t, the score of t is minus the distance of m / 2 to the interval [N(t - w),
N(t + w)], w the widening (in whole ranks: to its point nearest to floor(m / 2)). One prediction more or less
moves it by 1/2 at most, and another in its place by 1.

Bounds only place the two predictions and limit the medians. Rows outside are used as they are. A fit takes
O(k n log n) time and O(k n) memory for k matchings of n rows.

Guarantee  Pure epsilon. Rows are matched in pairs at random, `matchings` times over; the line through each
           pair predicts the target at a quarter and at three quarters of the feature's bounds; and the two
           medians of these predictions come from the exponential mechanism over intervals, each with half of
           epsilon. One row is in at most `matchings` pairs, which is the sensitivity of the median's score.
Neighbors  Under add-remove: the matchings are uniform among all matchings of the rows. A matching with one
           more row can be drawn together with one without it so that all but one pair are the same: if the
           new row is matched to w, and u is left over, match w to u. The tests count that this is uniform
           again. So a neighbor changes one pair of each matching, or one is gone, whatever the matchings: the
           price of a mixture over them is at most that of the most expensive, as divergences are jointly
           convex.
Edge cases A pair with a NaN or an infinity in it, or with one feature value only, predicts nothing.
Source     Alabi, McMillan, Sarathy, Smith, Vadhan 2020, arXiv:2007.05157, Algorithms 2 and 3 (TheilSenkMatch)
           and the widened median of its Section 4. The matchings are independent here, where the paper's have
           no pair in common: that would tie them to the number of rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.estimators.linear import OneFeatureRegressor, public_bounds
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator, words
from sfumato.mechanisms.selection import IntervalExponential
from sfumato.statistics.columns.columns import Bounds

__all__ = ["TheilSen"]

_PLACES = (0.25, 0.75)  # where the line is pinned down, as parts of the feature's bounds


class TheilSen(OneFeatureRegressor):
    """Simple linear regression by private medians over lines through random pairs.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        feature_bounds: Lower and upper bound of the feature, public.
        target_bounds: Lower and upper bound of the target, public.
        matchings: In how many pairs each row is; 1 is TheilSenMatch. More make the medians steadier at no
            cost in noise.
        prediction_bounds: Where the two medians are searched. None: the target's bounds, half as wide again
            on either side, as a line may leave them.
        widening: Public, in widths of `target_bounds`: predictions this near count as equal. Without it,
            predictions that all agree would leave their median no room.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(0, 10, 2000)
    >>> line = TheilSen(epsilon=1.0, feature_bounds=(0, 10), target_bounds=(0, 30)).fit(x, 2 * x + 3)
    >>> print(line.guarantee_)
    (1, 0)-differential privacy for one row, add-remove neighbors
    >>> bool(1.9 < line.coef_[0] < 2.1)
    True
    """

    def __init__(
        self,
        *,
        epsilon: float,
        feature_bounds: Bounds,
        target_bounds: Bounds,
        matchings: int = 10,
        prediction_bounds: Bounds | None = None,
        widening: float = 0.001,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.matchings = matchings
        self.prediction_bounds = prediction_bounds
        self.widening = widening

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        public_bounds("feature_bounds", self.feature_bounds)
        _check.non_negative(widening=self.widening)
        median = self._median()
        return compose(median.event(), median.event())

    def _median(self) -> IntervalExponential:
        _check.count(matchings=self.matchings)
        return IntervalExponential(
            epsilon=self.epsilon / 2,
            sensitivity=float(self.matchings),
            relation=self._supported_relation(),
            bounds=self._searched(),
        )

    def _searched(self) -> Bounds:
        lower, upper = public_bounds("target_bounds", self.target_bounds)
        if self.prediction_bounds is not None:
            return public_bounds("prediction_bounds", self.prediction_bounds)
        half = upper / 2 - lower / 2
        return public_bounds("prediction_bounds", (lower - half, upper + half))

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        x, target = self._rows(X, y)
        low, high = public_bounds("feature_bounds", self.feature_bounds)
        places = [low + part * (high - low) for part in _PLACES]
        pairs = draw_pairs(len(x), self.matchings, generator)
        medians: list[float] = []
        for place in places:
            edges, scores = self._scored(pair_predictions(x[:, 0], target, pairs, place))
            medians.append(self._median().release(edges, scores, generator=generator))
        slope = (medians[1] - medians[0]) / (places[1] - places[0])
        self.coef_ = np.array([slope])
        self.intercept_ = medians[0] - slope * places[0]

    def _scored(self, predictions: Floats) -> tuple[Any, Any]:
        """Return the edges and the scores of the intervals that the median is chosen from: private."""
        lower, upper = public_bounds("target_bounds", self.target_bounds)
        return median_scores(predictions, bounds=self._searched(), widening=self.widening * (upper - lower))


def draw_pairs(rows: int, matchings: int, generator: Generator | None) -> npt.NDArray[np.int64]:
    """Return pairs of row numbers, [2, pairs]: uniform matchings, each of which may leave one row over."""
    drawn = [np.argsort(words(rows, generator), kind="stable") for _ in range(matchings)]
    return np.concatenate([order[: rows // 2 * 2].reshape(2, -1) for order in drawn], axis=1)


def pair_predictions(x: Floats, y: Floats, pairs: npt.NDArray[np.int64], place: float) -> Floats:
    """Return what the line through each pair predicts at `place`; a pair that has no line is left out.

    >>> x, y = np.array([0.0, 1.0, 1.0]), np.array([0.0, 2.0, 5.0])
    >>> pair_predictions(x, y, np.array([[0, 1], [1, 2]]), 3.0)
    array([6.])
    """
    first, second = pairs
    with np.errstate(all="ignore"):  # what overflows is not finite, hence left out
        slope = (y[second] - y[first]) / (x[second] - x[first])
        found = slope * (place - (x[first] / 2 + x[second] / 2)) + (y[first] / 2 + y[second] / 2)
    return found[np.isfinite(found)]


def median_scores(predictions: Floats, *, bounds: Bounds, widening: float) -> tuple[Floats, Floats]:
    """Return the edges of intervals and, for each, minus how far its rank is from the middle.

    >>> median_scores(np.array([3.0, 1.0]), bounds=(0.0, 4.0), widening=0.5)
    (array([0. , 0.5, 3.5, 4. ]), array([-1., -0., -1.]))
    """
    ordered = np.sort(predictions)
    middle = len(ordered) // 2
    ordered[:middle] -= widening
    ordered[middle:] += widening
    edges = np.concatenate([[bounds[0]], np.clip(ordered, *bounds), [bounds[1]]])
    return edges, -np.abs(np.arange(len(ordered) + 1) - len(ordered) / 2)
