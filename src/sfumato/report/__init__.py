# SPDX-License-Identifier: Apache-2.0
"""Reports: self-contained HTML pages and SVG curves.

`training_report` makes one HTML page of a training run, `voting_report` one of a PATE run; `line_chart` and
`bar_chart` make SVG pictures. Nothing in them refers to anything outside: no script, no font, no picture, no
network.
"""

from sfumato.report.bars import bar_chart
from sfumato.report.curves import Series, line_chart
from sfumato.report.html import escape, page, write_report
from sfumato.report.training import Measurement, TrainingFacts, training_report
from sfumato.report.voting import VotingFacts, voting_report

__all__ = [
    "Measurement",
    "Series",
    "TrainingFacts",
    "VotingFacts",
    "bar_chart",
    "escape",
    "line_chart",
    "page",
    "training_report",
    "voting_report",
    "write_report",
]
