# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on epsilon from the scores of canaries in one run.

Setting    Some canaries are put in and others left out, by a fair coin for each, independent of all else. An
           attack gives every canary a score from what was released: higher means "was in". Scores of those
           in and of those out are all that is needed here; the proofs are in `audit.evidence.bounds`.
Guarantee  Each bound exceeds the true epsilon with chance at most 1 - confidence, where its conditions hold:
               function         family of mechanisms                   scores of different canaries
               binary_guesses   any (epsilon, delta)-DP one            may depend on one another
               f_dp             mu-GDP for some mu (Gaussian noise)    may depend on one another
               gaussian_scores  mu-GDP for some mu                     independent, given who is in
           `ranks` bounds the area under the ROC curve, for any family, with independent scores.
Family     f_dp and gaussian_scores find mu, and say the epsilon of the Gaussian mechanism with that mu. Of a
           mechanism whose curve is another (Laplace, randomized response) they say nothing: epsilon at small
           delta may be smaller. `audit.evidence.claim_limits` turns `ranks` into epsilon for other events.
Independent Holds for canaries that only noise of their own touches, as gradients in coordinates of their own
           (Dirac canaries) in a run with independent sampling. Not for losses of one model on many examples:
           take binary_guesses or f_dp there.
Area       Swapping which of two canaries is in changes both: telling P1 x Q2 from Q1 x P2 is possible with
           accuracy at most the area under the ROC curve of the mechanism's trade-off function, whatever laws
           single canaries have within it. Of mu-GDP that area is Phi(mu / sqrt 2).
Choice     Numbers of guesses are fixed beforehand; where several are tried, the error is split among them.
Ties       Guesses among equal scores count as wrong wherever they could be; pairs of equal scores as half.
Bad input  NaN, empty groups and too few canaries are errors that say how many would be needed; so are groups
           too unequal in size to come from fair coins, where fair coins matter. Infinite scores are scores.
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
from sfumato.audit.evidence.results import LowerBound, confidence_of_each
from sfumato.audit.evidence.roc import checked_scores
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
    """Guess "in" for the highest scores and "out" for the lowest, and count what is right.

    `guesses` is how many canaries are guessed in all, half at each end; the rest is left open.

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
    """Guess as `binary_guesses` does, and judge by the whole trade-off curve of Gaussian noise.

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
    """Compare every score of those in with every score of those out; no threshold is chosen.

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
    """Return a lower bound on the chance that a canary that is in outscores one that is out (ties: half).

    That chance is the area under the ROC curve. Groups may be of any sizes, if all subsets were as likely.

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

    The threshold is where those that are in stand out most from those that are out. Which canaries choose
    does not depend on who is in. None where a group is empty.

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
    """Return the least size of each group with which perfect scores show anything.

    >>> least_canaries(0.95), least_canaries(0.999)
    (5, 10)
    """
    _check.probability(confidence=confidence)
    return math.floor(-math.log2(1 - confidence)) + 1  # the least k with (1 - confidence)^(1/k) > 1/2


def _guessed(
    inside: Scores, outside: Scores, guesses: int | Sequence[int] | None, confidence: float, bound: _Bound
) -> float:
    """Return the best bound over numbers of guesses, each at a confidence that pays for the choice."""
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
            raise InvalidParameterError(f"guesses={count} is more than the {canaries} canaries there are.")
    return options


def _usable(options: list[int], canaries: int, confidence: float, bound: _Bound) -> list[int]:
    """Return the options that would show something if all guesses were right."""
    if not options:
        return []
    each = confidence_of_each(confidence, options)
    return [count for count in options if bound(count, count, canaries, each) > 0]


def _right(inside: Scores, outside: Scores, guesses: int) -> int:
    """Count right guesses: "in" for the highest half of them, "out" for the lowest, ties against us.

    An order among ties may not depend on who is in, except to our loss: no order has fewer right guesses.
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
    """Refuse groups that fair coins do not make: their scores would not be those of random halves."""
    spread = math.sqrt(canaries * math.log(2 / _UNFAIR) / 2)  # Hoeffding
    if abs(count - canaries / 2) > spread:
        raise InvalidParameterError(
            f"{count} canaries in and {canaries - count} out are not what fair coins give: draw for each, "
            f"with chance 1/2, whether it is in, and give all scores. Of {canaries} canaries, from "
            f"{math.ceil(canaries / 2 - spread)} to {math.floor(canaries / 2 + spread)} would be in."
        )


def _needed(confidence: float, bound: _Bound) -> str:
    """Say how many canaries would do."""

    def enough(count: int) -> bool:
        return bool(_usable(_options(count, None), count, confidence, bound))

    if not enough(_MANY):
        return "a smaller delta: at this one no number of canaries would do"
    count = next(count for count in range(2, _MANY + 1) if enough(count))
    return f"at least {count} canaries, {count // 2} of them to be guessed"


def _too_few(inside: int, outside: int, confidence: float, needed: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{inside} canaries in and {outside} out, or so few guesses, show nothing at confidence "
        f"{confidence:g}, even if all were told apart. Use {needed}; better 1000 in all."
    )
