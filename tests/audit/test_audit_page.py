# SPDX-License-Identifier: Apache-2.0
"""The page of an audit: the verdict first, bounds rounded down, and nothing that could run."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.audit.audit_page import audit_report
from sfumato.audit.evidence.results import AuditResult, Check, LowerBound, Unchecked
from sfumato.audit.evidence.roc import Roc
from sfumato.audit.runs.run_attack import AttackResult

HOSTILE = "<script>alert('1')</script>"
CLAIM = Guarantee(epsilon=2.998, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")


def attacked(epsilon=2.9979, *, membership=None, canaries=True, attack="ranked scores", subject="DP-SGD"):
    bound = LowerBound(epsilon=epsilon, delta=1e-5, confidence=0.95, attack=attack, trials=1000)
    scores = np.arange(20.0)
    planted = AuditResult(
        subject=subject, claim=CLAIM, bounds=(bound,), in_scores=tuple(scores + 5), out_scores=tuple(scores)
    )
    return AttackResult(claim=CLAIM, canaries=planted if canaries else None, membership=membership)


def test_the_page_shows_the_claim_and_the_bound_side_by_side():
    text = audit_report(attacked(), title="Audit of digits")
    for said in ("<h1>Audit of digits</h1>", "do not contradict the claim", "ranked scores", "<svg", "1000"):
        assert said in text, said
    assert "<td>2.998</td><td>2.99</td>" in text.replace("\n", "")


@pytest.mark.parametrize(("epsilon", "told"), [(2.9979, "2.99"), (0.09999, "0.0999"), (0.0, "0")])
def test_a_bound_below_the_claim_is_never_rounded_above_it(epsilon, told):
    text = audit_report(attacked(epsilon), title="Audit")
    assert f"epsilon is at least {told} at" in text
    assert f"<td>{told}</td>" in text
    assert "FALSE" not in text


def test_a_false_claim_is_said_to_be_false_above_everything_else():
    text = audit_report(attacked(3.5), title="Audit")
    assert "THE CLAIM IS FALSE: an attack proves a larger epsilon. Do not use the model." in text
    assert text.index("THE CLAIM IS FALSE") < text.index("Claim and lower bound")
    assert "do not contradict" not in text


def checked(name, p_value):
    return Check(
        name=name, p_value=p_value, error=0.01, message="it is wrong", observations=10, sees="little"
    )


def test_a_check_that_failed_stands_out_among_the_others():
    checks = checked("noise", 1.0), checked("batches", 0.0), checked("price", 1.0)
    found = attacked()
    found = replace(found, canaries=replace(found.canaries, checks=checks))
    text = audit_report(found, title="Audit").replace("\n", "")
    assert text.count('<tr class="warned">') == 1
    assert '<tr class="warned"><td>batches</td><td>FAILED</td>' in text
    assert 'class="warned"' not in audit_report(attacked(), title="Audit")


def test_a_check_that_was_not_made_is_said_not_to_have_been():
    gap = Unchecked(name="batches", why=f"nobody looked {HOSTILE}")
    found = attacked()
    found = replace(
        found, canaries=replace(found.canaries, checks=(checked("noise", 1.0),), unchecked=(gap,))
    )
    text = audit_report(found, title="Audit").replace("\n", "")
    assert "<td>batches</td><td>NOT CHECKED</td>" in text and "<script" not in text
    assert text.index("Not checked: batches, because nobody looked") < text.index("Claim and lower bound")


def test_curves_are_no_wider_than_can_be_read():
    assert '<figure class="chart"><svg' in audit_report(attacked(), title="Audit")


def test_the_page_of_a_membership_attack_says_who_may_see_it():
    roc = Roc(np.arange(20.0) + 3, np.arange(20.0), name="membership by loss")
    text = audit_report(attacked(membership=roc), title="Audit")
    assert "Who may see this" in text and "membership by loss" in text
    assert "Who may see this" not in audit_report(attacked(), title="Audit")


def test_a_run_without_canaries_has_no_bound():
    roc = Roc(np.arange(20.0) + 3, np.arange(20.0), name="membership by loss")
    text = audit_report(attacked(canaries=False, membership=roc), title="Audit")
    assert "no bound" in text and "no canaries" in text
    assert "The claim was not audited" in text and "do not contradict" not in text


def test_an_audit_without_scores_has_no_curves():
    assert "ROC curves" not in audit_report(attacked(canaries=False), title="Audit")


def test_nothing_that_was_written_into_a_run_can_run_in_the_page():
    text = audit_report(attacked(attack=HOSTILE, subject=HOSTILE), title=HOSTILE)
    assert "<script" not in text and "&lt;script" in text
