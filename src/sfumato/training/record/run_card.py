# SPDX-License-Identifier: Apache-2.0
"""The privacy card of a training run: the facts of the run, in the words of its statement.

Guarantee  Everything on the card was released or public before: no loss on private rows, no size of a batch,
           no duration. The fingerprint is that of the weights with which the run ended; a model that was
           changed afterwards is reported.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sfumato.accounting.guarantee import Guarantee
from sfumato.report.cards import words as card_words
from sfumato.report.cards.card import CardAudit, PrivacyCard
from sfumato.training.distributed import is_sharded
from sfumato.training.record import fingerprints, mechanism_words

if TYPE_CHECKING:
    from sfumato.training.run import TrainingRun

__all__ = ["ALL_WEIGHTS", "CHANGED", "EVALUATION", "card_of"]

ALL_WEIGHTS = "the model, with its weights after every step"
EVALUATION = "Loss and accuracy are exact figures on evaluation data, which is not protected."
CHANGED = (
    "The model in memory has other weights than the run ended with. The card covers the weights of the run; "
    "whatever changed them is not covered."
)


def card_of(run: "TrainingRun", *, title: str | None, model: str) -> PrivacyCard:
    """Return the card of a run; `model` describes the model in a few words."""
    return PrivacyCard(
        title=model if title is None else title,
        released=ALL_WEIGHTS,
        guarantee=run.guarantee,
        theorem=run.price.theorem,
        accountant=run.price.accountant.value,
        further=_further(run.against_server),
        mechanism=tuple(_mechanism(run)),
        tuning_charged=False,
        numerics=_numerics(run),
        study_note=run.study_note,
        audit=CardAudit.of(run.audit),
        account=run.account,
        release_number=run.release_number,
        record_note=run.record_note,
        not_protected=tuple(_not_protected(run)),
        facts={"model": model, f"noisy {run.words.step}s": run.mechanism.steps},
        statement=run.statement(),
        weights_sha256=run.weights_sha256,
        code_version=run.code_version,
        finished=run.finished,
    )


def _further(against_server: Guarantee | None) -> Mapping[str, Guarantee]:
    return {} if against_server is None else {"against the server": against_server}


def _mechanism(run: "TrainingRun") -> Iterator[str]:
    yield run.words.trained(run.mechanism.steps)
    yield from mechanism_words.told(
        run.mechanism, unit=run.privacy_unit, divided_by=run.expected_batch_size, words=run.words
    )
    yield from (note for note in (run.rows_note, run.denoised) if note is not None)


def _numerics(run: "TrainingRun") -> tuple[str, ...]:
    whole = run.mechanism.step.summation is not None
    sums = card_words.INTEGER_SUMS if whole else card_words.FLOAT_TENSORS
    return (card_words.noise_source(run.study_note), sums, card_words.COST_IN_FLOATS)


def _not_protected(run: "TrainingRun") -> Iterator[str]:
    if run.evaluated:
        yield EVALUATION
    if _changed(run):
        yield CHANGED


def _changed(run: "TrainingRun") -> bool:
    weights = run.model.state_dict()
    if run.weights_sha256 is None or any(map(is_sharded, weights.values())):  # no rank has all of them
        return False
    return fingerprints.fingerprint_of(weights) != run.weights_sha256
