# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.audit.evidence.terms import check_claim, confidence_of_each
from sfumato.errors import InvalidParameterError


def test_errors_of_several_attacks_add_up():
    each = confidence_of_each(0.95, [1, 2, 3])
    assert 3 * (1 - each) == pytest.approx(0.05)


def test_a_claim_is_a_guarantee_or_nothing():
    check_claim(None)
    check_claim(Guarantee(epsilon=1.0, delta=0.0, relation=Relation.ADD_REMOVE, privacy_unit="row"))
    with pytest.raises(InvalidParameterError, match="claim must be a Guarantee or None, but 1 was given"):
        check_claim(1)
