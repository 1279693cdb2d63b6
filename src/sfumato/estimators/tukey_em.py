# SPDX-License-Identifier: Apache-2.0
"""Tukey-EM: linear regression without bounds, by a deep point among least-squares models of parts.

If V(t - 1) <= tau e^(E g / 2) V(t + g + 1) for some g >= 1, then the outcomes of this mechanism are (E, (1 +
e^(E / 2)) tau)-indistinguishable from those for any neighbor, both ways: points that only one of the two may
choose have together a chance of at most tau, and what they weigh makes the two normalizations differ by a
factor of at most 1 + tau e^(-E / 2) beside e^(E / 2).

The margin is the largest k for which V(t - k - 1) <= tau e^(E g / 2) V(t + k + g + 1) for some g, -1 if there
is none. A neighbor's B(i) lies in B(i - 1), so the margin moves by at most 1. Exact discrete Laplace noise is
added, and the sum must reach a bar that -1 reaches with chance delta at most. Of two neighbors either one is
safe, and tau = delta / (1 + e^(E / 2)) makes the choice cost delta; or none is, and passing the test is what
has chance delta. Never both: delta is not halved.

Volumes are exact fractions, the box is chosen by an exact sampler, and the point, a real number drawn bit by
bit, is rounded to 40 significant bits after it was chosen.

Guarantee  (epsilon, delta). Rows are dealt to `num_models` parts at random; each part has its least squares
           model, so one row moves one model. The depth of a point is, over all coefficients, the least number
           of models on either side of it, and moves by at most 1. Let B(i) be the box of points of depth i or
           more, V(i) its volume, E half of epsilon, and t half of the largest depth. The exponential
           mechanism, with exp(E depth / 2), chooses a point of B(t), if a test says that it may.
Neighbors  Add-or-remove: each row is dealt by a die of its own. Replace-one: rows are dealt evenly.
Failure    The test is not passed, as with too few rows for so many models: "failed" (`linear`, Failure).
Edge cases A row with a NaN or an infinity is assigned to a part and then left out. A part with fewer rows
           than coefficients, or whose model overflows, counts as infinitely low or high, by turns: it does
           not influence the middle. A box that reaches so far has infinite volume, and is never safe.
Source     Amin, Joseph, Ribero, Vassilvitskii 2022, arXiv:2208.07353, Algorithms 1 and 2; its Lemma 3.6 has
           4 e^E where we prove 1 + e^(E / 2). Restricted exponential mechanism: Brown et al. 2021,
           arXiv:2106.13329.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import ApproximateDpEvent, DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats
from sfumato.estimators.linear import LinearRegressor, check_fallback, finite_rows
from sfumato.ledger.account import Account
from sfumato.mechanisms import exact
from sfumato.mechanisms.additive import DiscreteLaplace
from sfumato.mechanisms.random import Generator, uniform_below, words

__all__ = ["TukeyEM"]

Box = list[tuple[Fraction, Fraction]]  # (lower, upper) for each coefficient
Volume = Fraction | float  # infinity if it is a float

_DOWN = 1 - 1e-12  # towards a smaller threshold, whatever float64 rounded
_OUTPUT_BITS = 40
_LARGEST_EXPONENT = 600.0  # e^600 is a float; a smaller threshold than could be is on the safe side


class TukeyEM(LinearRegressor):
    """Linear regression by a private deep point among many models, without bounds or clipping.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        delta: The delta of the guarantee, above 0.
        num_models: How many parts the rows are divided into. Each should have several times more rows than
            there are features. Smaller epsilon and delta need more models, or `fit` refuses before it is
            charged.
        fit_intercept: Whether to fit an intercept.
        resolution: Public: coefficients this near to one another count as equal, which gives a box of equal
            ones some volume. It matters only for features without any influence, or for targets without
            noise.
        fallback: A public number to predict if the fit fails. None: `predict` raises.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.random.default_rng(0).normal(size=(8000, 1))
    >>> model = TukeyEM(epsilon=2.0, delta=1e-5, num_models=400).fit(x, 2 * x[:, 0] + 1)
    >>> print(model.guarantee_)
    (2, 1e-05)-differential privacy for one row, add-remove neighbors
    >>> model.failed_, np.round(model.coef_, 3)
    (False, array([2.]))
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        num_models: int = 1000,
        fit_intercept: bool = True,
        resolution: float = 1e-12,
        fallback: float | None = None,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.num_models = num_models
        self.fit_intercept = fit_intercept
        self.resolution = resolution
        self.fallback = fallback

    def event(self) -> DpEvent:
        """Return the event of one fit, passed or failed, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        _check.count(num_models=self.num_models)
        _check.non_negative(resolution=self.resolution)
        check_fallback(self.fallback)
        self._check_enough(self._choice())
        return ApproximateDpEvent(self.epsilon, self.delta)

    def _choice(self) -> "DeepPoint":
        return DeepPoint(epsilon=self.epsilon, delta=self.delta, relation=self._supported_relation())

    def _check_enough(self, choice: "DeepPoint") -> None:
        needed = choice.fewest_models()
        if self.num_models < needed:
            raise InvalidParameterError(
                f"num_models={self.num_models!r} is too small for epsilon={self.epsilon!r} and delta="
                f"{self.delta!r}: the fit would always fail. Use at least {needed}, better twice that, with "
                "several times more rows than models times features. Nothing was spent."
            )

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows, target = self._rows(X, y)
        features = rows.shape[1]
        if self.fit_intercept:
            rows = np.column_stack([rows, np.ones(len(rows))])
        parts = deal(len(rows), self.num_models, even=self._relation().replaces, generator=generator)
        models = least_squares(rows, target, parts, self.num_models)
        chosen = self._choice().release(Boxes(models, self.resolution), generator)
        if chosen is None:
            return self._fail(features, self.fallback)
        self.failed_ = False
        self.coef_ = np.array(chosen[:features])
        self.intercept_ = chosen[-1] if self.fit_intercept else 0.0


def deal(rows: int, parts: int, *, even: bool, generator: Generator | None) -> npt.NDArray[np.int64]:
    """Return the part of each row: independent dice or, where the number of rows is public, evenly."""
    if not even:
        return uniform_below(parts, rows, generator)
    return np.argsort(words(rows, generator), kind="stable") % parts


def least_squares(rows: Floats, target: Floats, parts: npt.NDArray[np.int64], count: int) -> Floats:
    """Return the model of each part, [count, features]: private. None depends on another part's rows.

    A part that has no model is put at one end of the line or the other.
    """
    known = finite_rows(rows, target)
    order = np.argsort(parts[known], kind="stable")
    rows, target = rows[known][order], target[known][order]
    ends = np.cumsum(np.bincount(parts[known], minlength=count))
    starts = np.concatenate([[0], ends[:-1]])
    models = np.full((count, rows.shape[1]), math.inf)
    models[::2] *= -1
    for part, (start, end) in enumerate(zip(starts, ends, strict=True)):
        found = _least_squares(rows[start:end], target[start:end])
        if found is not None:
            models[part] = found
    return models


def _least_squares(rows: Floats, target: Floats) -> Floats | None:
    """Return the least squares model, of least norm if there are several; None if there is none."""
    if len(rows) < rows.shape[1]:
        return None
    try:
        with np.errstate(all="ignore"):
            found: Floats = np.asarray(np.linalg.lstsq(rows, target, rcond=None)[0], dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    return found if np.isfinite(found).all() else None


class Boxes:
    """The boxes of depth 1, 2, ... among models, exactly: private."""

    def __init__(self, models: Floats, resolution: float) -> None:
        self.depth = -(-len(models) // 2)  # deeper than half of the models is no point but by ties
        self._ordered = np.sort(models, axis=0)
        self._wide = Fraction(resolution)

    def sides(self, depth: int) -> Box:
        """Return the box of points of this depth or more: (lower, upper) for each coefficient."""
        lowest, highest = self._ordered[depth - 1], self._ordered[-depth]
        return [
            (Fraction(low) - self._wide, Fraction(high) + self._wide)
            for low, high in zip(lowest.tolist(), highest.tolist(), strict=True)
        ]

    @cached_property
    def volumes(self) -> list[Volume]:
        """The volumes of the boxes of depth 1, 2, ..., and 0 after the deepest."""
        return [self._volume(i) for i in range(1, self.depth + 1)] + [Fraction(0)]

    def _volume(self, depth: int) -> Volume:
        if not np.isfinite(self._ordered[[depth - 1, -depth]]).all():
            return math.inf
        return _size(self.sides(depth))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepPoint:
    """Propose, test, and choose a point of large depth; each with half of epsilon."""

    epsilon: float
    delta: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        _check.probability(delta=self.delta)

    @property
    def half(self) -> float:
        """The epsilon of the test, and that of the choice."""
        return self.epsilon / 2

    @property
    def bar(self) -> int:
        """What the noisy margin must reach: -1 does with a chance of delta at most.

        Discrete Laplace noise of scale s is j or more with chance a^j / (1 + a), a = e^(-1 / s), for j >= 1.
        """
        scale = self._noise().scale
        log_chance = math.log(self.delta) + math.log1p(math.exp(-1 / scale))
        return max(1, math.ceil(-log_chance * scale * (1 + 1e-12))) - 1

    def _noise(self) -> DiscreteLaplace:
        return DiscreteLaplace.calibrated(epsilon=self.half, sensitivity=1, relation=self.relation)

    def threshold(self, gap: int) -> Fraction:
        """Return tau e^(E gap / 2), or a little less."""
        return Fraction(math.exp(min(self._log_tau() + self.half * gap / 2, _LARGEST_EXPONENT)) * _DOWN)

    def _log_tau(self) -> float:
        return math.log(self.delta) - float(np.logaddexp(0.0, self.half / 2))

    def margin(self, volumes: list[Volume]) -> int:
        """Return how many models must change before the choice might be unsafe, less one: private.

        What holds for k holds for all smaller ones, so it is found by halving.
        """
        start = first_depth(len(volumes) - 1)
        return bisect_left(range(start - 1), True, key=lambda k: not self._holds(volumes, start, k)) - 1

    def _holds(self, volumes: list[Volume], start: int, k: int) -> bool:
        """Whether V(t - k - 1) is at most the threshold of some gap times V(t + k + gap + 1)."""
        outer, before = volumes[start - k - 2], start + k + 1
        return outer < math.inf and any(
            outer <= self.threshold(gap) * volumes[before + gap - 1]
            for gap in range(len(volumes) - 1 - before, 0, -1)
            if volumes[before + gap - 1] > 0
        )

    def fewest_models(self) -> int:
        """Return with how many models the test can be passed without luck, at the very best: public.

        That is where all boxes are of one size; a gap is then needed that makes its threshold 1.
        """
        gap = math.ceil(-self._log_tau() / (self.half / 2))
        while self.threshold(gap) < 1:
            gap += 1
        return 2 * max(2 * (self.bar + 2), 2 * (self.bar + gap + 1) - 1) - 1

    def release(self, boxes: Boxes, generator: Generator | None) -> list[float] | None:
        """Return a point, or None if the test is not passed."""
        margin = self.margin(boxes.volumes)
        if self._noise().release(margin, generator=generator) < self.bar:
            return None
        if not 0 < boxes.volumes[first_depth(boxes.depth) - 1] < math.inf:  # unsafe, and passed by luck
            return None
        return self.choose(boxes, generator)

    def choose(self, boxes: Boxes, generator: Generator | None) -> list[float]:
        """Return a point by the exponential mechanism over B(t), whose volume must be finite and not 0.

        A shell, B(i) without B(i + 1), is cut into slabs, two for each coefficient: earlier coefficients lie
        in B(i + 1), this one below or above it, later ones anywhere in B(i).
        """
        depths = range(first_depth(boxes.depth), boxes.depth + 1)
        volumes = [Fraction(boxes.volumes[i - 1] - boxes.volumes[i]) for i in depths]
        rate = Fraction(self.half) / 2
        depth = depths[exact.categorical([rate * i for i in depths], volumes, generator)]
        slabs = _slabs(boxes, depth)
        sizes = [_size(slab) for slab in slabs]
        chosen = slabs[exact.categorical([Fraction(0)] * len(slabs), sizes, generator)]
        return [_uniform(low, high, generator) for low, high in chosen]


def first_depth(deepest: int) -> int:
    """Return t, the least depth that may be chosen."""
    return max(1, deepest // 2)


def _size(box: Box) -> Fraction:
    return Fraction(math.prod(high - low for low, high in box))


def _slabs(boxes: Boxes, depth: int) -> list[Box]:
    outer = boxes.sides(depth)
    if depth == boxes.depth:
        return [outer]
    inner = boxes.sides(depth + 1)
    found: list[Box] = []
    for j, ((low, high), (left, right)) in enumerate(zip(outer, inner, strict=True)):
        found += [[*inner[:j], side, *outer[j + 1 :]] for side in ((low, left), (right, high))]
    return found


def _uniform(low: Fraction, high: Fraction, generator: Generator | None) -> float:
    """Return a uniform real between two numbers, rounded: bits are drawn until all that may follow agree."""
    number, bits = 0, 0
    while True:
        number, bits = (number << 64) | int(words(1, generator)[0]), bits + 64
        least = _rounded(low + (high - low) * number / 2**bits)
        if least == _rounded(low + (high - low) * (number + 1) / 2**bits):
            return least


def _rounded(value: Fraction) -> float:
    """Return a float of 40 significant bits near a number, never a smaller one for a larger number."""
    mantissa, exponent = math.frexp(float(value))
    return math.ldexp(round(math.ldexp(mantissa, _OUTPUT_BITS)), exponent - _OUTPUT_BITS)
