# SPDX-License-Identifier: Apache-2.0
"""Everything that can be asked of a table with a column of some type, or whose unit is of that type."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa

from sfumato import private, queries, statistics
from sfumato.estimators import StandardScaler
from sfumato.private import training_rows
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.testing import seeded

from .kinds import Kind
from .tables import Table

__all__ = ["CORE", "QUESTIONS", "Ask", "Purse"]

EPSILON = 50.0  # noise that leaves no answer to chance
DELTA = 1e-3


@dataclass
class Purse:
    """An account of any unit that pays for everything, and says that it did."""

    privacy_unit: str = "row"
    name: str = "purse"
    temporary: bool = True
    charged: bool = False

    @contextmanager
    def spend(self, question: Any, *, purpose: str, generator: Any) -> Iterator[None]:
        """Note that something is charged."""
        self.charged = True
        yield


Ask = Callable[[Table, Purse], Any]


def _query(make: Callable[[PrivateTable, Kind], Any], of: str = "owned") -> Ask:
    """Ask a query of a table."""

    def ask(table: Table, purse: Purse) -> Any:
        opened = getattr(table, of)
        purse.privacy_unit = opened.privacy_unit
        return make(opened, table.kind).release(account=purse, generator=seeded(0)).value

    return ask


def _asked(make: Callable[[PrivateTable, Kind, dict[str, Any]], Any], of: str = "owned") -> Ask:
    """Ask by a function of `statistics`, which takes the terms that come last."""

    def ask(table: Table, purse: Purse) -> Any:
        opened = getattr(table, of)
        purse.privacy_unit = opened.privacy_unit
        return make(opened, table.kind, {"account": purse, "generator": seeded(0)}).value

    return ask


_E = {"epsilon": EPSILON}
_ED = {"epsilon": EPSILON, "delta": DELTA}
_B = {"bounds": (0.0, 10.0)}
_EVEN, _UNEVEN = tuple(np.linspace(0.0, 10.0, 9)), (0.0, 1.0, 2.5, 10.0)
_S = statistics

NUMBERS: dict[str, Ask] = {
    "count": _asked(lambda t, kind, terms: _S.count(t["v"], **_E, **terms)),
    "sum": _asked(lambda t, kind, terms: _S.sum(t["v"], **_B, **_E, **terms)),
    "mean": _asked(lambda t, kind, terms: _S.mean(t["v"], **_B, **_E, **terms)),
    "mean of rows": _asked(
        lambda t, kind, terms: _S.mean(t["v"], **_B, **_E, population=True, **terms), "rows"
    ),
    "variance": _asked(lambda t, kind, terms: _S.variance(t["v"], **_B, **_E, **terms)),
    "clipped share": _asked(lambda t, kind, terms: _S.clipped_share(t["v"], **_B, **_E, **terms)),
    "median": _asked(lambda t, kind, terms: _S.median(t["v"], **_B, **_E, level=0.9, **terms)),
    "quantiles": _asked(lambda t, kind, terms: _S.quantiles(t["v"], [0.2, 0.8], **_B, **_E, **terms)),
    "histogram, even": _asked(lambda t, kind, terms: _S.histogram(t["v"], edges=_EVEN, **_E, **terms)),
    "histogram, uneven": _asked(lambda t, kind, terms: _S.histogram(t["v"], edges=_UNEVEN, **_E, **terms)),
    "bounds": _asked(lambda t, kind, terms: _S.bounds(t["v"], **_E, **terms)),
    "first above": _asked(
        lambda t, kind, terms: _S.first_above(t["v"], ranges=[(0, 2), (2, 4)], threshold=5, **_E, **terms)
    ),
    "CoinPress mean": _asked(
        lambda t, kind, terms: _S.coinpress_mean(t["v"], **_B, stddev=1.0, **_ED, **terms)
    ),
    "Karwa-Vadhan mean": _asked(
        lambda t, kind, terms: _S.karwa_vadhan_mean(t["v"], **_B, stddev=1.0, **_ED, **terms)
    ),
    "covariance": _asked(lambda t, kind, terms: _S.covariance(t.rows("v", "x"), **_B, **_ED, **terms)),
    "correlation": _asked(
        lambda t, kind, terms: _S.correlation(t.rows("v", "x"), clip_norm=9.0, **_ED, **terms)
    ),
    "principal components": _asked(
        lambda t, kind, terms: _S.principal_components(t.rows("v", "x"), components=1, **_B, **_ED, **terms)
    ),
    "CoinPress means": _asked(
        lambda t, kind, terms: _S.coinpress_means(t.rows("v", "x"), **_B, stddev=1.0, **_ED, **terms)
    ),
    "CoinPress covariance": _asked(
        lambda t, kind, terms: _S.coinpress_covariance(t.rows("v", "x"), **_B, stddev=2.0, **_ED, **terms)
    ),
    "fit": lambda table, purse: private.fit(
        table.rows, StandardScaler(epsilon=EPSILON, bounds=(0.0, 10.0), random_state=0), features=["v", "x"]
    ),
    "train": lambda table, purse: training_rows.read_rows(table.owned.rows("v", "x"), None),
    "mean by group": _query(lambda t, kind: t.group_by("k", keys=["k0", "k1"]).mean("v", **_B, **_E)),
    "sum by group": _query(lambda t, kind: t.group_by("k", keys=["k0", "k1"]).sum("v", **_B, **_E)),
}

CATEGORIES: dict[str, Ask] = {
    "histogram of categories": _asked(
        lambda t, kind, terms: _S.histogram(t.categories("v"), categories=kind.names, **_E, **terms)
    ),
    "top k": _asked(
        lambda t, kind, terms: _S.top_k(t.categories("v"), k=1, categories=kind.names, **_E, **terms)
    ),
    "stable histogram": _asked(lambda t, kind, terms: _S.stable_histogram(t.categories("v"), **_ED, **terms)),
    "stable histogram of rows": _asked(
        lambda t, kind, terms: _S.stable_histogram(t.categories("v"), **_ED, **terms), "rows"
    ),
    "keys": _query(lambda t, kind: t.keys("v", **_ED)),
    "keys of rows": _query(lambda t, kind: t.keys("v", **_ED), "rows"),
    "keys of two columns": _query(lambda t, kind: t.keys("k", "v", **_ED)),
    "count by key": _query(lambda t, kind: t.group_by("v", keys=kind.names).count(**_E)),
    "mean by key": _query(lambda t, kind: t.group_by("v", keys=kind.names).mean("x", **_B, **_E)),
    "sum by two keys": _query(
        lambda t, kind: t.group_by("k", "v", keys=[("k0", name) for name in kind.names]).sum("x", **_B, **_E)
    ),
}

FILTERS: dict[str, Callable[[Any, Kind], Any]] = {
    "is known": lambda v, kind: v.notnull(),
    "is itself": lambda v, kind: v == v,
    "equals": lambda v, kind: v == kind.names[0],
    "is above": lambda v, kind: v > kind.names[0],
    "is above zero": lambda v, kind: v > 0,
    "is one of": lambda v, kind: v.isin(list(kind.names)),
    "is between": lambda v, kind: v.between(kind.names[0], kind.names[-1]),
    "or else": lambda v, kind: ibis.coalesce(v, kind.names[0]).notnull(),
    "the least": lambda v, kind: ibis.least(v, kind.names[0]).notnull(),
    "size": lambda v, kind: v.abs() > 1,
    "negated": lambda v, kind: -v < 1,
    "sum": lambda v, kind: v + 1.5 > 2,
    "product": lambda v, kind: v * 1.5 > 2,
    "ratio": lambda v, kind: v / 2 > 2,
    "clipped": lambda v, kind: v.clip(0, 1) > 0,
    "length": lambda v, kind: v.length() > 2,
    "lower case": lambda v, kind: v.lower() == "ann",
    "like": lambda v, kind: v.like("a%"),
    "begins with": lambda v, kind: v.startswith("a"),
    "stripped": lambda v, kind: v.strip() == "ann",
    "last part": lambda v, kind: v.right(2) == "nn",
    "digest": lambda v, kind: v.hexdigest("md5") != "a",
    "bin": lambda v, kind: v.bucket([0, 1, 2]).notnull(),
    "contains": lambda v, kind: v.contains("n"),
    "part": lambda v, kind: v.substr(1, 2) == "nn",
    "found at": lambda v, kind: v.find("n") > 0,
    "reversed": lambda v, kind: v.reverse() == "nna",
    "hash": lambda v, kind: v.hash() > 0,
    "year": lambda v, kind: v.year() > 2000,
    "day": lambda v, kind: v.day() > 3,
    "hour": lambda v, kind: v.hour() > 2,
    "cast to text": lambda v, kind: v.cast("string") != "a",
    "cast to float": lambda v, kind: v.cast("float64") > 1,
    "try a float": lambda v, kind: v.try_cast("float64") > 1,
    "try a whole number": lambda v, kind: v.try_cast("int32") > 1,
    "try a date": lambda v, kind: v.try_cast("date").notnull(),
}

COMPUTED: dict[str, Ask] = {
    "text of it, keys": _query(lambda t, kind: t.mutate(y=lambda row: row.v.cast("string")).keys("y", **_ED)),
    "float of it, mean": _asked(
        lambda t, kind, terms: _S.mean(
            t.mutate(y=lambda row: row.v.cast("float64"))["y"], **_B, **_E, **terms
        )
    ),
    "date of it, keys": _query(
        lambda t, kind: t.mutate(y=lambda row: row.v.try_cast("date")).keys("y", **_ED)
    ),
    **{
        f"filter: {name}": _query(
            lambda t, kind, test=test: t.filter(lambda row: test(row.v, kind)).count(**_E)
        )
        for name, test in FILTERS.items()
    },
}

UNITS: dict[str, Ask] = {
    "unit: rows": _query(lambda t, kind: t.count(**_E), "by_value"),
    "unit: mean": _asked(lambda t, kind, terms: _S.mean(t["x"], **_B, **_E, **terms), "by_value"),
    "unit: quantiles": _asked(
        lambda t, kind, terms: _S.quantiles(t["x"], [0.2, 0.8], **_B, **_E, **terms), "by_value"
    ),
    "unit: keys": _query(lambda t, kind: t.keys("k", **_ED), "by_value"),
    "unit: stable histogram": _asked(
        lambda t, kind, terms: _S.stable_histogram(t.categories("k"), **_ED, **terms), "by_value"
    ),
    "unit: sum by key": _query(lambda t, kind: t.group_by("k", keys=["k0"]).sum("x", **_B, **_E), "by_value"),
    "unit: train": lambda table, purse: training_rows.read_rows(table.by_value.rows("x"), None),
    "unit: value and unit": _query(lambda t, kind: t.keys("v", **_ED), "by_value"),
}

_NUMBER_STATISTICS = {
    "n": queries.count("v"),
    "total": queries.sum("v", **_B),
    "mean": queries.mean("v", **_B),
    "spread": queries.standard_deviation("v", **_B),
    "median": queries.median("v", **_B),
}
_OF_X = {"n": queries.count(), "total": queries.sum("x", **_B), "median": queries.median("x", **_B)}
_PUBLIC = pd.DataFrame({"k": ["k0", "k1"], "office": ["a", "b"]})


def _workload(make: Callable[[PrivateTable, Kind], Any], of: str = "owned") -> Ask:
    """Ask several statistics on one charge."""

    def ask(table: Table, purse: Purse) -> Any:
        opened = getattr(table, of)
        purse.privacy_unit = opened.privacy_unit
        return make(opened, table.kind).query.release(account=purse, generator=seeded(0)).value

    return ask


def _ranges(make: Callable[[PrivateTable, Kind], tuple[Any, str]], of: str = "owned") -> Ask:
    """Ask for ranges of groups."""

    def ask(table: Table, purse: Purse) -> Any:
        opened = getattr(table, of)
        purse.privacy_unit = opened.privacy_unit
        groups, column = make(opened, table.kind)
        paid = replace(groups, account=purse)
        found = paid.ranges(column, **_B, bins=8, **_E, relation="add-remove", generator=seeded(0))
        return found.release.value

    return ask


def _by_value(table: PrivateTable, kind: Kind) -> PrivateTable:
    """Return the table beside a public one, by the value."""
    public = pa.table(
        {"v": pa.array(list(kind.names)), "office": [f"o{i}" for i, _ in enumerate(kind.names)]}
    )
    return table.join(public, on="v")


WORKLOADS: dict[str, Ask] = {
    "workload": _workload(lambda t, kind: queries.group_by(t).agg(**_NUMBER_STATISTICS, **_E)),
    "workload of rows by group": _workload(
        lambda t, kind: queries.group_by(t, "k", keys=["k0", "k1"]).agg(**_NUMBER_STATISTICS, **_E), "rows"
    ),
    "workload in few groups": _workload(
        lambda t, kind: queries.group_by(t, "k", keys=["k0"], rows_per_group=1).agg(
            **_NUMBER_STATISTICS, **_ED
        )
    ),
    "workload by key": _workload(
        lambda t, kind: queries.group_by(t, "v", keys=kind.names).agg(**_OF_X, **_E)
    ),
    "workload of rows by key": _workload(
        lambda t, kind: queries.group_by(t, "v", keys=kind.names).agg(**_OF_X, **_E), "rows"
    ),
    "workload by discovered keys": _workload(
        lambda t, kind: queries.group_by(t, "v", keys=queries.Discovered()).agg(**_OF_X, **_ED)
    ),
    "different values": _workload(
        lambda t, kind: queries.group_by(t).agg(n=queries.count_distinct("v"), **_E)
    ),
    "unit: workload": _workload(
        lambda t, kind: queries.group_by(t, "k", keys=["k0"]).agg(
            **_OF_X, people=queries.count_distinct("v"), **_E
        ),
        "by_value",
    ),
    "ranges": lambda table, purse: queries.ranges(
        table.rows["v"], **_B, bins=8, **_E, account=purse, generator=seeded(0)
    ),
    "ranges by group": _ranges(lambda t, kind: (queries.group_by(t, "k", keys=["k0", "k1"]), "v"), "rows"),
    "ranges in few groups": _ranges(
        lambda t, kind: (queries.group_by(t, "k", keys=["k0", "k1"], rows_per_group=1), "v")
    ),
    "ranges by key": _ranges(lambda t, kind: (queries.group_by(t, "v", keys=kind.names), "x")),
    "unit: ranges by group": _ranges(
        lambda t, kind: (queries.group_by(t, "k", keys=["k0"]), "x"), "by_value"
    ),
    "joined": _workload(
        lambda t, kind: queries.group_by(t.join(_PUBLIC, on="k"), "office", keys=["a"]).agg(
            **_NUMBER_STATISTICS, **_E
        )
    ),
    "joined by value": _workload(
        lambda t, kind: queries.group_by(_by_value(t, kind), "office", keys=["o0"]).agg(**_OF_X, **_E)
    ),
    "SQL": _workload(
        lambda t, kind: queries.sql(
            t, "SELECT AVG(v) AS m FROM data WHERE v > 0 OR v IS NULL", bounds={"v": (0, 10)}, **_E
        )
    ),
}

QUESTIONS: dict[str, Ask] = {
    "schema": lambda table, purse: repr(table.owned),
    "rows": _query(lambda t, kind: t.count(**_E)),
    **NUMBERS,
    **CATEGORIES,
    **COMPUTED,
    **UNITS,
    **WORKLOADS,
}

# One question for each way to read rows: the others compute the same in the engine, and differ in the noise.
CORE = (
    "schema",
    "mean",
    "histogram, even",
    "histogram, uneven",
    "covariance",
    "sum by group",
    "histogram of categories",
    "stable histogram",
    "keys of two columns",
    "text of it, keys",
    "filter: is itself",
    "unit: train",
)
