# SPDX-License-Identifier: Apache-2.0
"""How runs, releases and audits show themselves in a notebook: facts, figures and the statement.

Rooms give facts that were released or public before, as for a page or a card. `sfumato._notebook` has the
markup, which loads nothing, runs nothing and takes its colors from the notebook.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sfumato import _notebook
from sfumato._markup import escape
from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.report.bars import bar_chart
from sfumato.report.promise import study_sentence

__all__ = ["RunView", "bars", "claim_and_bound", "figure"]

_MOST_BARS = 40
_CHART = "max-width:32em;margin:.5em 0"


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What a notebook shows of a run.

    Attributes:
        title: What it is.
        guarantee: Its guarantee.
        statement: The paragraph that states the claim.
        facts: Public facts, by name; what is None is left out.
        figures: Figures, as markup (`figure`, `bars`).
        study_note: Why the noise does not protect anyone, if it does not.
    """

    title: str
    guarantee: Guarantee
    statement: str
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    figures: Sequence[str] = ()
    study_note: str | None = None

    def html(self) -> str:
        """Return the markup."""
        study = "" if self.study_note is None else _notebook.warning(study_sentence(self.study_note))
        return _notebook.panel(
            self.title,
            study,
            _notebook.facts({**self.guarantee.shown(), **self.facts}),
            *(f'<div style="{_CHART}">{each}</div>' for each in self.figures if each),
            _notebook.note(self.statement),
        )


def figure(caption: str, svg: str) -> str:
    """Return a picture with its caption."""
    told = f'<figcaption style="font-weight:600">{escape(caption)}</figcaption>'
    return f'<figure style="{_CHART};margin-left:0">{told}{svg}</figure>'


def bars(named: Mapping[str, float], *, title: str) -> str:
    """Return numbers as bars; nothing where bars would not show them: a negative number, or too many."""
    fit = 1 < len(named) <= _MOST_BARS and all(math.isfinite(x) and x >= 0 for x in named.values())
    return figure(title, bar_chart(named, title=title)) if fit else ""


def claim_and_bound(claim: float | None, bound: float) -> str:
    """Return the epsilon of a claim beside a lower bound on it, as bars from 0."""
    named = {"lower bound": -round_up(-bound, 3) if math.isfinite(bound) else bound}
    if claim is not None:
        named["claim"] = round_up(claim)
    return bars(named, title="Epsilon: what attacks prove, and what is claimed")
