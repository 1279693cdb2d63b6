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


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.1, 1.0, 3.0, 7.6, 8.0, 12.0, 20.0])
def test_nobody_can_become_sure_and_the_figure_errs_upwards(epsilon):
    told = in_plain_words(guarantee(epsilon), released="it")
    sure = float(told.partition("become at most ")[2].partition("%")[0])
    true = 100 / (1 + math.exp(-epsilon))
    assert true - 1e-9 <= sure < 100 and 100 - sure > 0.8 * (100 - true)


def test_a_large_epsilon_is_no_promise():
    assert in_plain_words(guarantee(21.0), released="it").startswith("No useful protection")


def test_markup_is_escaped():
    assert "<b>" not in promise(guarantee(1.0, unit="<b>"), released="<b>")
    assert study_warning(None) == "" and "<b>" not in study_warning("<b>")
