# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `PrivateGradients`.

Failure    Arguments that contradict each other raise `InvalidParameterError`, before any row is read.
"""

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training.privacy.noise import NoiseSource

__all__ = ["check_settings", "check_units"]


def check_settings(
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    microbatch_size: int | None,
    recorded: bool,
    projections: int | None,
    generator: Generator | None,
    noise: NoiseSource | None,
) -> None:
    """Raise if arguments are out of range, or exclude each other. `recorded`: passes are recorded."""
    _check.positive(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size)
    if microbatch_size is not None:
        _check.count(microbatch_size=microbatch_size)
    if recorded and projections is not None:
        raise InvalidParameterError(
            "projections are drawn anew at each step, so passes cannot be recorded. Leave cuda_graphs and "
            "compile out."
        )
    if noise is not None and generator is not None:
        raise InvalidParameterError("a noise source has a generator of its own: leave one of the two out.")


def check_units(count: int, rows_per_unit: int) -> None:
    """Raise unless `count` rows are whole units."""
    _check.count(rows_per_unit=rows_per_unit)
    if count % rows_per_unit:
        raise InvalidParameterError(
            f"a batch must hold whole units of rows_per_unit={rows_per_unit} rows. Pad each unit to that "
            "many rows, with row_weights of 0 for the padding."
        )
