# SPDX-License-Identifier: Apache-2.0
"""The `TrainingRun` of a loop that is over: everything that is handed over with the model.

Guarantee  All of it is public: settings, what they cost, noisy weights, and what the ledger says of the run.
           The price is that of all steps that were charged, also where a run was stopped before the last.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sfumato.accounting.price import Price
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.training import distributed
from sfumato.training.engine.contributions import federation_of
from sfumato.training.loop import TrainingLoop
from sfumato.training.payment import Payment
from sfumato.training.record import fingerprints
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.run import TrainingRun
from sfumato.training.run_audit import AuditedRun

__all__ = ["finished_run"]


def finished_run(
    loop: TrainingLoop,
    weights: Mapping[str, Any],
    *,
    price: Price,
    privacy_unit: str,
    rows_note: str | None,
    evaluated: bool,
    audited: AuditedRun | None,
    generator: Generator | None,
    account: Account | None,
    payment: Payment,
    folder: RunFolder | None,
) -> TrainingRun:
    """Return the run of a loop that ended with some weights. All ranks must ask; the first one's count."""
    first = distributed.first_decides
    return TrainingRun(
        model=loop.model,
        mechanism=loop.mechanism,
        price=price,
        privacy_unit=privacy_unit,
        rows_note=rows_note if loop.contributor is None else None,  # the units of a federation are no rows
        expected_batch_size=loop.private.expected_batch_size,
        history=tuple(first(lambda: loop.history)),
        evaluated=evaluated,
        stopped_after=None if loop.step == loop.mechanism.steps else loop.step,
        denoised=loop.remark(),
        federation=None if loop.contributor is None else federation_of(loop.contributor),
        audit=None if audited is None else audited.judge(price.guarantee(privacy_unit)),
        study_note=study_note(generator),
        finished=datetime.now(UTC).date().isoformat(),
        account=None if account is None else account.name,
        reservation=first(lambda: payment.number),
        release_number=first(lambda: payment.release_number),
        record_note=record_note(account),
        settings_sha256=first(lambda: None if folder is None else folder.settings_fingerprint()),
        weights_sha256=first(lambda: fingerprints.fingerprint_of(weights)),
    )
