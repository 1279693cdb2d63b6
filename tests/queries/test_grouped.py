# SPDX-License-Identifier: Apache-2.0
"""Several statistics on one charge: what is released, what is refused, and when data is read."""

import math

import numpy as np
import pandas as pd
import pytest

import sfumato as sf
from sfumato import queries as q
from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, ColumnTypeError, InvalidParameterError
from sfumato.queries.grouped import MOST_KEYS
from sfumato.queries.spending import Spend
from sfumato.queries.totals import Kind, Total
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.sources.tables import private_table

BOUNDS = (0.0, 200.0)
BUDGET = sf.Budget(epsilon=10, delta=1e-6)
KEYS = ["a", "b", "c"]


def frame(rows: int = 6000, seed: int = 0) -> pd.DataFrame:
    """Return skewed and tied values, some missing, of units with many rows."""
    draw = np.random.default_rng(seed)
    amount = np.round(draw.lognormal(3, 1, rows))
    amount[draw.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "who": draw.integers(0, rows // 3, rows),
            "region": draw.choice(KEYS, rows, p=[0.8, 0.15, 0.05]),
            "amount": amount,
            "age": draw.integers(18, 60, rows),
            "kind": draw.choice(["p", "q", None], rows),
            "day": pd.to_datetime(draw.choice(pd.date_range("2024-01-01", "2024-03-31"), rows)),
        }
    )


DATA = frame()


def all_of_it() -> dict[str, q.Statistic]:
    return {
        "n": q.count(),
        "known": q.count("amount"),
        "total": q.sum("amount", bounds=BOUNDS),
        "average": q.mean("amount", bounds=BOUNDS),
        "spread": q.standard_deviation("amount", bounds=BOUNDS),
        "square": q.variance("amount", bounds=BOUNDS),
        "typical": q.median("age", bounds=(0, 100)),
        "high": q.quantile("age", 0.9, bounds=(0, 100), interval=True),
        "people": q.count_distinct("who"),
        "kinds": q.count_distinct("kind"),
    }


def exact(data: pd.DataFrame) -> pd.DataFrame:
    clipped = data.assign(amount=data.amount.clip(*BOUNDS)).groupby("region")
    return pd.DataFrame(
        {
            "n": clipped.size(),
            "known": clipped.amount.count(),
            "total": clipped.amount.sum(),
            "average": clipped.amount.mean(),
            "spread": clipped.amount.std(ddof=0),
            "square": clipped.amount.var(ddof=0),
            "typical": clipped.age.median(),
            "high": clipped.age.quantile(0.9),
            "people": clipped.who.nunique(),
            "kinds": clipped.kind.nunique(),
        }
    )


CLOSE = {"total": 10.0, "average": 0.05, "spread": 0.05, "square": 2.0, "typical": 0.6, "high": 0.6}


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("unit", "bound", "within"), [(None, 1, {}), ("who", 30, {}), ("who", 90, {"rows_per_group": 30})]
)
def test_at_a_large_epsilon_all_statistics_are_the_exact_ones(relation, unit, bound, within):
    table = private_table(DATA, privacy_unit=unit, contribution_bound=bound)
    grouped = q.group_by(table, "region", keys=KEYS, **within)
    release = grouped.agg(**all_of_it(), epsilon=1e6, relation=relation).release()
    truth = exact(DATA)
    for name, values in release.values.items():
        assert np.allclose(values, truth[name][KEYS], rtol=0, atol=CLOSE.get(name, 0.01)), name


def test_with_a_delta_noise_is_gaussian_and_the_whole_costs_at_most_the_budget():
    table = private_table(DATA, privacy_unit="who", contribution_bound=4)
    release = q.group_by(table, "region", keys=KEYS).agg(**all_of_it(), epsilon=2.0, delta=1e-6).release()
    assert 1.99 < release.guarantee.epsilon <= 2.0 and release.guarantee.delta == 1e-6
    numbers = q.group_by(table, "region", keys=KEYS).agg(n=q.count(), m=q.count("age"), epsilon=2, delta=1e-6)
    assert 1.999 < numbers.guarantee.epsilon <= 2.0


def test_without_a_delta_epsilons_add_up_to_the_budget_by_shares():
    table = private_table(DATA)
    query = q.group_by(table, "region", keys=KEYS).agg(n=q.count(share=3), m=q.count("age"), epsilon=1.0)
    assert query.guarantee.epsilon <= 1.0
    spends = query.workload.spends
    assert spends["n"].amount / spends["m"].amount == pytest.approx(3)
    assert math.fsum(each.amount for each in spends.values()) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_target_error_settles_the_cost_and_the_interval(delta):
    table = private_table(DATA)
    query = q.group_by(table, "region", keys=KEYS).agg(
        n=q.count(error=25), total=q.sum("amount", bounds=BOUNDS, error=4000), delta=delta
    )
    table_released = query.release()
    interval = table_released["total"][0].interval
    assert (interval.upper - interval.lower) / 2 == pytest.approx(4000, rel=1e-3)
    interval = table_released["n"][0].interval
    assert (interval.upper - interval.lower) / 2 <= 25
    assert query.guarantee.epsilon < 2
    with pytest.raises(InvalidParameterError, match="need more than epsilon"):
        q.group_by(table, "region", keys=KEYS).agg(n=q.count(error=1), epsilon=0.01, delta=delta)


def test_a_workload_is_one_charge_and_is_refused_as_a_whole_before_data_is_read(monkeypatch):
    clients = sf.open(
        "clients", DATA, privacy_unit="who", contribution_bound=3, budget=sf.Budget(epsilon=2, delta=1e-6)
    )
    grouped = clients.group_by("region", keys=KEYS)
    release = grouped.agg(**all_of_it(), epsilon=1.5).release(purpose="report")
    assert [each.purpose for each in clients.account.releases()] == ["report"]
    assert clients.spent().epsilon == pytest.approx(1.5) and release.release.account == "clients"

    def read(self, *given, **named):
        raise AssertionError("data was read")

    monkeypatch.setattr(OwnedRows, "table", read)
    monkeypatch.setattr(OwnedRows, "batches", read)
    query = grouped.agg(**all_of_it(), epsilon=1.0)
    assert not query.explain().fits
    with pytest.raises(BudgetExceededError, match=r"The whole query fits with epsilon=0\.[45]"):
        query.release()
    assert len(clients.account.releases()) == 1
    assert clients.left().epsilon == pytest.approx(0.5)


def test_the_epsilon_that_a_refusal_names_fits():
    clients = sf.open("clients", DATA, budget=sf.Budget(epsilon=1, delta=1e-6))
    clients.agg(n=q.count(), epsilon=0.7).release()
    most = clients.left().epsilon
    clients.agg(n=q.count(), m=q.count("age"), epsilon=most).release()


def test_what_fails_after_the_charge_stays_charged_and_says_nothing(monkeypatch):
    def fails(self, *given, **named):
        raise RuntimeError("Ann owes 12.50")

    clients = sf.open("clients", DATA, budget=sf.Budget(epsilon=2, delta=1e-6))
    monkeypatch.setattr(OwnedRows, "table", fails)
    with pytest.raises(sf.errors.QueryFailedError) as caught:
        clients.agg(total=q.sum("amount", bounds=BOUNDS), epsilon=1.0).release()
    assert "Ann" not in str(caught.value) and caught.value.__cause__ is None
    assert clients.spent().epsilon == pytest.approx(1.0)


def test_a_finer_resolution_is_nearer_to_the_median():
    table = private_table(pd.DataFrame({"x": np.arange(2001) / 100}))
    medians = {f"by_{cells}": q.median("x", bounds=(0, 100), resolution=cells) for cells in (16, 2**16)}
    found = q.group_by(table).agg(**medians, epsilon=1e6).release().values
    assert abs(found["by_65536"][0] - 10) < 0.02 and found["by_16"][0] < 100 * 2 / 16
    with pytest.raises(InvalidParameterError, match="resolution"):
        q.median("x", bounds=(0, 100), resolution=2**16 + 1)


def test_a_condition_leaves_out_other_rows():
    table = private_table(DATA)
    query = q.group_by(table).agg(n=q.count(), epsilon=1e6, where=lambda row: row.age >= 40)
    assert query.release().values["n"] == [(DATA.age >= 40).sum()]
    with pytest.raises(InvalidParameterError, match="reads more than one row"):
        q.group_by(table).agg(n=q.count(), epsilon=1.0, where=lambda row: row.age > row.age.mean())


def test_dates_are_truncated_and_columns_derived():
    clients = sf.open("clients", DATA, budget=sf.Budget(epsilon=1e7, delta=1e-6))
    monthly = clients.mutate(
        month=lambda row: row.day.try_cast("date").truncate("M"),
        double=lambda row: row.age.cast("float64") * 2,
    )
    months = [pd.Timestamp(2024, month, 1).date() for month in (1, 2, 3)]
    release = monthly.group_by("month", keys=months).agg(
        n=q.count(), age=q.mean("double", bounds=(0, 200)), epsilon=1e6
    )
    values = release.release().values
    assert values["n"] == [(DATA.day.dt.month == month).sum() for month in (1, 2, 3)]
    assert values["age"][0] == pytest.approx(2 * DATA[DATA.day.dt.month == 1].age.mean(), abs=1e-3)


def test_keys_are_the_product_of_declared_domains():
    grouped = q.group_by(
        private_table(DATA), "region", "kind", keys={"region": ["a", "b"], "kind": ["p", "q"]}
    )
    release = grouped.agg(n=q.count(), epsilon=1e6).release()
    assert release.keys == [("a", "p"), ("a", "q"), ("b", "p"), ("b", "q")]
    assert release.values["n"][1] == ((DATA.region == "a") & (DATA.kind == "q")).sum()


def test_discovered_keys_are_part_of_the_same_charge():
    rare = pd.concat([DATA, pd.DataFrame({"who": [10**6], "region": ["hermit"], "age": [30]})])
    clients = sf.open(
        "clients", rare, privacy_unit="who", contribution_bound=2, budget=sf.Budget(epsilon=5, delta=1e-5)
    )
    query = clients.group_by("region", keys=q.Discovered()).agg(
        n=q.count(), age=q.median("age", bounds=(0, 100)), epsilon=2, delta=1e-6
    )
    release = query.release()
    assert release.keys == KEYS and len(clients.account.releases()) == 1
    assert query.guarantee.epsilon <= 2.0
    alone = clients.group_by("region", keys=KEYS).agg(
        n=q.count(), age=q.median("age", bounds=(0, 100)), epsilon=2, delta=1e-6
    )
    assert query.workload.spends["n"].amount < alone.workload.spends["n"].amount  # keys are not free
    assert query.workload.discovery.touched == 2
    with pytest.raises(InvalidParameterError, match="needs a delta"):
        clients.group_by("region", keys=q.Discovered()).agg(n=q.count(), epsilon=1)


def test_no_key_that_is_found_gives_an_empty_table():
    few = private_table(DATA.head(3), privacy_unit="who")
    release = q.group_by(few, "region", keys=q.Discovered()).agg(n=q.count(), epsilon=1, delta=1e-9).release()
    assert release.keys == [] and release.values == {"n": []} and len(release.to_pandas()) == 0
    assert "No key was found" in release._repr_html_()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: q.group_by(t, "region"), "is private"),
        (lambda t: q.group_by(t, keys=["a"]), "need columns"),
        (lambda t: q.group_by(t, "region", keys=["a", "a"]), "each key once"),
        (lambda t: q.group_by(t, "region", keys=["a", 1]), "key"),
        (lambda t: q.group_by(t, "region", keys={"kind": ["p"]}), "one domain for each"),
        (lambda t: q.group_by(t, "region", keys=list(map(str, range(MOST_KEYS + 1)))), "at most 100000"),
        (lambda t: q.group_by(t, "region", keys={"region": [str(i) for i in range(10**6)]}), "at most"),
        (lambda t: q.group_by(t, "nothing", keys=["a"]), "no column"),
        (lambda t: q.group_by(t, "region", keys=KEYS, rows_per_group=5, groups_per_unit=5), "contribution"),
        (lambda t: q.group_by(t).agg(epsilon=1), "one or more statistics"),
        (lambda t: q.group_by(t).agg(n=q.count(), epsilonn=1), "not a statistic"),
        (lambda t: q.group_by(t).agg(n=q.count()), "pass epsilon"),
        (lambda t: q.group_by(t).agg(n=q.count(), epsilon=math.nan), "epsilon"),
        (lambda t: q.group_by(t).agg(n=q.count(), epsilon=1, level=1.0), "level"),
        (lambda t: q.group_by(t).agg(n=q.count(), epsilon=1, relation="zero-out"), "support"),
        (lambda t: q.group_by(t).agg(n=q.count_distinct("day"), epsilon=1), "different values"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(make, says):
    table = private_table(DATA, privacy_unit="who", contribution_bound=4)
    with pytest.raises(InvalidParameterError, match=says):
        make(table)


def test_a_statistic_of_text_is_refused_by_the_schema():
    with pytest.raises(ColumnTypeError):
        q.group_by(private_table(DATA)).agg(m=q.mean("kind", bounds=(0, 1)), epsilon=1)


def test_two_bounds_lower_the_noise_of_many_groups():
    table = private_table(DATA, privacy_unit="who", contribution_bound=9)

    def error(**bounds):
        query = q.group_by(table, "region", keys=KEYS, **bounds).agg(n=q.count(), epsilon=1, delta=1e-6)
        return query.explain().statistics[0].error

    in_each = error(rows_per_group=1, groups_per_unit=9)
    assert in_each == pytest.approx(
        error() * math.sqrt(3) / 9, rel=0.1
    )  # a unit is in one of 3 keys, at most


NAMED = {
    "a list": ["a", "b", "c"],
    "domains": {"region": ["a", "b", "c"]},
    "tuples": [("a", "p"), ("a", "q"), ("b", "p")],
}


@pytest.mark.parametrize("named", NAMED)
def test_a_unit_is_in_no_more_groups_than_keys_are_named(named):
    table = private_table(DATA, privacy_unit="who", contribution_bound=40)
    columns = ("region", "kind") if named == "tuples" else ("region",)
    grouped = q.group_by(table, *columns, keys=NAMED[named], rows_per_group=4, groups_per_unit=9)
    reach, within = grouped.reach(Relation.ADD_REMOVE), grouped.source().within
    assert (reach.rows, reach.groups, reach.most_groups) == (4, 3, 3)
    assert (within.rows, within.groups) == (4, 3)
    assert q.group_by(table, *columns, keys=NAMED[named]).reach(Relation.ADD_REMOVE).most_groups == 3
    assert "3 groups, as many as keys are named" in str(grouped.agg(n=q.count(), epsilon=1).explain())


def test_groups_of_a_unit_are_not_capped_by_keys_that_are_discovered():
    table = private_table(DATA, privacy_unit="who", contribution_bound=9)
    grouped = q.group_by(table, "region", keys=q.Discovered(), rows_per_group=1)
    assert grouped.reach(Relation.ADD_REMOVE).groups == 9


def test_one_unit_in_all_groups_moves_them_by_what_the_capped_bound_says():
    """The unit has 5 rows in each of 5 groups, of which 3 are named: 2 rows in 3 groups count."""
    others = pd.DataFrame({"who": np.arange(300), "region": list("abcde") * 60})
    one = pd.DataFrame({"who": 1000, "region": list("abcde") * 5})

    def counts(data):
        table = private_table(data, privacy_unit="who", contribution_bound=10)
        grouped = q.group_by(table, "region", keys=KEYS, rows_per_group=2, groups_per_unit=5)
        people = grouped.source().grouped().compute([Total(Kind.ROWS), Total(Kind.DISTINCT, "who")], [])
        return list(people.totals.values()), grouped.reach(Relation.ADD_REMOVE)

    (after, people_after), reach = counts(pd.concat([others, one]))
    (before, people_before), _ = counts(others)
    assert (after - before).tolist() == [2, 2, 2] and reach.l1 == 6
    assert (people_after - people_before).sum() == reach.most_groups == 3


def test_both_bounds_are_said_wherever_a_release_is_described():
    data = sf.open("people", DATA, privacy_unit="who", contribution_bound=9, budget=BUDGET)
    query = data.group_by("region", keys=KEYS, rows_per_group=2, groups_per_unit=2).agg(
        n=q.count(), epsilon=1
    )
    said = "at most 2 rows of each who in each of at most 2 groups"
    table = query.release()
    assert f"rows that count: {said}" in str(query.explain())
    assert f"{said} count" in str(table) and f"{said} count" in table.facts()["notes"]
    assert said in str(table.card().facts) and said in data.account.releases()[0].purpose
    assert said in " ".join(str(data.statement()).split()) and said in " ".join(
        str(data.account.card(release=1)).split()
    )
    assert "2 row(s) in each of at most 2 group(s)" in repr(query.query)
    assert "2 row(s) of each who in each of at most 2 group(s)" in query.query.plan()
    spread = data.group_by("region", keys=KEYS, rows_per_group=1).ranges("age", bounds=(0, 100), epsilon=1)
    assert "at most 1 row of each who in each of at most 3 groups counts" in spread.release.notes


@pytest.mark.parametrize("relation", list(Relation)[:2])
def test_units_are_counted_with_less_noise_than_rows_in_groups(relation):
    table = private_table(DATA, privacy_unit="who", contribution_bound=9)
    grouped = q.group_by(table, "region", keys=KEYS, rows_per_group=3)
    reach = grouped.reach(relation)
    spend = Spend(amount=1.0, gaussian=False)
    people = q.count_distinct("who").expected_error(spend, reach, level=0.95, size=1)[0]
    rows = q.count().expected_error(spend, reach, level=0.95, size=1)[0]
    assert people == pytest.approx(rows / 3, abs=2)


EMPTY = DATA.head(0)
POISON = {
    "missing": {"amount": np.nan},
    "infinite": {"amount": np.inf},
    "huge": {"amount": 1e308},
    "no key": {"region": None},
    "another key": {"region": "z" * 10_000},
    "no unit": {"who": None},
}


@pytest.mark.parametrize("kind", POISON)
@pytest.mark.parametrize("unit", [None, "who"])
def test_no_row_decides_whether_a_query_is_answered(kind, unit):
    row = {"who": -1, "region": "a", "amount": 1.0, "age": 1, "kind": "p", "day": pd.Timestamp(2024, 1, 1)}
    poisoned = pd.concat([DATA.head(50), pd.DataFrame([row | POISON[kind]] * 5)])
    for data in (DATA.head(50), poisoned, EMPTY):
        table = private_table(data, privacy_unit=unit, contribution_bound=2 if unit else 1)
        release = q.group_by(table, "region", keys=KEYS).agg(**all_of_it(), epsilon=1.0).release()
        assert release.keys == KEYS and list(release.values) == list(all_of_it())
