# SPDX-License-Identifier: Apache-2.0
"""Sentences about noise and numbers that the cards of several rooms share."""

from importlib.metadata import version

__all__ = [
    "COST_IN_FLOATS",
    "FLOAT_TENSORS",
    "GENERATOR",
    "INTEGER_SUMS",
    "STUDY",
    "TUNING_NOT_CHARGED",
    "WHOLE_NUMBERS",
    "code_version",
    "noise_source",
]

STUDY = "for study only"  # how each note about noise that does not protect begins
COST_IN_FLOATS = (
    "The cost was computed in float64, in which every approximation errs towards a larger epsilon."
)
FLOAT_TENSORS = (
    "Gradients, clipping and noise are floating-point tensors: bounds hold up to rounding, and noise has the "
    "stated distribution up to rounding, so its last bits are not exact."
)
INTEGER_SUMS = (
    "Clipping is floating point, up to rounding. Sums and noise are whole numbers, and the noise has exactly "
    "the stated distribution."
)
TUNING_NOT_CHARGED = "It covers this run alone: hyper-parameter tuning is not charged."
WHOLE_NUMBERS = (
    "Sums and counts get whole-number noise of exactly the stated distribution. Other single numbers get "
    "noise on a grid finer than any float, and are rounded afterwards."
)
GENERATOR = "the generator, with everything that it draws"
_SECURE = "The noise comes from a cryptographic generator that the operating system's entropy keys."


def noise_source(study_note: str | None) -> str:
    """Return where noise came from.

    >>> noise_source("for study only: the noise was seeded")
    'For study only: the noise was seeded.'
    """
    return _SECURE if study_note is None else f"{study_note[:1].upper()}{study_note[1:]}."


def code_version() -> str:
    """Return the version of sfumato."""
    return version("sfumato")
