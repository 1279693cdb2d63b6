# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.experiments import Scale, Verdict
from sfumato.experiments.r2.histograms import EXPERIMENT, METHODS, REPORT, SPLIT, expected

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def rows():
    return [{**case, **EXPERIMENT.measure(case, QUICK)} for case in EXPERIMENT.cases(QUICK)]


def made_up(error):
    """Rows with a largest error that is a function of the number of bins."""
    return [
        {"bins": bins, "seed": seed} | {name: error(bins) for name in METHODS}
        for bins in (3, 30, 300)
        for seed in (0, 1)
    ]


def test_splitting_epsilon_among_many_bins_has_a_larger_error(rows):
    assert all(row[SPLIT] > row[REPORT] for row in rows if row["bins"] == 30)


def test_the_finding_follows_from_the_rows():
    assert EXPERIMENT.finding(made_up(expected)).verdict is Verdict.CONFIRMED
    assert EXPERIMENT.finding(made_up(lambda bins: 2.0 * bins)).verdict is Verdict.REFUTED


def test_it_is_shown_as_a_table_and_a_figure(rows):
    assert EXPERIMENT.tables(rows)[0].heads == ("bins", *METHODS)
    assert list(EXPERIMENT.figures(rows)) == ["error"]
