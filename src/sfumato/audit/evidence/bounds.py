# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on privacy loss from counts that chance alone does not explain.

- Counts: an (epsilon, delta)-DP mechanism has TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta.
  Both use the same two events, a lower bound on TPR and an upper bound on FPR, so each may fail with
  probability (1 - confidence) / 2. Clopper and Pearson 1934; Jagielski et al. 2020, arXiv:2006.07709.
- Guesses: of m canaries, each in or out by an independent fair coin, an attack guesses r and is right on N of
  them. Flip the coin of canary j: a right guess becomes a wrong one, and the number of others that are right
  does not change. So for a function g from 0 to 1, (epsilon, delta)-DP gives

      E[N g(N - 1)] <= e^epsilon E[(r - N) g(N)] + m delta.                                      (*)

  With W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) and, up to scale, the g that solves Stein's equation of W
  for the event {at least v} (it is positive, and largest at v - 1), (*) reads

      P[N >= v] <= P[W >= v] (1 + m delta / (v P[W = v])).

  At delta = 0 this is Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, Theorem 2.1; its term for delta is
  smaller than theirs. It grows with epsilon, so it can be inverted.
- Trade-off: in place of (*), f-DP with the curve of the Gaussian mechanism gives, for every i,

      E[N; N >= i] / m <= F(E[r - N; N >= i - 1] / m),    F(x) = Phi(Phi^-1(x) + mu).           (**)

  Of all distributions with P[N >= v] >= 1 - confidence that obey (**), the one that puts that mass on v and
  makes each further count as rare as (**) allows has the least total mass. If that is above 1 there is no
  such distribution, and mu is refuted. Mahloujifar, Melis and Chaudhuri 2025, arXiv:2410.22235.
- Pairs: the share of pairs (in, out) that an attack orders correctly is a mean over matchings of means over
  k = min(in, out) pairs. If canaries are independent given the coins, and each pair is ordered correctly with
  probability at most a, a convex function of it has at most the mean that it has for Binomial(k, a) / k
  (Hoeffding 1963, section 5). With (x - t)+ for the function: the probability that the share exceeds the
  mean of the worst 1 - confidence of that binomial is at most 1 - confidence.

Guarantee  Each function returns a bound that exceeds the true value with probability at most 1 - confidence,
           for every number of observations; nothing here is an approximation for large samples. Searches
           return the end that is refuted, so they err downwards.
"""

import math
import numbers
from collections.abc import Callable

from scipy.special import bdtrc, betaincinv, ndtr, ndtri
from scipy.stats import binom

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = [
    "area_from_pairs",
    "clopper_pearson",
    "epsilon_from_counts",
    "epsilon_from_guesses",
    "mu_from_guesses",
    "needed",
]

_HALVINGS = 34  # of a bracket no wider than 1 or than its lower end is high: leaves about 1e-10 of it
_SMALLEST = 1e-9  # what is not refuted here counts as zero
_LARGEST_EPSILON = 100.0  # to show more takes over e^100 observations
_TINY = 1e-290  # below, a binomial probability may have lost digits


def clopper_pearson(hits: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return bounds of a rate, each of which holds with `confidence` separately.

    Both together hold with 2 confidence - 1: for an interval of confidence c, pass (1 + c) / 2.

    >>> low, high = clopper_pearson(0, 10, confidence=0.975)
    >>> low, round(high, 4)
    (0.0, 0.3085)
    """
    _check_hits(hits, trials, "hits", "trials")
    _check_confidence(confidence)
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, 1 - confidence))
    high = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, confidence))
    return low, high


def epsilon_from_counts(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return the epsilon that an attack with these counts shows, over independent runs in each group.

    Positives are runs with the unit, negatives runs without; the attack must be fixed before the counts.

    >>> round(epsilon_from_counts(900, 1000, 100, 1000, delta=1e-5), 3)
    1.99
    """
    _check_hits(true_positives, positives, "true_positives", "positives")
    _check_hits(false_positives, negatives, "false_positives", "negatives")
    _check.in_range(0, 1, delta=delta)
    _check_confidence(confidence)
    each = (1 + confidence) / 2
    low, _ = clopper_pearson(true_positives, positives, confidence=each)
    _, high = clopper_pearson(false_positives, negatives, confidence=each)
    return max(0.0, _log_ratio(low - delta, high), _log_ratio(1 - high - delta, 1 - low))


def needed(epsilon: float, *, delta: float, confidence: float = 0.95) -> int:
    """Return the least number of runs in each group with which a perfect attack would show `epsilon`.

    >>> needed(1.0, delta=1e-5), needed(8.0, delta=1e-5)
    (12, 10999)
    """
    _check.in_range(0, _LARGEST_EPSILON, epsilon=epsilon)
    _check.in_range(0, 1, delta=delta)
    _check_confidence(confidence)
    if not delta < 1:
        raise InvalidParameterError(f"no attack contradicts delta={delta:g}. Use a delta below 1.")
    # All are separated: TPR >= x and FPR <= 1 - x with x = ((1 - confidence) / 2)^(1/n).
    gap = (1 - delta) / (1 + math.exp(epsilon))
    return max(1, math.ceil(math.log((1 - confidence) / 2) / math.log1p(-gap) * (1 - 1e-12)))


def epsilon_from_guesses(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon that this many right guesses show, in one run ("Guesses" above).

    It holds for any (epsilon, delta)-DP mechanism and any attack that fixed the number of guesses
    beforehand.

    >>> round(epsilon_from_guesses(75, 100, 1000, delta=1e-4), 3)
    0.695
    """
    _check_guesses(correct, guesses, canaries)
    _check.in_range(0, 1, delta=delta)
    _check_confidence(confidence)
    return _largest(lambda e: _chance(correct, guesses, canaries * delta, e) <= 1 - confidence)


def mu_from_guesses(correct: int, guesses: int, canaries: int, *, confidence: float = 0.95) -> float:
    """Return the mu of Gaussian differential privacy that this many right guesses show ("Trade-off" above).

    >>> round(mu_from_guesses(430, 500, 5000), 3)
    0.56
    """
    _check_guesses(correct, guesses, canaries)
    _check_confidence(confidence)
    return _largest(lambda mu: _no_law(correct, guesses, canaries, mu, 1 - confidence))


def area_from_pairs(share: float, pairs: int, *, confidence: float = 0.95) -> float:
    """Return the least probability of ordering a pair correctly that explains this share ("Pairs" above).

    `pairs` is the size of the smaller group; guessing reaches 1 / 2.

    >>> round(area_from_pairs(0.6, 2500), 4), round(area_from_pairs(1.0, 10), 4)
    (0.5797, 0.7411)
    """
    _check.in_range(0, 1, share=share)
    _check.count(pairs=pairs)
    _check_confidence(confidence)
    if share == 0:
        return 0.0
    low, high = 0.0, share
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share > _worst(middle, pairs, 1 - confidence) else (low, middle)
    return low


def _worst(mean: float, pairs: int, error: float) -> float:
    """Return the mean of the worst `error` of Binomial(pairs, mean) / pairs.

    It is t + E(B - t)+ / error at the quantile t, and no less at another t: rounding of t errs upwards.
    """
    t = int(binom.ppf(1 - error, pairs, mean))
    above = float(bdtrc(t, pairs, mean))
    partial = pairs * mean * (float(bdtrc(t - 1, pairs - 1, mean)) if t else 1.0)  # E[B; B > t]
    return (t + max(0.0, partial - t * above) / error) / pairs


def _chance(correct: int, guesses: int, slack: float, epsilon: float) -> float:
    """Bound the probability of this many right guesses; `slack` is canaries * delta."""
    if correct == 0:
        return 1.0
    tail = float(bdtrc(correct - 1, guesses, 1 / (1 + math.exp(-epsilon))))
    point = _point(correct, guesses, epsilon)
    if point >= _TINY:
        return tail + slack / correct * (tail / point)
    # So far from the mean that, above it, the tail is at most a geometric series from its first term.
    log_step = (
        math.log(guesses - correct) - math.log(correct + 1) + epsilon if correct < guesses else -math.inf
    )
    return tail + slack / correct / -math.expm1(log_step) if log_step < 0 else 1.0


def _point(hits: int, trials: int, epsilon: float) -> float:
    """Return the chance of `hits` in Binomial(trials, e^epsilon / (1 + e^epsilon))."""
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways - (trials - hits) * epsilon - trials * math.log1p(math.exp(-epsilon)))


def _no_law(correct: int, guesses: int, canaries: int, mu: float, error: float) -> bool:
    """Return whether no distribution of right guesses obeys the curve of `mu` and reaches `error`."""
    right = error * correct / canaries  # E[N; N >= i] / m, from i = correct downwards
    wrong = error * (guesses - correct) / canaries  # E[r - N; N >= i] / m
    mass = error  # P[N >= i]
    for i in range(correct, 0, -1):
        least = float(ndtr(ndtri(right) - mu))  # of E[r - N; N >= i - 1] / m, by the curve
        added = (least - wrong) * canaries / (guesses - i + 1)  # P[N = i - 1]
        if not added > 0:
            return False  # no further condition applies from here on
        wrong, right, mass = least, right + added * (i - 1) / canaries, mass + added
        if mass > 1:
            return True
    return False


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the largest value that is refuted (all smaller ones are), or 0."""
    if not refuted(_SMALLEST):
        return 0.0
    low, high = _SMALLEST, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _log_ratio(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 and denominator > 0 else 0.0


def _check_confidence(confidence: float) -> None:
    _check.probability(confidence=confidence)
    if not 1 - confidence < 1:  # then every value would be refuted, however large
        raise InvalidParameterError(
            f"confidence={confidence:g} is 0 in float64: a bound without confidence says nothing. "
            "Use 0.95, for example."
        )


def _check_hits(hits: int, trials: int, name: str, of: str) -> None:
    _check.count(**{of: trials})
    if not (isinstance(hits, numbers.Integral) and 0 <= hits <= trials):  # callers may pass something else
        raise InvalidParameterError(f"{name} must be a whole number from 0 to {of}, but {hits!r} was given.")


def _check_guesses(correct: int, guesses: int, canaries: int) -> None:
    _check_hits(correct, guesses, "correct", "guesses")
    _check.count(canaries=canaries)
    if guesses > canaries:
        raise InvalidParameterError(
            f"guesses={guesses} is more than the number of canaries, {canaries}. Guess each at most once."
        )
