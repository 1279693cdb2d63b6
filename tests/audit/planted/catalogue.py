# SPDX-License-Identifier: Apache-2.0
"""What an entry of the catalogue is: a bug, how it is planted, and the attack that must find it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sfumato.audit.mechanisms.neighbor_distances import LeakError

__all__ = ["CONFIDENCE", "Planted", "leaks"]

CONFIDENCE = 1 - 1e-4  # of each attack: 200 clean runs raise a false alarm with chance below 2%


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A privacy bug of our own code, planted on purpose.

    `plant` patches the library; `audit(seed)` uses the library as it is then, with default settings, and
    returns whether the bug shows: an attack refutes the claim, or the self-check refuses a model that is
    right. Where it may be the self-check, `unchecked(seed)` is one more proof: with the self-check switched
    off, an attack refutes the claim.
    """

    name: str
    bug: str  # what went wrong, in a sentence
    found_by: str  # the tool that finds it
    plant: Callable[[pytest.MonkeyPatch], None]
    audit: Callable[[int], bool]
    unchecked: Callable[[int], bool] | None = None


def leaks(check: Callable[[], object]) -> bool:
    """Whether a check that raises `LeakError` does."""
    try:
        check()
    except LeakError:
        return True
    return False
