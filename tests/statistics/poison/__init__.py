# SPDX-License-Identifier: Apache-2.0
"""One row must not stop a query: every extreme value, every question, on every engine.

Matrix     A table of usual values, and the same table with one row more that holds an extreme value: what
           comes of a question must be the same for both. Not the noisy numbers: whether it is refused, fails
           or is answered, by which error, in which words, with which warnings, charged or not. The row holds
           the extreme value in a column that is asked about, or as its unit.
Crowd      All extreme values of a type in one table stand for each of them alone: a row that stops a query
           stops it in company, too. So one run per type and question covers every value. `single` asks about
           each value alone, which takes as many times longer as there are values.
Used by    The tests of each engine, the planted bugs, and benchmarks/statistics.py.
"""

from .engines import Arrow, Engine, Parquet, Sql, duckdb, has_spark, postgresql, spark
from .kinds import KINDS, Kind
from .outcomes import Compared, Outcome, compared, covering, crowd, outcome, single
from .questions import CORE, QUESTIONS
from .tables import Table, made

__all__ = [
    "CORE",
    "KINDS",
    "QUESTIONS",
    "Arrow",
    "Compared",
    "Engine",
    "Kind",
    "Outcome",
    "Parquet",
    "Sql",
    "Table",
    "compared",
    "covering",
    "crowd",
    "duckdb",
    "has_spark",
    "made",
    "outcome",
    "postgresql",
    "single",
    "spark",
]
