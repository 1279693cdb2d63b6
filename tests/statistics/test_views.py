# SPDX-License-Identifier: Apache-2.0
import pandas as pd
import pytest

from sfumato import Budget, statistics
from sfumato import open as open_data
from sfumato.statistics.release import Parts
from sfumato.testing import seeded

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def people():
    rows = {"age": [20.0, 30.0, 41.25] * 100, "city": ["Rome", "Oslo", HOSTILE] * 100}
    return open_data("people", pd.DataFrame(rows), budget=Budget(epsilon=50, delta=1e-6))


def test_a_number_shows_its_interval_and_its_cost(people):
    release = people.mean("age", bounds=(0, 100), epsilon=0.5)
    shown = release._repr_html_()
    assert f"{release.value:.6g} ({release.interval})" in shown and ">0.5<" in shown


def test_a_histogram_shows_a_table_and_bars_and_its_names_are_text(people):
    shown = people.histogram("city", categories=["Rome", "Oslo", HOSTILE], epsilon=5)._repr_html_()
    assert "<svg" in shown and "<rect" in shown and "lower" in shown
    assert "<script" not in shown and "&lt;script&gt;" in shown


def test_discovered_keys_are_text(people):
    shown = people.keys("city", epsilon=5, delta=1e-7)._repr_html_()
    assert "Rome" in shown and "<script" not in shown


def test_a_query_shows_its_cost_before_it_runs_and_no_data(people):
    before = people.spent()
    query = (
        people.table.mean("age", bounds=(0, 100), epsilon=0.5)
        if hasattr(people.table, "mean")
        else (people.table.count(epsilon=0.5))
    )
    shown = query._repr_html_()
    assert "Nothing is computed or charged" in shown and ">0.5<" in shown
    assert people.spent() == before and "41.25" not in shown and "300" not in shown


def test_private_data_show_their_budget_and_neither_rows_nor_their_number(people):
    shown = people._repr_html_()
    assert "one row" in shown and ">50<" in shown
    assert "41.25" not in shown and ">300<" not in shown and "Rome" not in shown


def test_a_failed_release_says_so():
    data = [1.0] * 3
    release = statistics.count(data, epsilon=0.5, generator=seeded(0))
    failed = type(release)(name="mean", value=None, guarantee=release.guarantee, event=release.event)
    assert "failed" in failed._repr_html_()


def test_a_long_table_is_cut_and_says_so():
    release = statistics.count([1.0], epsilon=0.5)
    parts = Parts(labels={"key": tuple(range(120))}, numbers=tuple(float(-n) for n in range(120)))
    long = type(release)(name="n", value=[], guarantee=release.guarantee, event=release.event, parts=parts)
    shown = long._repr_html_()
    assert "70 more rows are not shown" in shown and "<svg" not in shown
