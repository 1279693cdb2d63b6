# SPDX-License-Identifier: Apache-2.0
"""Which process may continue a run: the checkpoints of a run form one line, whatever was copied or restored.

Guarantee  Every checkpoint carries a claim, a fresh random text. It becomes visible (`checkpoint.pt`, the
           metrics, the weights in memory) only after the ledger has stored its claim in place of the one
           before, in one transaction. So a checkpoint that the ledger does not know as the last one cannot be
           continued: neither a second copy of a folder, nor an old backup of it, nor a process that was
           stopped and resumed after another one continued. One charge gives one line of weights.
Edge cases A process may be killed between any two steps of `publish`. The next checkpoint is then on disk,
           under another name. If the ledger stored its claim, the run continues from it; otherwise from the
           one before it, whose later steps were never seen.
Not here   Without an account, two copies of a folder share no record, so both may be continued. Each has the
           guarantee that its report states, as two runs would, and both together cost what two runs cost.
           Within one folder the file `claim` still refuses a checkpoint that is not its last.
"""

import os
from collections.abc import Mapping
from typing import Any

from sfumato.errors import ClaimedElsewhereError
from sfumato.training.payment import Payment
from sfumato.training.record.run_folder import CheckpointError, RunFolder

__all__ = ["RunOwnership"]


class RunOwnership:
    """The line of one run's checkpoints. One process at a time has it, the first of all ranks."""

    def __init__(self, payment: Payment, folder: RunFolder) -> None:
        self._payment, self._folder = payment, folder
        self._known = ""
        self.held = False  # whether the checkpoint in the folder is one of this run's line

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Write the first checkpoint of a run that has not begun, and see that it can be read."""
        self._known = _fresh()
        if not self._payment.charged:
            self._folder.write_claim(self._known)
        self._folder.save({**state, "claim": self._known})
        self._folder.load()  # what could not be read later must be known now

    def begin(self) -> None:
        """Record that data may be touched, and that the first checkpoint is the last one known."""
        self._payment.begin(claim=self._known)
        self.held = True

    def published(self) -> dict[str, Any] | None:
        """Return the last checkpoint of this run; None where there is none, or it is another rank's."""
        return self._folder.load() if self.held else None

    def publish(self, state: Mapping[str, Any]) -> None:
        """Put a checkpoint in the place of the last one, unless another continuation did so before."""
        claim = _fresh()
        self._folder.write_next({**state, "claim": claim})
        try:
            self._exchange(claim)
        except (ClaimedElsewhereError, CheckpointError):
            self._folder.next.unlink(missing_ok=True)  # these steps belong to no line of checkpoints
            raise
        self._folder.promote()
        self._known = claim

    def _exchange(self, claim: str) -> None:
        if self._payment.charged:
            self._payment.claim(claim, known=self._known)
        else:
            self._folder.exchange_claim(claim, known=self._known)

    def find(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state to go on from: the checkpoint, or the next one, if its claim was taken already."""
        if not self._payment.begun:
            return state
        last = self._payment.last_claim if self._payment.charged else self._folder.read_claim()
        if state.get("claim", "") == last:
            return state
        following = self._folder.load_next()
        if following is None or following.get("claim", "") != last:
            raise CheckpointError(
                f"the checkpoint in {str(self._folder.path)!r} is not the last one of its run: the run went "
                "on in another copy of the folder, or the folder was restored from an older one. Two "
                "continuations would be two models for one charge. Continue where it went on, or start a "
                "new run, with a charge of its own."
            )
        self._folder.promote()
        return following

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Take the run over: from here on no other copy of `state` can be continued."""
        self._known = state.get("claim", "")
        if self._payment.begun:
            self.publish(state)
        else:  # it was charged, and died before it began
            self.prepare(state)
            self._payment.begin(claim=self._known)
        self.held = True

    def commit(self) -> None:
        """Record that the result leaves; refused if another continuation has the claim."""
        self._payment.commit(claim=self._known)


def _fresh() -> str:
    return os.urandom(16).hex()
