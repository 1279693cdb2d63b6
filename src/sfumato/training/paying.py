# SPDX-License-Identifier: Apache-2.0
"""How a run is paid for: the whole of it, before data is touched, once.

Guarantee  `reserve` charges all steps of the run or raises with nothing spent; `begin` comes before the first
           row is read; an exception after it leaves the run spent. A resumed run goes on under the
           reservation that its checkpoint names, which must be of the same event and not be committed: it is
           charged once, and finished once.
Without    Where there is no account, every step here does nothing: the run carries its guarantee, and nothing
           is recorded.
"""

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account, Reservation
from sfumato.ledger.state import Progress
from sfumato.training.checkpoint import CheckpointError
from sfumato.training.mechanism import DpSgd

__all__ = ["Payment"]


class Payment:
    """The ledger's side of one run."""

    def __init__(
        self, account: Account | None, mechanism: DpSgd, *, purpose: str | None, seeded: bool
    ) -> None:
        if account is not None and purpose is None:
            raise InvalidParameterError("an account keeps a purpose with every release: say purpose='...'.")
        if account is None and purpose is not None:
            raise InvalidParameterError(
                "a purpose is written into an account, but none was given: say account=..."
            )
        self._account, self._mechanism = account, mechanism
        self._purpose, self._seeded = purpose or "", seeded
        self._reservation: Reservation | None = None

    @property
    def number(self) -> int | None:
        """The reservation, once there is one."""
        return None if self._reservation is None else self._reservation.number

    def reserve(self) -> int | None:
        """Charge the whole run; return the number of its reservation."""
        if self._account is not None:
            self._reservation = self._account.reserve(
                self._mechanism, purpose=self._purpose, seeded=self._seeded
            )
        return self.number

    def refund(self) -> None:
        """Give back what was charged: nothing was computed yet."""
        if self._reservation is not None:
            self._reservation.refund()

    def begin(self) -> None:
        """Record that data may be touched."""
        if self._reservation is not None:
            self._reservation.begin()

    def resume(self, number: int | None) -> None:
        """Take up the reservation that a checkpoint names; no second charge."""
        if self._account is None or number is None:
            return
        self._reservation = self._account.reservation(number)
        release = self._reservation.release
        if release.event_json != events.to_json(self._mechanism.event()):
            raise CheckpointError(
                f"reservation {number} of account {self._account.name!r} is for another event than this "
                "run's. Use the ledger that the run was charged to."
            )
        if release.progress is Progress.RESERVED:  # the crash came before any data was touched
            self._reservation.begin()
        elif release.progress is not Progress.BEGUN:
            raise CheckpointError(
                f"reservation {number} of account {self._account.name!r} is {release.progress.value}: the "
                "run is finished (its weights are in model.pt) or was given back. A new run needs a charge "
                "of its own."
            )

    def commit(self) -> None:
        """Record that the trained model left."""
        if self._reservation is not None:
            self._reservation.commit()
