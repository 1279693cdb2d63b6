# SPDX-License-Identifier: Apache-2.0
import json
import math

import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.audit.evidence.results import AuditResult, LowerBound
from sfumato.errors import InvalidParameterError

CLAIM = Guarantee(epsilon=1.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="row")


def bound(epsilon, delta=1e-5):
    return LowerBound(epsilon=epsilon, delta=delta, confidence=0.95, attack="guesses", trials=10)


def test_a_claim_is_refuted_by_a_larger_bound_and_by_no_other():
    found = AuditResult(subject="noise", claim=CLAIM, bounds=(bound(0.5), bound(1.0)))
    assert not found.refuted and found.best.epsilon == 1.0
    assert "do not contradict" in found.statement()
    broken = AuditResult(subject="noise", claim=CLAIM, bounds=(bound(0.5), bound(1.01)))
    assert broken.refuted and "THE CLAIM IS FALSE" in broken.statement()
    assert AuditResult(subject="noise", claim=CLAIM, bounds=(bound(math.inf),)).refuted


def test_what_claims_nothing_is_not_refuted():
    found = AuditResult(subject="plain training", claim=None, bounds=(bound(9.0),))
    assert not found.refuted and "claims nothing" in found.statement()


def test_a_bound_at_a_smaller_delta_is_none_against_the_claim():
    with pytest.raises(InvalidParameterError, match="smaller delta"):
        AuditResult(subject="noise", claim=CLAIM, bounds=(bound(2.0, delta=0.0),))
    with pytest.raises(InvalidParameterError, match="at least one"):
        AuditResult(subject="noise", claim=CLAIM, bounds=())
    for epsilon in (-math.inf, -1.0, math.nan):
        with pytest.raises(InvalidParameterError, match="epsilon"):
            bound(epsilon)


def test_an_audit_survives_being_written_down():
    found = AuditResult(
        subject="noise", claim=CLAIM, bounds=(bound(0.5),), in_scores=(1.0, 2.0), out_scores=(0.0,)
    )
    assert AuditResult.from_dict(found.to_dict(), CLAIM) == found


def test_infinite_scores_and_bounds_survive_as_json():
    found = AuditResult(
        subject="noise",
        claim=CLAIM,
        bounds=(bound(math.inf),),
        in_scores=(math.inf, 1.0),
        out_scores=(-math.inf,),
    )
    text = json.dumps(found.to_dict(), allow_nan=False)  # which JSON itself has no words for
    assert AuditResult.from_dict(json.loads(text), CLAIM) == found


@pytest.mark.parametrize(
    ("epsilon", "told"),
    [(2.9979, "2.99"), (2.99, "2.99"), (0.99999, "0.999"), (123.9, "123"), (0.0, "0"), (math.inf, "inf")],
)
def test_a_bound_is_shown_rounded_down(epsilon, told):
    assert bound(epsilon).told == told
    assert f"at least {told} at" in str(bound(epsilon))


def test_a_bound_below_the_claim_is_not_shown_above_it():
    claim = Guarantee(epsilon=2.998, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="row")
    said = AuditResult(subject="noise", claim=claim, bounds=(bound(2.9979),)).statement()
    assert "claims epsilon 2.998 at" in said and "at least 2.99 at" in said
