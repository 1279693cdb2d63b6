# SPDX-License-Identifier: Apache-2.0
"""Reports: self-contained HTML pages and SVG curves.

`training_report` makes one HTML page of a training run, `voting_report` one of a PATE run, and
`synthesis_report` one of an evaluation of synthetic data; `line_chart`, `scatter_chart`, `bar_chart` and
`picture_grid` make SVG pictures, and `picture_file` a PNG file. Nothing in them refers to anything outside:
no script, no font, no picture, no network. `plot_tradeoff` and the other `plot_...` functions draw figures
for papers and slides with matplotlib (the extra `plots`), and `save_plot` writes them.

A `PrivacyCard` says on one page what a release promises, to whom, and what it does not protect.
"""

from sfumato.report.bars import bar_chart
from sfumato.report.cards.card import CardAudit, CardTable, PrivacyCard
from sfumato.report.curves import Series, line_chart, scatter_chart
from sfumato.report.html import escape, page, write_report
from sfumato.report.pictures import picture_file, picture_grid
from sfumato.report.plots import (
    plot_bars,
    plot_intervals,
    plot_lines,
    plot_pictures,
    plot_scatter,
    plot_tradeoff,
    save_plot,
)
from sfumato.report.synthesis import SynthesisFacts, synthesis_report
from sfumato.report.training import Measurement, TrainingFacts, training_report
from sfumato.report.voting import VotingFacts, voting_report

__all__ = [
    "CardAudit",
    "CardTable",
    "Measurement",
    "PrivacyCard",
    "Series",
    "SynthesisFacts",
    "TrainingFacts",
    "VotingFacts",
    "bar_chart",
    "escape",
    "line_chart",
    "page",
    "picture_file",
    "picture_grid",
    "plot_bars",
    "plot_intervals",
    "plot_lines",
    "plot_pictures",
    "plot_scatter",
    "plot_tradeoff",
    "save_plot",
    "scatter_chart",
    "synthesis_report",
    "training_report",
    "voting_report",
    "write_report",
]
