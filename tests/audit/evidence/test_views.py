# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.audit.evidence.results import AuditResult, Check, LowerBound
from sfumato.audit.evidence.roc import Roc
from sfumato.audit.runs.run_attack import AttackResult

HOSTILE = "<script>alert(1)</script>"
CLAIM = Guarantee(epsilon=1.00001, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="row")
SCORE = 0.123456789


def found(epsilon=0.59999, **facts):
    bound = LowerBound(epsilon=epsilon, delta=1e-5, confidence=0.95, attack=HOSTILE, trials=10)
    return AuditResult(
        **({"subject": HOSTILE, "claim": CLAIM, "bounds": (bound,), "in_scores": (SCORE,)} | facts)
    )


def test_a_claim_stands_beside_its_bound_and_names_are_text():
    shown = found()._repr_html_()
    assert ">0.599<" in shown and "1.001" in shown and "<svg" in shown
    assert "<script" not in shown and "false" not in shown and "0.1234" not in shown


@pytest.mark.parametrize("facts", [{"epsilon": 9.0}, {"checks": "failed"}])
def test_a_false_claim_is_said_first(facts):
    if "checks" in facts:
        failed = Check(name="noise", p_value=1e-9, error=1e-3, message="m.", observations=9, sees="s")
        facts = {"checks": (failed,)}
    shown = found(**facts)._repr_html_()
    assert shown.index("The claim is false.") < shown.index("epsilon")


def test_exact_figures_about_private_rows_are_not_shown():
    roc = Roc(np.array([SCORE, 0.9]), np.array([0.1, 0.2]), name="membership by loss")
    for canaries in (found(), None):
        attacked = AttackResult(claim=CLAIM, canaries=canaries, membership=roc)
        assert roc.describe() in attacked.statement()
        assert "embership" not in attacked._repr_html_()
    assert "was not audited" in attacked._repr_html_()


def test_an_unbounded_result_has_no_bars():
    assert "<svg" not in found(float("inf"))._repr_html_()
