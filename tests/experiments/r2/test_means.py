# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2.means import CLIPPED, COINPRESS, EXPERIMENT, HISTOGRAM, METHODS

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(**growth):
    """Rows with errors that grow by a factor from the tight to the loose bounds."""
    return [
        {"rows": 1000, "bound": bound, "seed": seed}
        | {name: 0.1 * (growth.get(name, 1.0) if bound > 5 else 1.0) for name in METHODS}
        for bound in (5, 5000)
        for seed in (0, 1)
    ]


def test_methods_that_look_for_the_mean_stay_near_it(rows):
    assert all(row[name] < 0.5 for row in rows for name in (HISTOGRAM, COINPRESS))


def test_the_finding_follows_from_the_rows():
    assert EXPERIMENT.finding(made_up(**{CLIPPED: 800.0})).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up()).verdict is Verdict.PARTLY
    linear = {HISTOGRAM: 900.0, COINPRESS: 900.0}
    assert EXPERIMENT.finding(made_up(**linear)).verdict is Verdict.REFUTED


def test_it_is_shown_as_a_table_and_figures(rows):
    assert EXPERIMENT.tables(rows)[0].heads == ("rows", "bound R", *METHODS)
    assert list(EXPERIMENT.figures(rows)) == ["bound", "rows"]
