# SPDX-License-Identifier: Apache-2.0
"""How a run is paid for: the whole of it, before data is touched, once.

Guarantee  `reserve` charges all steps of the run or raises with nothing spent; `begin` comes before the first
           row is read; an exception after it leaves the run spent. A resumed run goes on under the
           reservation that its checkpoint names, which must be of the same event: it is charged once, and
           continued from its last claim alone (`run_ownership`). `commit` comes before anything is
           returned.
Edge cases The price of a run on sums that the server sees is that against those who see the models. What
           holds against the server is written beside its purpose.
           Without an account every step here does nothing: the run carries its guarantee, and says that it
           was not recorded (`ledger.recorded`).
"""

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.state import Progress
from sfumato.mechanisms.random import Generator
from sfumato.training.description import Charge
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.record.run_folder import CheckpointError

__all__ = ["Payment"]


class Payment:
    """The ledger's side of one run."""

    def __init__(
        self, charge: Charge, mechanism: DpSgd, *, generator: Generator | None, delta: float | None = None
    ) -> None:
        if charge.account is not None and charge.purpose is None:
            raise InvalidParameterError("an account keeps a purpose with every release: pass purpose='...'.")
        if charge.account is None and charge.purpose is not None:
            raise InvalidParameterError(
                "a purpose is written into an account, but none was given: pass account=..."
            )
        self._account, self._mechanism = charge.account, mechanism
        self._purpose, self._generator = charge.purpose or "", generator
        self._delta = delta
        self._reservation: Reservation | None = None

    @property
    def charged(self) -> bool:
        """Whether a ledger keeps the run."""
        return self._account is not None

    @property
    def number(self) -> int | None:
        """The reservation, once there is one."""
        return None if self._reservation is None else self._reservation.number

    @property
    def release_number(self) -> int | None:
        """Its place among the account's releases, as statements print it."""
        return None if self._reservation is None else self._reservation.release_number

    @property
    def begun(self) -> bool:
        """Whether data may have been touched already."""
        return self._reservation is None or self._reservation.release.progress is not Progress.RESERVED

    @property
    def committed(self) -> bool:
        """Whether the ledger has the run as finished."""
        return self._reservation is not None and self._reservation.release.progress is Progress.COMMITTED

    @property
    def last_claim(self) -> str:
        """The claim that the ledger knows as the last one; that of the checkpoint, before anything began."""
        return "" if self._reservation is None else self._reservation.release.claim

    def reserve(self) -> int | None:
        """Charge the whole run; return the number of its reservation."""
        if self._account is not None:
            self._reservation = self._account.reserve(
                self._mechanism, purpose=self._told(self._account), generator=self._generator
            )
        return self.number

    def _told(self, account: Account) -> str:
        """Return the purpose, and against whom the price is one, where that is not everybody."""
        server = None if self._delta is None else self._mechanism.price_against_server(delta=self._delta)
        if server is None:
            return self._purpose
        against = server.guarantee(account.privacy_unit)
        return f"{self._purpose} [against those who see the models; against the server: {against}]"

    def refund(self) -> None:
        """Give back what was charged: nothing was computed yet."""
        if self._reservation is not None:
            self._reservation.refund()

    def begin(self, *, claim: str = "") -> None:
        """Record that data may be touched."""
        if self._reservation is not None:
            self._reservation.begin(claim=claim)

    def claim(self, claim: str, *, known: str) -> None:
        """Exchange the claim of the run; refused where `known` is not the last one."""
        if self._reservation is not None:
            self._reservation.claim(claim, known=known)

    def resume(self, number: int | None, *, finished: bool) -> None:
        """Take up the reservation that a checkpoint names; no second charge.

        `finished` says that the checkpoint is of the last step. Then the release may be committed already:
        what is left to do is to hand over what was paid for.
        """
        if self._account is None or number is None:
            return
        self._reservation = self._account.reservation(number)
        release = self._reservation.release
        if release.event_json != events.to_json(self._mechanism.event()):
            raise CheckpointError(
                f"reservation {number} of account {self._account.name!r} is for another event than this "
                "run's. Use the ledger that the run was charged to."
            )
        handing_over = release.progress is Progress.COMMITTED and finished and release.claim != ""
        if release.progress not in (Progress.RESERVED, Progress.BEGUN) and not handing_over:
            raise CheckpointError(
                f"reservation {number} of account {self._account.name!r} is {release.progress.value}: the "
                "run is finished (its weights are in model.pt) or was given back. A new run needs a charge "
                "of its own."
            )

    def commit(self, *, claim: str = "") -> None:
        """Record that the trained model leaves."""
        if self._reservation is not None:
            self._reservation.commit(claim=claim)
