# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on epsilon from the scores of canaries in one run.

Some canaries are put in and others left out, by an independent fair coin for each. An attack gives every
canary a score from what was released: higher means "was in". Only the scores of those in and of those out
are needed here; the proofs are in `audit.evidence.bounds`.

- f_dp and gaussian_scores find mu, and return the epsilon of the Gaussian mechanism with that mu. They do
  not apply to a mechanism with another curve (Laplace, randomized response), whose epsilon at small delta
  may be smaller. `audit.evidence.claim_limits` turns `ranks` into epsilon for other events.
- Scores are independent for canaries that are affected by their own noise only, such as gradients in
  separate coordinates (Dirac canaries) in a run with independent sampling. Losses of one model on many
  examples are not independent: use binary_guesses or f_dp there.
- Swapping which of two canaries is in changes both: P1 x Q2 and Q1 x P2 can be separated with accuracy at
  most the area under the ROC curve of the mechanism's trade-off function, whatever distributions single
  canaries have within it. For mu-GDP that area is Phi(mu / sqrt 2).
- Numbers of guesses are fixed beforehand; if several are tried, the error is split among them. Guesses among
  equal scores count as wrong if they could be; pairs of equal scores count as half.

Guarantee  Each bound exceeds the true epsilon with probability at most 1 - confidence, if its conditions
           hold:
               function         family of mechanisms                   scores of different canaries
               binary_guesses   any (epsilon, delta)-DP one            may depend on one another
               f_dp             mu-GDP for some mu (Gaussian noise)    may depend on one another
               gaussian_scores  mu-GDP for some mu                     independent, given who is in
           `ranks` bounds the area under the ROC curve, for any family, with independent scores.
Edge cases NaN, empty groups and too few canaries raise errors that state how many are needed; so do groups
           too unequal in size to come from fair coins, if fair coins matter. Infinite scores are scores.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

from sfumato import _check
from sfumato.accounting import gaussian
from sfumato.audit.evidence import bounds
from sfumato.audit.evidence.claim_limits import Tail
from sfumato.audit.evidence.results import LowerBound
from sfumato.audit.evidence.roc import checked_scores
from sfumato.audit.evidence.terms import confidence_of_each
from sfumato.errors import InvalidParameterError

__all__ = ["binary_guesses", "f_dp", "gaussian_scores", "highest", "least_canaries", "ranks"]

Scores = npt.NDArray[np.float64]
_Bound = Callable[[int, int, int, float], float]  # right guesses, guesses, canaries, confidence

_SHARES = (0.5, 0.2, 0.05)  # of the canaries that are guessed: few at high epsilon, many where there are few
_UNFAIR = 1e-6  # chance that fair coins give groups that are refused as too unequal
_MANY = 2048  # canaries: where these show nothing, no number does
_SHAVE = 1 - 1e-9  # of mu: more than rounding adds in the way to epsilon


def binary_guesses(
    in_scores: npt.ArrayLike,
    out_scores: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | Sequence[int] | None = None,
) -> LowerBound:
    """Guess "in" for the highest scores and "out" for the lowest, and count right guesses.

    Args:
        in_scores: Scores of canaries that were in.
        out_scores: Scores of canaries that were left out.
        delta: The delta of the bound.
        confidence: The probability that the bound holds.
        guesses: How many canaries are guessed in all, half at each end; several numbers are tried at a
            corrected confidence. None tries three shares of the canaries.

    Returns:
        The lower bound, for any mechanism.

    Raises:
        InvalidParameterError: If there are too few canaries, their groups do not come from fair coins, or a
            parameter is out of range.

    >>> print(binary_guesses(range(100, 200), range(100), delta=1e-5))
    epsilon is at least 3.17 at delta 1e-05 (binary guesses in one run, 200 observations, confidence 0.95)
    """
    _check.in_range(0, 1, delta=delta)

    def bound(correct: int, count: int, canaries: int, each: float) -> float:
        return bounds.epsilon_from_guesses(correct, count, canaries, delta=delta, confidence=each)

    inside, outside = _groups(in_scores, out_scores)
    epsilon = _guessed(inside, outside, guesses, confidence, bound)
    return _found(epsilon, delta, confidence, "binary guesses in one run", inside, outside)


def f_dp(
    in_scores: npt.ArrayLike,
    out_scores: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | Sequence[int] | None = None,
) -> LowerBound:
    """Guess as `binary_guesses` does, and use the whole trade-off curve of Gaussian noise.

    Args:
        in_scores: Scores of canaries that were in.
        out_scores: Scores of canaries that were left out.
        delta: The delta of the bound.
        confidence: The probability that the bound holds.
        guesses: How many canaries are guessed in all, half at each end; several numbers are tried at a
            corrected confidence. None tries three shares of the canaries.

    Returns:
        The lower bound, for mechanisms with Gaussian noise.

    Raises:
        InvalidParameterError: If there are too few canaries, their groups do not come from fair coins, or a
            parameter is out of range.

    >>> print(f_dp(range(100, 200), range(100), delta=1e-5))
    epsilon is at least 5.92 at delta 1e-05 (guesses in one run, f-DP of Gaussian noise, 200 observations, \
confidence 0.95)
    """
    _check.probability(delta=delta)

    def bound(correct: int, count: int, canaries: int, each: float) -> float:
        return bounds.mu_from_guesses(correct, count, canaries, confidence=each)

    inside, outside = _groups(in_scores, out_scores)
    epsilon = _epsilon(_guessed(inside, outside, guesses, confidence, bound), delta)
    return _found(epsilon, delta, confidence, "guesses in one run, f-DP of Gaussian noise", inside, outside)


def gaussian_scores(
    in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, *, delta: float, confidence: float = 0.95
) -> LowerBound:
    """Compare every score of those in with every score of those out, without a threshold.

    Args:
        in_scores: Scores of canaries that were in.
        out_scores: Scores of canaries that were left out.
        delta: The delta of the bound.
        confidence: The probability that the bound holds.

    Returns:
        The lower bound, for mechanisms with Gaussian noise and independent scores.

    Raises:
        InvalidParameterError: If there are too few canaries, or a parameter is out of range.

    >>> print(gaussian_scores(range(100, 200), range(100), delta=1e-5))
    epsilon is at least 14.3 at delta 1e-05 (ranked scores in one run, Gaussian noise, 200 observations, \
confidence 0.95)
    """
    _check.probability(delta=delta)
    inside, outside = _groups(in_scores, out_scores)
    area = ranks(inside, outside, confidence=confidence)
    mu = math.sqrt(2) * float(ndtri(area)) if area > 0.5 else 0.0
    attack = "ranked scores in one run, Gaussian noise"
    return _found(_epsilon(mu, delta), delta, confidence, attack, inside, outside)


def ranks(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike, *, confidence: float = 0.95) -> float:
    """Return a lower bound on the probability that a canary that is in has a higher score than one that is
    out.

    Ties count half. That probability is the area under the ROC curve. Groups may be of any sizes, if all
    subsets are equally likely.

    >>> round(ranks(range(100, 200), range(100)), 4)
    0.9705
    """
    inside, outside = _groups(in_scores, out_scores)
    pairs, least = min(len(inside), len(outside)), least_canaries(confidence)
    if pairs < least:
        raise _too_few(len(inside), len(outside), confidence, f"at least {least} in and {least} out")
    places = rankdata(np.concatenate([inside, outside]))
    won = float(places[: len(inside)].sum()) - len(inside) * (len(inside) + 1) / 2
    return bounds.area_from_pairs(won / (len(inside) * len(outside)), pairs, confidence=confidence)


def highest(scores: npt.ArrayLike, present: npt.ArrayLike) -> Tail | None:
    """Choose a threshold by every second canary, and count scores above it among the others.

    The threshold is where canaries that are in differ most from those that are out. Which canaries choose it
    does not depend on who is in. Returns None if a group is empty.

    >>> tail = highest(range(100), np.arange(100) >= 60)
    >>> tail.hits, tail.positives, tail.alarms, tail.negatives
    (20, 20, 0, 30)
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(present, dtype=bool)
    chooses = np.arange(len(values)) % 2 == 0
    groups = [values[half & who] for half in (chooses, ~chooses) for who in (inside, ~inside)]
    if not all(len(group) for group in groups):
        return None
    in_first, out_first, in_second, out_second = (np.sort(group) for group in groups)
    candidates = np.unique(in_first)
    hits = len(in_first) - np.searchsorted(in_first, candidates, side="left")
    alarms = len(out_first) - np.searchsorted(out_first, candidates, side="left")
    found, false = hits / len(in_first), (alarms + 1) / (len(out_first) + 1)
    threshold = candidates[np.argmax((found - false) / np.sqrt(false))]
    return Tail(
        hits=int((in_second >= threshold).sum()),
        positives=len(in_second),
        alarms=int((out_second >= threshold).sum()),
        negatives=len(out_second),
    )


def least_canaries(confidence: float = 0.95) -> int:
    """Return the smallest size of each group with which perfect scores show anything.

    >>> least_canaries(0.95), least_canaries(0.999)
    (5, 10)
    """
    _check.probability(confidence=confidence)
    return math.floor(-math.log2(1 - confidence)) + 1  # the least k with (1 - confidence)^(1/k) > 1/2


def _guessed(
    inside: Scores, outside: Scores, guesses: int | Sequence[int] | None, confidence: float, bound: _Bound
) -> float:
    """Return the best bound over numbers of guesses, each at a confidence corrected for the choice."""
    _check.probability(confidence=confidence)
    canaries = len(inside) + len(outside)
    _check_fair(len(inside), canaries)
    options = _usable(_options(canaries, guesses), canaries, confidence, bound)
    if not options:
        raise _too_few(len(inside), len(outside), confidence, _needed(confidence, bound))
    each = confidence_of_each(confidence, options)
    return max(bound(_right(inside, outside, count), count, canaries, each) for count in options)


def _options(canaries: int, guesses: int | Sequence[int] | None) -> list[int]:
    """Return numbers of guesses to try, which depend on the number of canaries only."""
    if guesses is None:
        return [count for share in _SHARES if (count := int(share * canaries)) > 0]
    options = [int(guesses)] if isinstance(guesses, int | np.integer) else list(guesses)
    _check.count(**{"how many numbers `guesses` has": len(options)})
    for count in options:
        _check.count(guesses=count)
        if count > canaries:
            raise InvalidParameterError(f"guesses={count} is more than the number of canaries, {canaries}.")
    return options


def _usable(options: list[int], canaries: int, confidence: float, bound: _Bound) -> list[int]:
    """Return the options that would show something if all guesses were right."""
    if not options:
        return []
    each = confidence_of_each(confidence, options)
    return [count for count in options if bound(count, count, canaries, each) > 0]


def _right(inside: Scores, outside: Scores, guesses: int) -> int:
    """Count right guesses: "in" for the highest half of them, "out" for the lowest, ties against us.

    An order among ties may depend on who is in only to our loss: no order has fewer right guesses.
    """
    scores = np.concatenate([inside, outside])
    present = np.arange(len(scores)) < len(inside)
    highest = np.lexsort((present, -scores))[: guesses - guesses // 2]
    lowest = np.lexsort((~present, scores))[: guesses // 2]
    return int(present[highest].sum() + (~present[lowest]).sum())


def _epsilon(mu: float, delta: float) -> float:
    return gaussian.epsilon(mu * _SHAVE, delta) if mu > 0 else 0.0


def _found(
    epsilon: float, delta: float, confidence: float, attack: str, inside: Scores, outside: Scores
) -> LowerBound:
    trials = len(inside) + len(outside)
    return LowerBound(epsilon=epsilon, delta=delta, confidence=confidence, attack=attack, trials=trials)


def _groups(in_scores: npt.ArrayLike, out_scores: npt.ArrayLike) -> tuple[Scores, Scores]:
    if not (np.size(in_scores) and np.size(out_scores)):
        raise InvalidParameterError(
            "an audit needs scores of canaries that were in and of some left out, and one group is empty: at "
            f"confidence 0.95 use at least {least_canaries()} of each, better 500. A run without canaries "
            "cannot be audited afterwards."
        )
    return checked_scores("in_scores", in_scores), checked_scores("out_scores", out_scores)


def _check_fair(count: int, canaries: int) -> None:
    """Refuse groups that fair coins do not produce: their scores would not be those of random halves."""
    spread = math.sqrt(canaries * math.log(2 / _UNFAIR) / 2)  # Hoeffding
    if abs(count - canaries / 2) > spread:
        raise InvalidParameterError(
            f"{count} canaries in and {canaries - count} out do not come from fair coins. Draw for each, "
            f"with probability 1/2, whether it is in, and pass all scores. Of {canaries} canaries, from "
            f"{math.ceil(canaries / 2 - spread)} to {math.floor(canaries / 2 + spread)} would be in."
        )


def _needed(confidence: float, bound: _Bound) -> str:
    """Describe how many canaries are enough."""

    def enough(count: int) -> bool:
        return bool(_usable(_options(count, None), count, confidence, bound))

    if not enough(_MANY):
        return "a smaller delta: at this one no number of canaries is enough"
    count = next(count for count in range(2, _MANY + 1) if enough(count))
    return f"at least {count} canaries, {count // 2} of them to be guessed"


def _too_few(inside: int, outside: int, confidence: float, needed: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{inside} canaries in and {outside} out, or so few guesses, show nothing at confidence "
        f"{confidence:g}, even if all were guessed right. Use {needed}; better 1000 in all."
    )
