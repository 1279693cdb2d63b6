# SPDX-License-Identifier: Apache-2.0
"""Make the tables and figures of the five reports again, with the honest epsilon, and add your own.

`sfumato reproduce --list` shows them; docs/reproduce.md says how to add one. One module in `r1` to `r5` is
one table or figure, with everything that is special about it. The rest is shared: `catalog` finds
experiments, `running` measures their cases, `results` keeps them, `conclusions` has what follows from them,
and `summary_page` shows it.
"""

from sfumato.experiments.catalog import experiments, find
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.results import ResultsNotKeptError
from sfumato.experiments.running import Outcome, reproduce
from sfumato.experiments.seeds import by_setting, shown
from sfumato.experiments.summary_page import write_results

__all__ = [
    "Case",
    "Experiment",
    "Finding",
    "Outcome",
    "ResultsNotKeptError",
    "Row",
    "Scale",
    "Table",
    "Verdict",
    "by_setting",
    "experiments",
    "find",
    "reproduce",
    "shown",
    "write_results",
]
