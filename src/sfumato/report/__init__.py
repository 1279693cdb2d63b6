# SPDX-License-Identifier: Apache-2.0
"""Reports: self-contained HTML pages and SVG curves.

`training_report` makes one HTML page of a training run, `line_chart` one SVG curve. Nothing in them refers to
anything outside: no script, no font, no picture, no network.
"""

from sfumato.report.curves import Series, line_chart
from sfumato.report.html import escape, page, write_report
from sfumato.report.training import Measurement, TrainingFacts, training_report

__all__ = [
    "Measurement",
    "Series",
    "TrainingFacts",
    "escape",
    "line_chart",
    "page",
    "training_report",
    "write_report",
]
