# SPDX-License-Identifier: Apache-2.0
"""Seeded generators, for study and tests only.

A run with seeded noise does not protect anyone: everyone who knows the seed can subtract the noise. The
generator made here is marked as seeded (`.seeded`), and its releases are marked "for study only: the noise
was seeded".
"""

from sfumato.mechanisms.random import SeededGenerator

__all__ = ["seeded"]


def seeded(seed: int) -> SeededGenerator:
    """Return a generator whose noise is the same on every run and platform.

    Args:
        seed: The seed, a whole number.

    Returns:
        The generator.

    >>> from sfumato.mechanisms.random import words
    >>> int(words(1, seeded(0))[0]) == int(words(1, seeded(0))[0])
    True
    """
    return SeededGenerator(seed)
