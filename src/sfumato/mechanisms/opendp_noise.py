# SPDX-License-Identifier: Apache-2.0
"""Laplace and Gaussian noise drawn by OpenDP, on a grid finer than any float64.

Not here   What a release costs: `mechanisms.additive` compares OpenDP's privacy map with the ideal loss.
"""

from functools import lru_cache
from typing import Any

__all__ = ["charged", "gaussian", "laplace"]

_ROUNDING = 1e-9  # a privacy map this close to the ideal loss differs from it by rounding alone


def charged(ideal: float, mapped: float) -> float:
    """Return the larger of the ideal privacy loss and the one that OpenDP proves, rounding aside."""
    return ideal if mapped <= ideal * (1 + _ROUNDING) else mapped


def _space(kind: str) -> tuple[Any, ...]:
    # Heavy to import, and its flag is process-wide: only when noise is wanted.
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    domain = domains.atom_domain(T=kind, nan=False) if kind == "f64" else domains.atom_domain(T=kind)
    return measurements, domain, metrics.absolute_distance(T=kind)


@lru_cache(maxsize=64)
def laplace(kind: str, scale: float) -> Any:
    """Return the measurement that adds Laplace noise to a number of type `kind`."""
    make, domain, metric = _space(kind)
    return make.make_laplace(domain, metric, scale=float(scale))


@lru_cache(maxsize=64)
def gaussian(kind: str, stddev: float) -> Any:
    """Return the measurement that adds Gaussian noise to a number of type `kind`."""
    make, domain, metric = _space(kind)
    return make.make_gaussian(domain, metric, scale=float(stddev))
