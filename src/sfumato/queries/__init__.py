# SPDX-License-Identifier: Apache-2.0
"""Queries: many private statistics of a grouped table on one charge."""

from sfumato.queries.aggregation import Aggregation
from sfumato.queries.asked import (
    count,
    count_distinct,
    mean,
    median,
    quantile,
    standard_deviation,
    sum,
    variance,
)
from sfumato.queries.bin_blocks import RangeCounts
from sfumato.queries.counts import Cell, Statistic
from sfumato.queries.explanation import Expected, Explanation
from sfumato.queries.group_ranges import GroupRangeRelease
from sfumato.queries.grouped import Discovered, Grouped, group_by
from sfumato.queries.ranges import RangeRelease, ranges
from sfumato.queries.sql import sql
from sfumato.queries.tables import TableRelease

__all__ = [
    "Aggregation",
    "Cell",
    "Discovered",
    "Expected",
    "Explanation",
    "GroupRangeRelease",
    "Grouped",
    "RangeCounts",
    "RangeRelease",
    "Statistic",
    "TableRelease",
    "count",
    "count_distinct",
    "group_by",
    "mean",
    "median",
    "quantile",
    "ranges",
    "sql",
    "standard_deviation",
    "sum",
    "variance",
]
