# SPDX-License-Identifier: Apache-2.0
"""Mechanisms that add calibrated noise, each with the event that describes it."""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names
from sfumato.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from sfumato.mechanisms.random import FastGenerator, Generator, SecureGenerator, study_note
from sfumato.mechanisms.randomized_response import Encoding, RandomizedResponse, UnaryEncoding
from sfumato.mechanisms.selection import Exponential, IntervalExponential, NoisyMax, PermuteAndFlip
from sfumato.mechanisms.sensitivity import ProposeTestRelease, SmoothMedian
from sfumato.mechanisms.sparse_vector import AboveThreshold, AnswersSpentError, SparseVector

if TYPE_CHECKING:
    from sfumato.mechanisms.discrete import (
        GridGaussian,
        Rounded,
        discrete_gaussian,
        discrete_laplace,
        quantize,
    )
    from sfumato.mechanisms.tensors import (
        add_gaussian_,
        add_gaussian_many_,
        add_laplace_,
        gaussian,
        laplace,
    )

__all__ = [
    "AboveThreshold",
    "AnswersSpentError",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Encoding",
    "Exponential",
    "FastGenerator",
    "Gaussian",
    "Generator",
    "GridGaussian",
    "IntervalExponential",
    "Laplace",
    "NoisyMax",
    "PermuteAndFlip",
    "ProposeTestRelease",
    "RandomizedResponse",
    "Rounded",
    "SecureGenerator",
    "SmoothMedian",
    "SparseVector",
    "UnaryEncoding",
    "add_gaussian_",
    "add_gaussian_many_",
    "add_laplace_",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "laplace",
    "quantize",
    "study_note",
]

# What works on tensors; torch is imported when one of these is used.
_HOMES = {
    "GridGaussian": "discrete",
    "Rounded": "discrete",
    "add_gaussian_": "tensors",
    "add_gaussian_many_": "tensors",
    "add_laplace_": "tensors",
    "discrete_gaussian": "discrete",
    "discrete_laplace": "discrete",
    "gaussian": "tensors",
    "laplace": "tensors",
    "quantize": "discrete",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
