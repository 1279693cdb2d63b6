# SPDX-License-Identifier: Apache-2.0
"""What do private statistics cost, in time and in error? Against DuckDB, diffprivlib and OpenDP.

    python benchmarks/statistics.py                  everything: about ten minutes, 1.6 GB of temporary files
    python benchmarks/statistics.py --quick          smaller tables, fewer runs; under a minute
    python benchmarks/statistics.py --only coverage  one part: speed, workload, peers, grouped, growth, large,
                                                     errors, coverage, bounding, poison
    python benchmarks/statistics.py --json           rows for a program: what, value, bar, met

Speed     Five releases (count, sum, mean, histogram of 64 bins, nine quantiles) of one Parquet column of 1e7
          values over the non-private DuckDB query for the same: same clip, missing values (null, NaN) left
          out. Once on one thread in CPU time, once on all threads in wall time; the two take turns, and a
          ratio is the median over rounds. Bar: 1.2 each. Beside it, without a bar, the time of a query that
          neither clips nor looks for NaN, which is what a person in a hurry writes. A quick run is too small
          for the bar: what Python takes to prepare a query does not grow with the rows.
Workload  Twenty statistics over twelve groups of a Parquet table of 1e7 rows, on one charge, over one
          hand-written DuckDB query for the same numbers. Bar: 1.5. The sixteen that are not quantiles are
          timed alone, too: counts, sums, means, variances and standard deviations of three columns.
Peers     The same values as an array in memory: our time, and that of diffprivlib 0.6.6 and OpenDP in an
          environment of their own (`make bench-peers`); where it is absent, their rows are left out.
Grouped   A count and a median of each of twelve groups of 2e5 rows, at epsilon 1, with units in two groups:
          the mean error and the CPU time of ours, of PipelineDP 0.3.1 and of OpenDP with polars. All get the
          same bounds. Ours draw medians from 4096 cells, and once from 65536; OpenDP from 4097 candidates.
Growth    Exponent of time over rows, tables and arrays. 1 is linear; bar: 1.1.
Large     1e8 rows from Parquet, in a process of its own: seconds, and the peak of its memory. Bar: 2 GiB.
Errors    Nine quantiles of 1000 values: at most 1.5 times the time of asking one by one, and an error at most
          that of it.
          CoinPress against Karwa-Vadhan and the clipped mean, 1000 values in bounds 100 standard deviations
          wide: bar 1. CoinPress of 50 columns and 2000 rows at rho 0.5 over the non-private mean: bar 1.3.
Coverage  How often a stated 95% interval holds the truth, for each release that gives one. Bar: 93 to 97.5 in
          1000 runs.
Bounding  How often the interval of a mean holds what rows drawn uniformly from each unit would give. Units
          have up to twenty times as many rows as may count; ten skewed columns. Bar: 93% of 200 runs.
Poison    Outcomes (an answer, or which error, charged or not, with which warnings) that change when a row
          with an extreme value is added, on each engine: every type, every value, every question
          (`tests/statistics/poison`). Bar: 0. On Spark in a full run, where pyspark and Java are.
Noise     Is secure where time is measured, and seeded where errors are, so that they come out the same again.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType


def standard_library() -> ModuleType:
    """Return Python's own `statistics`, which this file hides from everything that a benchmark imports."""
    spec = PathFinder.find_spec("statistics", [os.path.dirname(os.__file__)])
    if spec is None or spec.loader is None:
        raise ImportError("the standard library's statistics was not found")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    from releases.program import main

    raise SystemExit(main(__doc__ or ""))

sys.modules[__name__] = standard_library()
