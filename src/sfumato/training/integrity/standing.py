# SPDX-License-Identifier: Apache-2.0
"""How far a run got, and what is said of it at the error that stopped it.

Guarantee  The note holds the number of steps of the last checkpoint, which is public, and nothing else of the
           run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Standing"]


@dataclass(slots=True)
class Standing:
    """Whether a run has begun, and whether its result was released.

    Attributes:
        kept: Whether the run has a folder.
        charged: Whether an account pays.
        resuming: What a caller continues a run with.
        begun: Whether private rows may have been touched.
        settled: Whether its result may leave.

    >>> standing = Standing(kept=True, charged=True, resuming="resume=True", begun=True)
    >>> standing.note({"step": 6})
    'Stopped. The model is back at step 6, that of the last checkpoint; the charge stays. Continue with ...'
    """

    kept: bool
    charged: bool
    resuming: str
    begun: bool = False
    settled: bool = False

    def note(self, state: Mapping[str, Any] | None) -> str | None:
        """Return what is said of a run that stopped; None before it began.

        Args:
            state: The checkpoint that the model went back to; None if it went back to the start.

        Returns:
            The note.
        """
        if not self.begun:
            return None
        charge = "; the charge stays" if self.charged else ""
        if self.settled:
            rest = (
                f" Files of the run that are missing are written with {self.resuming}." if self.kept else ""
            )
            return f"Stopped. All steps were taken: the model has the weights of the run{charge}.{rest}"
        if state is not None:
            where = f"back at step {state['step']}, that of the last checkpoint{charge}"
            return f"Stopped. The model is {where}. Continue with {self.resuming}."
        rest = "" if self.kept else " A run that keeps checkpoints can be continued."
        return f"Stopped. The model is what it was before the run{charge}.{rest}"
