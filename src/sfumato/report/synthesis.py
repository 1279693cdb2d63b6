# SPDX-License-Identifier: Apache-2.0
"""The page of an evaluation of synthetic data: samples, scores, diversity, collapse and copies.

`SynthesisFacts` are plain values: the page does not know how they were measured.

Guarantee  Signs of collapse and noise that does not protect stand above everything else. Then the page
           states the privacy of the synthetic data, what the evaluation charged, and which public rows it
           used. Only released or public values belong here: synthetic rows, public rows, and counts that
           were paid for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.report.bars import bar_chart
from sfumato.report.curves import Series, line_chart, scatter_chart
from sfumato.report.html import cards_list, escape, facts_table, page, rows_table, section
from sfumato.report.pictures import picture_grid
from sfumato.report.promise import promise, study_warning

__all__ = ["SynthesisFacts", "synthesis_report"]

Points = Sequence[tuple[float, float]]
Shares = Sequence[tuple[str, float, float | None]]

_SCORED = (
    "Each classifier learned from synthetic rows, and its setting was chosen on synthetic rows. Then it was "
    "scored once on the public rows. All classifiers are shown, not the best one. AUROC is the mean over "
    "classes, each against the rest."
)
_AFTER_REAL = (
    '"After real rows" is what the same classifier reaches if it learns from one half of the public rows and '
    "is scored on the other: the mean of both ways round. More real rows could teach it more."
)
_MAPS = (
    "Public and synthetic rows in the plane. A good generator covers the same places. Distances between "
    "groups in a t-SNE map mean little."
)
_FINE = "No sign of collapse was found in the synthetic rows."


@dataclass(frozen=True, kw_only=True)
class SynthesisFacts:
    """What the page of an evaluation shows.

    Args:
        data: The name of the synthetic data.
        rows: The number of synthetic rows.
        statement: The paragraph that states the privacy of the synthetic data.
        holdout: Which public rows it was compared with, in words; None if there are none.
        without_holdout: What public rows would add, in a sentence.
        charged: What the evaluation itself charged, in sentences; empty if it read no private row.
        collapse: Signs of collapse, in sentences; empty if there is none.
        scores: One row for each classifier: its name, accuracy, AUROC or None, and a note or None.
        real_scores: The accuracy and the AUROC of classifiers that learned from real public rows, by name.
        curves: The ROC curve of each classifier, by name.
        class_heads: The heads of the table of classes.
        classes: The rows of the table of classes.
        images: Samples [images, channels, height, width] by name, such as a class; empty for tables.
        maps: Groups of points by name, for each map by its title.
        distances: Sentences about distances: to public rows, and in feature space.
        marginals: The error of each column, by name; empty for images.
        columns: The values of each column, with their shares of synthetic and of public rows.
        marginals_in_words: The errors of marginals, in sentences.
        memorization: What the charged test of copies found, in words; None if it was not made.
        guarantee: The guarantee of the synthetic data; None if it is only stated in words.
        settings: The public settings, by name.
        study_note: The note about noise that was not secure; None if it was secure.
    """

    data: str
    rows: int
    statement: str
    holdout: str | None
    without_holdout: str = ""
    charged: Sequence[str] = ()
    collapse: Sequence[str] = ()
    scores: Sequence[tuple[str, float, float | None, str | None]] = ()
    real_scores: Mapping[str, tuple[float, float | None]] = field(
        default_factory=dict[str, tuple[float, float | None]]
    )
    curves: Mapping[str, Points] = field(default_factory=dict[str, Points])
    class_heads: Sequence[str] = ()
    classes: Sequence[Sequence[object]] = ()
    images: Mapping[str, Any] = field(default_factory=dict[str, Any])
    maps: Mapping[str, Mapping[str, Points]] = field(default_factory=dict[str, Mapping[str, Points]])
    distances: Sequence[str] = ()
    marginals: Mapping[str, float] = field(default_factory=dict[str, float])
    columns: Mapping[str, Shares] = field(default_factory=dict[str, Shares])
    marginals_in_words: str | None = None
    memorization: str | None = None
    guarantee: Guarantee | None = None
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    study_note: str | None = None


def synthesis_report(facts: SynthesisFacts, *, title: str, ledger_statement: str | None = None) -> str:
    """Return the HTML page of an evaluation of synthetic data.

    Args:
        facts: What the page shows.
        title: The title of the page.
        ledger_statement: The statement of the account that was charged; None if there is none.

    Returns:
        The page.

    >>> facts = SynthesisFacts(data="digits", rows=100, statement="Made with noise.", holdout="a public half")
    >>> "a public half" in synthesis_report(facts, title="Digits")
    True
    """
    return page(
        title,
        _header(facts, title),
        study_warning(facts.study_note),
        *(f'<p class="warning" role="alert">{escape(f"Collapse: {each}")}</p>' for each in facts.collapse),
        _cards(facts),
        section("What is promised", *_promised(facts)),
        section("Samples", picture_grid(facts.images, title="Synthetic samples")) if facts.images else "",
        section("Classifiers that learned from synthetic rows", *_scores(facts)) if facts.scores else "",
        section("Fidelity and diversity", *_classes(facts)),
        section("Marginals", *_marginals(facts)) if facts.marginals else "",
        section("Columns", *_columns(facts)) if facts.columns else "",
        section("Maps", _paragraph(_MAPS), *_maps(facts)) if facts.maps else "",
        section("Memorization", *_memorization(facts)),
        section("Settings", facts_table(facts.settings)) if facts.settings else "",
        section("Ledger", f"<pre>{escape(ledger_statement)}</pre>") if ledger_statement else "",
        "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>",
    )


def _header(facts: SynthesisFacts, title: str) -> str:
    with_what = f", with {facts.guarantee}" if facts.guarantee is not None else ""
    lead = f"An evaluation of {facts.rows:,} synthetic rows of {facts.data}{with_what}."
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'


def _cards(facts: SynthesisFacts) -> str:
    cards: dict[str, str] = {"synthetic rows": f"{facts.rows:,}"}
    if facts.guarantee is not None:
        cards["epsilon"] = f"{round_up(facts.guarantee.epsilon):g}"
        cards["delta"] = f"{round_up(facts.guarantee.delta):g}"
        cards["protected"] = f"one {facts.guarantee.privacy_unit}"
    for name, accuracy, _, _ in facts.scores:
        cards[f"accuracy, {name}"] = f"{accuracy:.1%}"
    cards["signs of collapse"] = str(len(facts.collapse))
    return cards_list(cards)


def _promised(facts: SynthesisFacts) -> list[str]:
    said = [] if facts.guarantee is None else [promise(facts.guarantee, released="the synthetic data")]
    rows = "synthetic rows" if facts.holdout is None else "synthetic rows and public rows"
    nothing = f"This evaluation charged nothing: it read {rows}, and no private row."
    paid = " ".join(["This evaluation charged:", *facts.charged]) if facts.charged else nothing
    public = f"The public rows are {facts.holdout}. They are not protected, and figures on them are exact."
    public = facts.without_holdout if facts.holdout is None else public
    return [*said, *map(_paragraph, (facts.statement, paid, public))]


def _scores(facts: SynthesisFacts) -> list[str]:
    table = _scores_table(facts)
    lines = [Series(name=name, points=points) for name, points in facts.curves.items() if points]
    if not lines:
        return [_paragraph(_SCORED), table]
    chart = line_chart(
        [*lines, Series(name="chance", points=[(0.0, 0.0), (1.0, 1.0)])],
        title="ROC curves",
        x_label="false-positive rate",
        y_label="true-positive rate",
        x_bounds=(0.0, 1.0),
        y_bounds=(0.0, 1.0),
    )
    return [_paragraph(_SCORED), table, '<div class="curves">', _figure("ROC curves", chart), "</div>"]


def _scores_table(facts: SynthesisFacts) -> str:
    rows = [
        (name, *_in_figures(accuracy, area), *_in_figures(*facts.real_scores.get(name, (None, None))), note)
        for name, accuracy, area, note in facts.scores
    ]
    heads = ("classifier", "accuracy", "AUROC", "accuracy after real rows", "AUROC after real rows", "note")
    if facts.real_scores:
        return f"{rows_table(heads, rows)}{_paragraph(_AFTER_REAL)}"
    return rows_table((*heads[:3], heads[5]), [(*row[:3], row[5]) for row in rows])


def _in_figures(accuracy: float | None, area: float | None) -> tuple[str | None, str | None]:
    return None if accuracy is None else f"{accuracy:.1%}", None if area is None else f"{area:.3f}"


def _classes(facts: SynthesisFacts) -> list[str]:
    found = [] if facts.collapse else [_paragraph(_FINE)]
    told = [_paragraph(each) for each in facts.distances]
    return [*found, *told, *([rows_table(facts.class_heads, facts.classes)] if facts.classes else [])]


def _marginals(facts: SynthesisFacts) -> list[str]:
    caption = "Total-variation error of each column"
    chart = bar_chart({name: round(error, 4) for name, error in facts.marginals.items()}, title=caption)
    words = [_paragraph(facts.marginals_in_words)] if facts.marginals_in_words else []
    return [*words, '<div class="curves">', _figure(caption, chart), "</div>"]


def _columns(facts: SynthesisFacts) -> list[str]:
    heads = (
        ("value", "synthetic rows") if facts.holdout is None else ("value", "synthetic rows", "public rows")
    )
    found = ['<div class="curves">']
    for name, rows in facts.columns.items():
        told = [
            (value, *(f"{share:.1%}" for share in shares if share is not None)) for value, *shares in rows
        ]
        found.append(_figure(name, rows_table(heads, told)))
    return [*found, "</div>"]


def _maps(facts: SynthesisFacts) -> list[str]:
    figures = [
        _figure(
            title,
            scatter_chart(
                [Series(name=name, points=points) for name, points in groups.items()],
                title=title,
                x_label="first axis",
                y_label="second axis",
            ),
        )
        for title, groups in facts.maps.items()
    ]
    return ['<div class="curves">', *figures, "</div>"]


def _memorization(facts: SynthesisFacts) -> list[str]:
    if facts.memorization is None:
        return [
            _paragraph("Whether synthetic rows copy private rows was not tested: this has to be paid for.")
        ]
    return [_paragraph(facts.memorization)]


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
