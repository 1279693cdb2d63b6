# SPDX-License-Identifier: Apache-2.0
"""Noise whose density falls exponentially with the L2 norm: Laplace noise of a vector.

A draw has a direction, uniform on the sphere: Gaussians over their norm; and a norm with the gamma law of
`dimension` stages: a sum of exponentials. Both come from `mechanisms.tensors`, so the bytes are secure by
default. The computation is in float64, up to rounding; callers round what they release (`on_grid`).

Guarantee  Added to a vector that neighbors move by at most `sensitivity` in L2 norm, noise with a density in
           proportion to exp(-|b| / scale) costs sensitivity / scale, with delta 0. In one dimension it is
           Laplace noise.
Source     Chaudhuri, Monteleoni and Sarwate 2011, arXiv:0912.0071, Section 3.
"""

import math

import numpy as np

from sfumato import _check
from sfumato.estimators.base import Floats
from sfumato.mechanisms import arrays
from sfumato.mechanisms.random import Generator

__all__ = ["gaussian_vector", "on_grid", "spherical_laplace"]

_GRID = -40  # as a power of 2, of the size of the noise: finer digits may tell more than the noise hides


def spherical_laplace(dimension: int, *, scale: float, generator: Generator | None = None) -> Floats:
    """Return a vector with density in proportion to exp(-norm / scale).

    >>> spherical_laplace(3, scale=0.5).shape
    (3,)
    """
    _check.count(dimension=dimension)
    _check.positive(scale=scale)
    stages = np.abs(arrays.laplace(dimension, scale=1.0, generator=generator))
    direction = gaussian_vector(dimension, stddev=1.0, generator=generator)
    return scale * float(stages.sum()) * direction / np.linalg.norm(direction)


def gaussian_vector(dimension: int, *, stddev: float, generator: Generator | None = None) -> Floats:
    """Return a vector of independent Gaussians, as float64."""
    return arrays.gaussian(dimension, stddev=stddev, generator=generator)


def on_grid(vector: Floats, *, noise: float) -> Floats:
    """Return a noisy vector, rounded to a public grid of 2^-40 of the size of its noise.

    >>> on_grid(np.array([1 / 3]), noise=2.0**39).tolist()
    [0.5]
    """
    step = 2.0 ** (math.floor(math.log2(noise)) + _GRID)
    return np.rint(vector / step) * step
