# SPDX-License-Identifier: Apache-2.0
"""How large a sum can become: a bound on the probability that a coordinate leaves the range of the modulus.

A sum modulo m is lifted to the range from -m/2 to m/2. A coordinate outside wraps around and is wrong by a
multiple of m. That harms accuracy and never privacy: reducing the noisy sum modulo m is post-processing.

With n clients and D rotated coordinates, a coordinate of the sum is R + E + N:
- R: the rotated sum of clipped updates, in steps. Signs are random and independent of the updates, so R is
  sub-Gaussian (Hoeffding) with variance proxy (n clip_steps)^2 / D, even if all updates are the same.
- E: the errors of rounding, each less than 1, whatever was rounded again: |E| < n.
- N: the noise of n clients. A discrete Gaussian of parameter s is sub-Gaussian with proxy s^2 (Canonne,
  Kamath, Steinke 2020, arXiv:2004.00010). The logarithm of E exp(t X) of a Skellam variable X of variance
  s^2 is s^2 (cosh t - 1).
For each t > 0 (Chernoff), P(|R + N| >= a) <= 2 exp(log E exp(t (R + N)) - t a), and D coordinates add up.

Guarantee  `log_wrap_probability` is an upper bound, whichever t it chooses. It holds for updates that do not
           depend on the signs of their round.
"""

import math

__all__ = ["log_wrap_probability"]

_LARGEST_T = 20.0  # cosh of it is far from overflowing; any t gives a bound
_NEWTON_STEPS = 40


def log_wrap_probability(
    *, modulus: int, clients: int, clip_steps: float, size: int, noise_variance: float, skellam: bool
) -> float:
    """Return a bound on the logarithm of the probability that any coordinate of a sum wraps around.

    Args:
        modulus: The modulus of the sum.
        clients: The most clients whose vectors are in the sum.
        clip_steps: The clip norm in steps of the integer grid.
        size: How many coordinates a rotated vector has.
        noise_variance: The variance parameter of one client's noise, in steps squared.
        skellam: Whether the noise is Skellam; otherwise it is discrete Gaussian.

    Returns:
        The logarithm, at most 0.

    >>> log_wrap_probability(modulus=2**16, clients=100, clip_steps=3000.0, size=2**17,
    ...                      noise_variance=300.0**2, skellam=False) < math.log(1e-9)
    True
    """
    room = modulus / 2 - clients - 1
    if not room > 0:
        return 0.0
    spread = (clients * clip_steps) ** 2 / size
    noise = clients * noise_variance
    t = _best(room, spread, noise, skellam)
    grown = noise * (math.cosh(t) - 1.0) if skellam else noise * t * t / 2
    return min(0.0, math.log(2.0 * size) + spread * t * t / 2 + grown - t * room)


def _best(room: float, spread: float, noise: float, skellam: bool) -> float:
    """Return the t at which the bound is least, or near it."""
    t = min(room / (spread + noise), _LARGEST_T)
    if skellam:
        for _ in range(_NEWTON_STEPS):  # a convex function, from the right of its root
            t -= (spread * t + noise * math.sinh(t) - room) / (spread + noise * math.cosh(t))
    return max(t, 0.0)
