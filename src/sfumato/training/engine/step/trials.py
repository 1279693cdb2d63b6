# SPDX-License-Identifier: Apache-2.0
"""Permission and noise for steps that are not counted, which only an audit takes, over synthetic rows.

Guarantee  The noise of a trial is drawn for it alone. No two trials share noise, and none uses the noise of a
           step that counts: that noise must not be seen before its step.
Failure    Trials are refused unless the run is audited, and while a step has begun.
"""

from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.noise import NoiseSource

__all__ = ["Trials"]


class Trials:
    """Decides whether trials may be taken, and gives each its noise."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._taken = 0

    def require(self) -> None:
        """Raise unless the run is audited."""
        if not self._allowed:
            raise InvalidParameterError(
                "only an audit takes steps that are not counted, over synthetic rows. Train with "
                "audit=Canaries(...)."
            )

    def begin(self, noise: NoiseSource, *, begun: bool) -> NoiseSource:
        """Return the noise of the next trial; `begun`: a step that counts has begun."""
        self.require()
        if begun:
            raise InvalidParameterError("a step has begun: end it with `finish` before a trial is taken.")
        self._taken += 1
        return noise.forked("trial", self._taken)
