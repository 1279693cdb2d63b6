# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.terms import Terms


def test_terms_read_a_relation_from_text_and_keep_float64():
    terms = Terms(epsilon=1, relation="replace-one")
    assert terms.relation is Relation.REPLACE_ONE
    assert isinstance(terms.epsilon, float)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("epsilon", w) for w in (0, -1.0, math.nan, math.inf, None)]
    + [("delta", w) for w in (-1.0, 1.0, math.nan)]
    + [("contribution_bound", w) for w in (0, 1.5)]
    + [("level", w) for w in (0.0, 1.0)]
    + [("relation", "sideways"), ("column", " ")],
    ids=repr,
)
def test_terms_that_make_no_sense_are_refused(field, wrong):
    with pytest.raises(InvalidParameterError, match=field):
        Terms(**({"epsilon": 1.0} | {field: wrong}))
