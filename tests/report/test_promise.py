# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.report.promise import in_plain_words, promise, study_warning


def guarantee(epsilon, relation=Relation.ADD_REMOVE, unit="patient"):
    return Guarantee(epsilon=epsilon, delta=1e-5, relation=relation, privacy_unit=unit)


@pytest.mark.parametrize("relation", list(Relation))
def test_words_name_the_unit_and_what_was_released(relation):
    told = in_plain_words(guarantee(1.0, relation), released="the answers")
    assert "from the answers, they conclude at most 2.72 times" in told and "one patient" in told


def test_figures_err_upwards():
    told = in_plain_words(guarantee(1.0), released="it")
    factor = float(told.partition("at most ")[2].split()[0])
    assert factor >= math.e


def test_a_large_epsilon_is_no_promise():
    assert in_plain_words(guarantee(21.0), released="it").startswith("No useful protection")


def test_markup_is_escaped():
    assert "<b>" not in promise(guarantee(1.0, unit="<b>"), released="<b>")
    assert study_warning(None) == "" and "<b>" not in study_warning("<b>")
