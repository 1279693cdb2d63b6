# SPDX-License-Identifier: Apache-2.0
"""Seeds, for study and tests only.

A run whose noise is seeded protects nobody: whoever knows the seed subtracts the noise. The generator made
here says so of itself (`.seeded`), and what is released with it is marked "for study only: the noise was
seeded".
"""

from sfumato.mechanisms.random import SeededGenerator

__all__ = ["seeded"]


def seeded(seed: int) -> SeededGenerator:
    """Return a generator whose noise is the same on every run and platform.

    >>> from sfumato.mechanisms.random import words
    >>> int(words(1, seeded(0))[0]) == int(words(1, seeded(0))[0])
    True
    """
    return SeededGenerator(seed)
