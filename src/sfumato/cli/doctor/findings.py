# SPDX-License-Identifier: Apache-2.0
"""What a check found: its state, in a sentence, and what to do about it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "State", "checked"]


class State(StrEnum):
    """How it is with something."""

    OK = "ok"
    ABSENT = "absent"  # not here, and not needed by everybody
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found."""

    area: str
    name: str
    state: State
    found: str
    advice: str | None = None  # what to do

    def to_dict(self) -> dict[str, Any]:
        """Return the finding for programs."""
        return {
            "area": self.area,
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "advice": self.advice,
        }


def checked(area: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds; one that fails itself is a finding, too, and the others are still made.

    Args:
        area: What it is about.
        check: The check.

    Yields:
        Findings.
    """
    try:
        yield from check()
    except Exception as error:  # of any kind: a broken install must not stop its own diagnosis
        yield Finding(
            area=area,
            name="check",
            state=State.BROKEN,
            found=f"it could not be checked ({type(error).__name__}: {error})",
            advice="Report this, with the output of `sfumato doctor --json`.",
        )
