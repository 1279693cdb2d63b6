# SPDX-License-Identifier: Apache-2.0
import ibis
import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Relation
from sfumato.errors import BudgetExceededError, InvalidParameterError, QueryFailedError
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.state import Progress
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.questions.means import mean
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


SECRET = "patient-zero"


def visits() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "patient": [SECRET, SECRET, "b", "c", None],
            "cost": [10.0, 30.0, 20.0, np.nan, 50.0],
            "ward": ["x", "y", "x", "x", "y"],
        }
    )


@pytest.fixture
def table() -> PrivateTable:
    return private_table(visits(), privacy_unit="patient", contribution_bound=2)


def test_rows_are_counted_with_noise(table):
    query = table.count(epsilon=1.0)
    values = [query.question.answer(query.data, generator=seeded(i)).value for i in range(50)]
    assert np.mean(values) == pytest.approx(4, abs=2) and len(set(values)) > 5


def test_a_count_says_whether_it_is_one_of_rows_or_of_units():
    def named(**unit):
        return private_table(visits(), **unit).count(epsilon=1.0).question.name

    assert named() == "number of rows"
    assert named(privacy_unit="patient") == "number of units (patient)"
    assert named(privacy_unit="patient", contribution_bound=3) == "number of rows, at most 3 of each patient"


def test_a_release_says_how_many_rows_of_each_unit_count(table):
    bound = "at most 2 rows of each patient count"
    assert bound in table.count(epsilon=1.0).release().notes
    assert bound in mean(table["cost"], bounds=(0, 50), epsilon=1.0).notes
    assert bound in table.group_by("ward", keys=["x"]).count(epsilon=1.0).release().notes
    assert (
        "at most 2 keys of each patient count" in table.keys("ward", epsilon=1.0, delta=0.1).release().notes
    )
    single = private_table(visits(), privacy_unit="patient").count(epsilon=1.0).release()
    assert "at most 1 row of each patient counts" in single.notes
    assert not any("at most" in note for note in private_table(visits()).count(epsilon=1.0).release().notes)
    owned = column_of([1.0, 2.0], owners=["a", "a"])
    assert "at most 1 row of each owner counts" in mean(owned, bounds=(0, 5), epsilon=1.0).notes


def test_a_filter_keeps_rows(table):
    assert table.filter(lambda row: row.ward == "x").count(epsilon=1e3).release().value == 3
    both = table.filter(ibis._.ward == "x", ibis._.cost > 15)
    assert both.count(epsilon=1e3).release().value == 1


def test_a_filter_that_looks_at_other_rows_is_refused(table):
    with pytest.raises(InvalidParameterError, match="row by row"):
        table.filter(lambda row: row.cost > row.cost.mean())


def test_a_new_column_can_be_asked_about(table):
    euros = table.mutate(euros=lambda row: row.cost / 100)
    assert euros["euros"].moments((0, 1)).count == 3
    with pytest.raises(InvalidParameterError, match="is the privacy unit"):
        table.mutate(patient=lambda row: row.ward)
    with pytest.raises(InvalidParameterError, match="row by row"):
        table.mutate(share=lambda row: row.cost / row.cost.sum())


def test_the_plan_shows_charge_query_and_noise_before_anything_is_computed(table, monkeypatch):
    monkeypatch.setattr("sfumato.statistics.contributions.owned_rows.OwnedRows.table", None)
    query = table.group_by("ward", keys=["x"]).count(epsilon=0.5)
    plan = query.plan()
    assert "Would cost epsilon 0.5" in repr(query) and repr(query) in plan
    assert "1. charge: DiscreteLaplaceDpEvent" in plan
    assert "ROW_NUMBER() OVER" in plan and '"rows" <= 2' in plan and "COUNT(*)" in plan
    assert "3. add the noise" in plan and SECRET not in plan


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE], ids=lambda r: r.value)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_count_replayed_without_a_unit_lets_only_noise_leave(delta, relation, neighbors):
    def made(rows):
        return private_table(rows, privacy_unit="patient", contribution_bound=2)

    query = made(visits()).count(epsilon=0.5, delta=delta, relation=relation)
    other = made(visits()[lambda rows: rows.patient != SECRET]).owned
    neighbors.replay(query.question, query.data, other)


def test_intervals_of_the_count_cover(table, check_coverage, monkeypatch):
    monkeypatch.setattr(
        "sfumato.statistics.contributions.owned_rows.OwnedRows.row", lambda *_: {"count": 4000}
    )
    query = table.count(epsilon=0.1)
    check_coverage(lambda run: 4000 in query.question.answer(query.data, generator=seeded(run)).interval)


def test_what_is_raw_is_not_offered_and_says_so(table):
    groups = table.group_by("ward", keys=["x"])
    raw = {
        table: {"owned"},
        table.owned: {"expression", "engine", "kept", "row", "table", "batches", "count", "counts"},
        table["cost"]: {"owned", "moments", "histogram", "ordered"},
        table.rows("cost"): {"owned", "batches", "every_batch", "read"},
        table.categories("ward"): {"owned", "tally", "tallies"},
        groups: {"owned", "compute", "totals"},
    }
    for holder, names in raw.items():
        assert names <= set(object.__dir__(holder))
        assert not names & set(dir(holder))
    offered = {name for holder in raw for name in dir(holder) if not name.startswith("_")}
    assert offered == {
        "categories", "columns", "contribution_bound", "count", "filter", "floats_may_be_whole", "group_by",
        "join", "join_by_unit", "keys", "left_out_share", "mean", "mutate", "name", "names", "plan",
        "privacy_unit", "require_computable", "require_countable", "require_fitting", "require_prepared",
        "rows", "schema", "sql", "sum", "classes", "has_every_row", "lines_left_out", "present", "type_of",
        "typed_by_values", "untyped", "written_alike", "unit",
    }  # fmt: skip
    for method in (type(table["cost"]).ordered, type(table.rows("cost")).read, type(table.owned).batches):
        assert "Raw: not a release" in method.__doc__


def test_rows_need_different_columns(table):
    for names in [(), ("cost", "cost")]:
        with pytest.raises(InvalidParameterError, match="each once"):
            table.rows(*names)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def opened(ledger: Ledger, epsilon: float = 2.0):
    budget = Budget(epsilon=epsilon, delta=1e-5)
    return ledger.open("visits", privacy_unit="patient", budget=budget)


def all_questions(table: PrivateTable):
    grouped = table.group_by("ward", keys=["x", "y"])
    return {
        "count": table.count(epsilon=0.1),
        "group count": grouped.count(epsilon=0.1),
        "group sum": grouped.sum("cost", bounds=(0, 100), epsilon=0.1),
        "group mean": grouped.mean("cost", bounds=(0, 100), epsilon=0.1),
        "keys": table.keys("ward", epsilon=0.1, delta=1e-7),
    }


QUESTIONS = ["count", "group count", "group sum", "group mean", "keys"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_when_the_engine_dies_the_message_tells_nothing_and_the_budget_stays_spent(name, table, ledger):
    account = opened(ledger)
    query = all_questions(table)[name]
    table.owned.engine.disconnect()
    with pytest.raises(QueryFailedError, match="stays spent") as failure:
        query.release(account=account)
    assert SECRET not in str(failure.value)
    assert failure.value.__cause__ is None and failure.value.__context__ is None
    [release] = account.releases()
    assert release.progress is Progress.BEGUN
    assert account.remaining().epsilon < 2.0
    ledger.verify()


@pytest.mark.parametrize("name", QUESTIONS)
def test_words_of_an_engine_that_fails_midway_are_not_passed_on(name, table, ledger, monkeypatch):
    def dies(self, expression):
        raise RuntimeError(f"Conversion Error: could not convert {SECRET!r}")

    def dies_midway(self, expression):
        yield from table.owned.engine.to_pyarrow(expression).to_batches()
        raise RuntimeError(f"Conversion Error: could not convert {SECRET!r}")

    for method, failing in {"row": dies, "table": dies, "batches": dies_midway}.items():
        monkeypatch.setattr(f"sfumato.statistics.contributions.owned_rows.OwnedRows.{method}", failing)
    account = opened(ledger)
    with pytest.raises(QueryFailedError) as failure:
        all_questions(table)[name].release(account=account)
    assert SECRET not in str(failure.value) and failure.value.__context__ is None
    assert account.remaining().epsilon < 2.0
    ledger.verify()


def test_what_the_budget_does_not_allow_never_reaches_the_engine(table, ledger, monkeypatch):
    read = "sfumato.statistics.contributions.owned_rows.OwnedRows.table"
    monkeypatch.setattr(read, lambda *_: pytest.fail("data was read"))
    query = table.group_by("ward", keys=["x"]).count(epsilon=5.0)
    with pytest.raises(BudgetExceededError):
        query.release(account=opened(ledger, epsilon=0.5))


def test_an_account_of_another_unit_is_refused(ledger):
    rows = private_table(visits())
    with pytest.raises(InvalidParameterError, match="protects one 'patient'"):
        rows.count(epsilon=0.1).release(account=opened(ledger))


def test_releases_are_charged_under_their_names(table, ledger):
    account = opened(ledger)
    for query in all_questions(table).values():
        query.release(account=account)
    assert [release.purpose for release in account.releases()] == [
        "number of rows, at most 2 of each patient",
        "number of rows by ward, at most 2 of each patient",
        "sum of cost by ward",
        "mean of cost by ward",
        "keys of ward",
    ]


def test_nothing_that_is_printed_shows_a_row_also_where_ibis_is_interactive(table, monkeypatch):
    monkeypatch.setattr(ibis.options, "interactive", True)
    held = [
        table,
        table.owned,
        table["cost"],
        table.rows("cost"),
        table.categories("ward"),
        table.group_by("ward", keys=["x"]),
        *(query.data for query in all_questions(table).values()),
        *all_questions(table).values(),
    ]
    rows = table.owned.table(table.owned.expression).to_pydict()
    names = {*rows["patient"], SECRET}
    for thing in held:
        printed = repr(thing)
        assert "unit" in printed or "Query" in printed
        assert not any(f"{name} " in printed or f"{name!r}" in printed for name in names)


def test_more_groups_than_memory_holds_are_counted(tmp_path, ledger):
    connection = ibis.duckdb.connect(memory_limit="50MB", temp_directory=str(tmp_path / "spill"), threads=1)
    connection.raw_sql(
        "CREATE VIEW visits AS SELECT 'a rather long name of a key, number ' || (i % 500000) AS k, "
        "i::VARCHAR AS patient FROM range(1000000) AS t(i) UNION ALL "
        "SELECT 'common', 'c' || i FROM range(500) AS t(i)"
    )
    table = private_table(connection.table("visits"), privacy_unit="patient")
    account = opened(ledger)
    found = table.keys("k", epsilon=0.5, delta=1e-12).release(account=account)  # each rare key has two units
    assert found.value == ["common"]
    counts = table.group_by("k", keys=["common", "none"]).count(epsilon=0.5).release(account=account)
    assert counts.value["common"] == pytest.approx(500, abs=60)
    assert all(release.progress is Progress.COMMITTED for release in account.releases())
    ledger.verify()
