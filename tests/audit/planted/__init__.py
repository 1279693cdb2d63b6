# SPDX-License-Identifier: Apache-2.0
"""The catalogue of planted bugs: what a programmer gets wrong, put where it would go wrong in our code.

Each entry patches the library and names what must find it, one of the library's own. All are found with
default settings. Where the self-check refuses a model before any attack can, `unchecked` is a second proof.

canaries             gradient canaries in one training run, and checks beside them (`audit.runs.canaries`)
one-run scores       the same bound for scores of a step that is taken by hand (`audit.evidence.one_run`)
event search         many runs on two neighbors, and an event that tells them apart (`mechanism_attack`)
exact laws           all outcomes with their probabilities (`audit.mechanisms.exact_discrete`)
replay on neighbors  the same noise, and what reaches it (`audit.mechanisms.replay`)
order of payment     data that tells when it is read, beside its account (`audit.mechanisms.payment_order`)
budget count         an account that is asked until it refuses (`audit.mechanisms.payment_order`)
uniform sampling     answers of units with too many rows, beside those of rows drawn uniformly from each
self-check           a fast engine beside a loop over synthetic rows (`training.engine.self_check`)
records              results for one charge, marks, and what is stated of charges (`ledger_records`)
"""

from . import (
    federations,
    fresh,
    generators,
    gradients,
    kept,
    ledger,
    loops,
    mechanisms,
    models,
    poison,
    rows,
    runs,
    selections,
    server_views,
    statistics,
    steps,
    synthesis,
    training,
    votes,
)
from .catalogue import Planted

__all__ = ["CATALOGUE", "Planted"]

CATALOGUE: tuple[Planted, ...] = (
    *training.BUGS,
    *steps.BUGS,
    *fresh.BUGS,
    *gradients.BUGS,
    *kept.BUGS,
    *rows.BUGS,
    *loops.BUGS,
    *mechanisms.BUGS,
    *selections.BUGS,
    *votes.BUGS,
    *statistics.BUGS,
    *generators.BUGS,
    *synthesis.BUGS,
    *poison.BUGS,
    *models.BUGS,
    *ledger.BUGS,
    *runs.BUGS,
    *federations.BUGS,
    *server_views.BUGS,
)
