# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2.composition import EXPERIMENT


@pytest.fixture(scope="module")
def rows():
    cases = EXPERIMENT.cases(Scale(quick=True))
    return [{**case, **EXPERIMENT.measure(case, Scale(quick=True))} for case in cases]


def test_a_tighter_way_never_costs_more(rows):
    found = {(row["way"], row["releases"]): row["epsilon"] for row in rows}
    for count in (1, 10, 100):
        assert found["PLD", count] <= found["optimal", count] <= found["basic", count] + 1e-9
        assert found["PLD", count] <= found["RDP", count]


def test_the_finding_names_the_crossing(rows):
    found = EXPERIMENT.finding(rows)
    assert found.verdict is Verdict.PARTLY and "from 100 releases on" in found.sentence


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads[0] == "releases"
    assert list(EXPERIMENT.figures(rows)) == ["epsilon"]
