# SPDX-License-Identifier: Apache-2.0
"""Memorization of language models: how far a model prefers secrets planted in its text to others.

The exposure of a secret drawn uniformly from a public space R is log2 |R| - log2 rank. The rank counts the
members of R that the model finds at least as likely, including the secret. A model that does not know the
secret gives 1.44 bits on average (log2 e), and t bits or more with probability at most 2^-t; log2 |R| bits
mean that it prefers the secret to all others. `exact_exposures` ranks the whole space, up to about a million
members. `sampled_exposures` compares with random members: `tail` is then the exact Monte-Carlo p-value, (1 +
as likely) / (1 + drawn), and bits beyond it come from a skew-normal distribution fitted to the drawn ones,
which is an estimate.

Guarantee  Under (epsilon, delta) for the owner of the secret, a tail of p or less has probability at most
           e^epsilon p + delta, since without the secret it has probability p. So one secret in one run
           bounds epsilon from below, by `tail` alone and without the fitted distribution.
Source     Carlini et al. 2019, arXiv:1802.08232: exposure (section 4), skew-normal (section 4.3).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sfumato import _check
from sfumato.audit.evidence.results import LowerBound
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, uniform_below

__all__ = [
    "Exposure",
    "SecretFormat",
    "exact_exposures",
    "log_tail",
    "require_secrets",
    "sampled_exposures",
]

LogLikelihood = Callable[[Sequence[str]], npt.ArrayLike]  # the natural logarithm, one number for each text

_RANKED_AT_MOST: Final = 10**6
_CHUNK: Final = 8192  # texts asked at once
_ROUNDING: Final = 1e-9  # 1 / (1 - 0.95) is meant to be 20
_FEWEST_TO_FIT: Final = 100  # scores for three parameters of a law


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretFormat:
    """Texts with a place for digits, such as "my number is {}": the space that secrets are drawn from.

    Args:
        template: The text, with {} once in the place of the digits.
        digits: The number of digits, 1 to 18.

    Raises:
        InvalidParameterError: If the template does not contain {} once, or `digits` is out of range.

    >>> SecretFormat(template="pin {}", digits=4).text(42)
    'pin 0042'
    """

    template: str
    digits: int

    def __post_init__(self) -> None:
        _check.text(template=self.template)
        _check.count(digits=self.digits)
        _check.in_range(1, 18, digits=self.digits)
        if self.template.count("{}") != 1:
            raise InvalidParameterError(
                f"template must hold {{}} once, where the digits go, but {self.template!r} was given."
            )

    @property
    def size(self) -> int:
        """The number of texts."""
        return 10**self.digits

    def text(self, secret: int) -> str:
        """Return the text of a secret.

        Args:
            secret: The secret, a whole number below `size`.

        Returns:
            The text.

        Raises:
            InvalidParameterError: If the secret is out of range.
        """
        return self.template.replace("{}", f"{_member(secret, self):0{self.digits}d}")

    def draw(self, count: int, *, generator: Generator | None = None) -> tuple[int, ...]:
        """Draw secrets uniformly and independently. Two may be equal, as the bounds require.

        Args:
            count: The number of secrets.
            generator: The source of randomness, or None for secure randomness from the operating system.

        Returns:
            The secrets.

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        _check.count(count=count)
        return tuple(uniform_below(self.size, count, generator).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """How exposed one secret is.

    Attributes:
        bits: The exposure.
        tail: The probability of a rank as good if the model does not know the secret.
        compared: The number of other texts it was compared with.
        exact: Whether `bits` comes from a rank, not from a fitted distribution.
    """

    bits: float
    tail: float
    compared: int
    exact: bool

    def bound(self, *, delta: float, confidence: float = 0.95) -> LowerBound:
        """Return a lower bound on epsilon, for a secret that only one privacy unit put into the text.

        For several secrets, use `confidence_of_each`.

        >>> secret = Exposure(bits=13.3, tail=1e-4, compared=10**4, exact=True)
        >>> round(secret.bound(delta=1e-5).epsilon, 2)
        6.21
        """
        _check.probability(confidence=confidence)
        _check.in_range(0, 1, delta=delta)
        alpha = 1 - confidence
        if not alpha > delta:
            raise InvalidParameterError(
                f"at delta={delta:g} nothing can be shown with confidence {confidence:g}: the claim itself "
                f"may fail that often. Use a confidence below {1 - delta:g}."
            )
        _require_space(self.compared, alpha - delta)
        epsilon = max(0.0, math.log(alpha - delta) - math.log(self.tail))
        return LowerBound(
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            attack="exposure of one planted secret",
            trials=self.compared,
        )


def _require_space(compared: int, chance: float) -> None:
    least = math.floor(1 / chance + _ROUNDING)  # the least that makes (compared + 1) * chance more than 1
    if compared < least:
        raise InvalidParameterError(
            f"a secret compared with {compared} others shows nothing at this confidence, even if it comes "
            f"first: compare with at least {least}."
        )


# --- by rank ---------------------------------------------------------------------------------------------


def exact_exposures(
    log_likelihood: LogLikelihood, secrets: Sequence[int], *, form: SecretFormat
) -> list[Exposure]:
    """Return the exposure of each secret by its rank in the whole space, which is scored once.

    >>> form = SecretFormat(template="{}", digits=2)
    >>> found = exact_exposures(lambda texts: [float(text == "42") for text in texts], [42, 7], form=form)
    >>> [round(exposure.bits, 2) for exposure in found]
    [6.64, 0.0]
    """
    if form.size > _RANKED_AT_MOST:
        raise InvalidParameterError(
            f"{form.size} texts are too many to rank: use sampled_exposures, or at most "
            f"{int(math.log10(_RANKED_AT_MOST))} digits."
        )
    require_secrets(secrets)
    scores = _scored(log_likelihood, [form.text(secret) for secret in range(form.size)])
    own = [scores[_member(secret, form)] for secret in secrets]
    ranks = form.size - np.searchsorted(np.sort(scores), own, side="left")  # ties count against the secret
    tails = [int(rank) / form.size for rank in ranks]
    return [Exposure(bits=math.log2(1 / p), tail=p, compared=form.size - 1, exact=True) for p in tails]


def _member(secret: int, form: SecretFormat) -> int:
    _check.in_range(0, form.size - 1, secret=secret)
    return secret


def require_secrets(secrets: Sequence[object]) -> None:
    """Raise if there are no secrets."""
    if not len(secrets):
        raise InvalidParameterError("no secrets were given: plant at least one before training (form.draw).")


def _scored(log_likelihood: LogLikelihood, texts: Sequence[str]) -> npt.NDArray[np.float64]:
    parts = [texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK)]
    scores = np.concatenate(
        [np.asarray(log_likelihood(part), dtype=np.float64).reshape(-1) for part in parts]
    )
    if len(scores) != len(texts):
        raise InvalidParameterError(
            f"log_likelihood must return one number for each text, but returned {len(scores)} for "
            f"{len(texts)}."
        )
    if np.isnan(scores).any():
        raise InvalidParameterError(
            "log_likelihood returned NaN: the model diverged, and its ranks mean nothing. Train it with a "
            "lower learning rate."
        )
    return scores


# --- by sampling -----------------------------------------------------------------------------------------


def sampled_exposures(
    log_likelihood: LogLikelihood,
    secrets: Sequence[int],
    *,
    form: SecretFormat,
    samples: int = 10_000,
    generator: Generator | None = None,
) -> list[Exposure]:
    """Return the exposure of each secret against random others, for spaces too large to rank.

    `bits` comes from the sample if at least 1% of it is as likely as the secret, else from a skew-normal
    distribution. A sample of equal scores has no such distribution: it shows no more bits than its size
    does.
    """
    require_secrets(secrets)
    _check.count(samples=samples)
    if samples < _FEWEST_TO_FIT:
        raise InvalidParameterError(
            f"samples={samples} are too few to fit a distribution. Use {_FEWEST_TO_FIT} at least."
        )
    drawn = uniform_below(form.size, samples, generator).tolist()
    scores = _scored(log_likelihood, [form.text(secret) for secret in drawn])
    own = _scored(log_likelihood, [form.text(secret) for secret in secrets])
    return [_sampled(float(score), scores, form.size) for score in own]


_SEEN_OFTEN: Final = 0.01  # a share of the sample that is counted rather than extrapolated


def _sampled(own: float, scores: npt.NDArray[np.float64], size: int) -> Exposure:
    tail = (1 + int((scores >= own).sum())) / (1 + len(scores))
    most = math.log2(size)
    fitted = tail < _SEEN_OFTEN and math.isfinite(own) and _spread(scores) > 0
    bits = -log_tail(-own, -scores) / math.log(2) if fitted else -math.log2(tail)
    return Exposure(bits=min(max(0.0, bits), most), tail=tail, compared=len(scores), exact=False)


def log_tail(value: float, sample: npt.NDArray[np.float64]) -> float:
    """Return the log-probability of `value` or less under the skew-normal distribution with the moments of a
    sample.

    >>> normal = stats.norm.ppf(np.arange(0.5, 1000) / 1000)
    >>> round(log_tail(-4.0, normal), 1), round(float(stats.norm.logcdf(-4.0)), 1)
    (-10.4, -10.4)
    """
    finite, stddev = sample[np.isfinite(sample)], _spread(sample)
    if not stddev > 0:
        raise InvalidParameterError(
            "the model finds all sampled texts equally likely, so no distribution can be fitted. Use "
            "exact_exposures."
        )
    shape, place, scale = _skew_normal(float(finite.mean()), stddev, float(stats.skew(finite)))
    z = (value - place) / scale
    # The lower tail by quadrature of the density in logarithms: scipy's cdf is a difference, and rounds to 0.
    steps = (np.arange(2000) + 0.5) / 2000
    reach = max(z, 0.0) + 40.0 / (1 + max(-z, 0.0))  # beyond, the density is below e^-40 of that at z
    below = z - reach * steps
    density = math.log(2) + stats.norm.logpdf(below) + special.log_ndtr(shape * below)
    total = float(np.logaddexp.reduce(density))
    return min(total + math.log(reach / len(steps)), 0.0)


def _spread(sample: npt.NDArray[np.float64]) -> float:
    """Return the standard deviation of the finite scores; 0 if all are equal or none is finite."""
    finite = sample[np.isfinite(sample)]
    return float(finite.std()) if finite.size and np.ptp(finite) > 0 else 0.0  # rounding is no spread


_MOST_SKEW: Final = 0.99  # the law's own limit is 0.9953


def _skew_normal(mean: float, stddev: float, skew: float) -> tuple[float, float, float]:
    """Return shape, place and scale by the method of moments (Azzalini 1985)."""
    skew = float(np.clip(skew, -_MOST_SKEW, _MOST_SKEW))
    part = abs(skew) ** (2 / 3)
    lean = math.sqrt(math.pi / 2 * part / (part + ((4 - math.pi) / 2) ** (2 / 3))) * math.copysign(1, skew)
    scale = stddev / math.sqrt(1 - 2 * lean**2 / math.pi)
    return lean / math.sqrt(1 - lean**2), mean - scale * lean * math.sqrt(2 / math.pi), scale
