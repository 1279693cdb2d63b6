# SPDX-License-Identifier: Apache-2.0
"""How far a neighbor moves a release, for noise that no mechanism of ours adds.

With the same randomness additive noise cancels, so the outputs differ by what the neighbor moved before the
noise. Rounding in the type of the outputs is allowed for.

Guarantee  A release that a neighbor moves by more than the stated sensitivity is found, on this pair.
Failure    It refuses to judge if rounding is more than 1% of the sensitivity, or if the release answers
           differently on the same data: then its noise comes from elsewhere.
Edge cases Messages state how far a neighbor moved a release, so use invented data, never data of people.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato._containers import parts
from sfumato._torch import is_tensor
from sfumato.audit.mechanisms.neighbor_distances import SLACK, LeakError
from sfumato.audit.mechanisms.outputs import read
from sfumato.audit.mechanisms.releases import (
    by_the_neighbor,
    data_of_its_own,
    require_repeatable,
    require_two_arguments,
    twins,
)
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator

__all__ = ["check_sensitivity"]

Release = Callable[[Any, Generator], Any]  # data and generator to what leaves

_ROUNDED = 8  # times: a number and its noise are added, clipped, scaled and divided, each of which rounds
_MOST_ROUNDED = 0.01  # of the sensitivity: more could hide what is looked for


def check_sensitivity(
    release: Release,
    data: Any,
    neighbor: Any,
    *,
    sensitivity: float,
    order: float = 2.0,
    generator: Generator | None = None,
) -> float:
    """Measure how far a neighbor moves a release with the same randomness.

    Noise must be added, and drawn from the generator in a way that does not depend on the data. Return
    numbers in the type in which they were computed.

    Args:
        release: Called as `release(data, generator)`; returns numbers.
        data: Invented data.
        neighbor: A neighbor of it.
        sensitivity: The stated sensitivity.
        order: The order of its norm: 1, 2 or `math.inf`.
        generator: A seeded generator, the same for both runs. None is `seeded(0)`.

    Returns:
        The distance of the two outputs.

    Raises:
        LeakError: If the distance exceeds the sensitivity, or the outputs have different shapes.
        InvalidParameterError: If the generator is not seeded, or rounding could hide more than 1% of the
            sensitivity.

    >>> from sfumato.mechanisms import gaussian
    >>> def noisy_sum(rows, generator):
    ...     return rows.sum(axis=0) + gaussian((2,), stddev=1.0, generator=generator).numpy()
    >>> rows = np.array([[0.6, 0.8], [0.0, 1.0]])
    >>> round(check_sensitivity(noisy_sum, rows, rows[:1], sensitivity=1.0), 6)
    1.0
    """
    _check.positive(sensitivity=sensitivity, order=1.0 if order == np.inf else order)
    require_two_arguments(release)
    generators = twins(generator)
    once, again = (release(data_of_its_own(data), next(generators)) for _ in range(2))
    if not _close(once, again, within=_MOST_ROUNDED * sensitivity, order=order):
        require_repeatable(once, again)
    outputs = once, by_the_neighbor(release, data_of_its_own(neighbor), next(generators))
    one, two = (read([output]) for output in outputs)
    if one.kinds != two.kinds:
        raise LeakError("the outputs have different shapes: a neighbor changes more than numbers")
    with np.errstate(invalid="ignore"):  # the difference of infinities is none, and is not within
        moved = _norm(one.rows[0] - two.rows[0], order)
    rounding = max(_unit(output) for output in outputs) * (_norm(one.rows[0], order) + sensitivity)
    if not (math.isfinite(moved) and moved <= sensitivity * (1 + SLACK) + rounding):
        raise LeakError(
            f"a neighbor moves the output by {moved:g}, but the stated sensitivity is {sensitivity:g}"
        )
    _require_precision(rounding, sensitivity)
    return moved


def _close(once: Any, again: Any, *, within: float, order: float) -> bool:
    """Return whether two answers on the same data differ by so little that it hides nothing."""
    one, two = (read([output]) for output in (once, again))
    if one.kinds != two.kinds:
        return False
    with np.errstate(invalid="ignore"):
        return _norm(one.rows[0] - two.rows[0], order) <= within


def _norm(numbers: npt.NDArray[np.float64], order: float) -> float:
    return float(np.linalg.norm(numbers, ord=order)) if numbers.size else 0.0


def _unit(output: Any) -> float:
    """Return the rounding error of 1 in the coarsest number type of an output."""
    inner = parts(output)
    if inner:
        return max(_unit(part) for part in inner)
    return _ROUNDED * _epsilon(output)


def _epsilon(output: Any) -> float:
    """Return the distance from 1 to the next number of its type: float64's for all that are not floating."""
    kind: Any = getattr(output, "dtype", None)
    if is_tensor(output) and kind.is_floating_point:
        import torch

        return float(torch.finfo(kind).eps)
    floating = kind if getattr(kind, "kind", None) == "f" else np.float64
    return float(np.finfo(cast("Any", floating)).eps)


def _require_precision(rounding: float, sensitivity: float) -> None:
    if not rounding <= _MOST_ROUNDED * sensitivity:
        raise InvalidParameterError(
            f"outputs as large as these are rounded by up to {rounding:g} in their type, which could hide "
            f"more than {_MOST_ROUNDED:.0%} of a sensitivity of {sensitivity:g}. Return float64, or smaller "
            "numbers."
        )
