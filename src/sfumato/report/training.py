# SPDX-License-Identifier: Apache-2.0
"""The page of one training run: the data, the model, its accuracy and its privacy cost.

`TrainingFacts` are plain values: the page does not know how the run was made.

Only what the run released may be on the page. The figures on evaluation data are exact, which the page says;
rows that must be protected do not belong there.

Guarantee  The guarantee stands first, with epsilon rounded up, its relation and its unit, and in plain words.
           Noise that does not protect is reported above everything else.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.report.curves import Series, line_chart
from sfumato.report.html import cards_list, escape, facts_table, page, rows_table, section
from sfumato.report.promise import promise, study_warning

__all__ = ["Measurement", "TrainingFacts", "curves", "training_report"]


class Measurement(Protocol):
    """The progress of a run after some steps; loss and accuracy are on data that is not protected."""

    @property
    def step(self) -> int:
        """How many noisy steps were taken."""
        ...

    @property
    def epsilon(self) -> float:
        """What they cost."""
        ...

    @property
    def loss(self) -> float | None:
        """The mean loss on evaluation data."""
        ...

    @property
    def accuracy(self) -> float | None:
        """The share of evaluation data that was predicted right."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What the page of a run shows.

    Args:
        data: The name of the data.
        model: The name of the model.
        guarantee: The guarantee of the run.
        statement: The paragraph that states the claim.
        history: The measurements, in order of their steps.
        settings: The public settings, by name.
        study_note: The note about noise that was not secure; None if it was secure.
        step: What a step is called: a round, in a federation.
    """

    data: str
    model: str
    guarantee: Guarantee
    statement: str
    history: Sequence[Measurement] = ()
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    study_note: str | None = None
    step: str = "step"


def training_report(run: TrainingFacts, *, title: str, ledger_statement: str | None = None) -> str:
    """Return the HTML page of one training run.

    Args:
        run: What the page shows.
        title: The title of the page.
        ledger_statement: The statement of the account that was charged; None if there is none.

    Returns:
        The page.

    >>> from sfumato.accounting.guarantee import Relation
    >>> guarantee = Guarantee(epsilon=3, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    >>> facts = TrainingFacts(data="digits", model="mlp", guarantee=guarantee, statement="It was trained.")
    >>> "digits" in training_report(facts, title="Digits")
    True
    """
    return page(
        title,
        _header(run, title),
        study_warning(run.study_note),
        _cards(run),
        section(
            "What is promised",
            promise(run.guarantee, released="the model, its intermediate versions included"),
        ),
        section("How it went", *_curves(run), _table(run)),
        section("Privacy statement", f"<p>{escape(run.statement)}</p>"),
        section("Settings", facts_table(run.settings)) if run.settings else "",
        section("Ledger", f"<pre>{escape(ledger_statement)}</pre>") if ledger_statement else "",
        "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>",
    )


def _header(run: TrainingFacts, title: str) -> str:
    lead = f"{run.model} trained on {run.data} with {run.guarantee}."
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'


def _cards(run: TrainingFacts) -> str:
    last = run.history[-1] if run.history else None
    cards: dict[str, str] = {}
    if last is not None and last.accuracy is not None:
        cards["accuracy on evaluation data"] = f"{last.accuracy:.1%}"
    cards["epsilon"] = f"{round_up(run.guarantee.epsilon):g}"
    cards["delta"] = f"{round_up(run.guarantee.delta):g}"
    cards["protected"] = f"one {run.guarantee.privacy_unit}"
    if last is not None:
        cards[f"noisy {run.step}s"] = f"{last.step:,}"
    return cards_list(cards)


def curves(run: TrainingFacts) -> list[str]:
    """Return the curves of a run as markup, one for each figure that was measured."""
    return [
        _figure(run, "Accuracy", lambda m: m.accuracy, y_bounds=(0.0, 1.0), percent=True),
        _figure(run, "Loss", lambda m: m.loss),
        _figure(run, "Epsilon", lambda m: m.epsilon, caption="Privacy spent", from_zero=True),
    ]


def _curves(run: TrainingFacts) -> list[str]:
    return ['<div class="curves">', *curves(run), "</div>"]


def _figure(
    run: TrainingFacts,
    name: str,
    value: Callable[[Measurement], float | None],
    *,
    caption: str | None = None,
    y_bounds: tuple[float, float] | None = None,
    from_zero: bool = False,
    percent: bool = False,
) -> str:
    """Return one curve over the steps; nothing if no value was measured at all."""
    points = [(float(m.step), found) for m in run.history if (found := value(m)) is not None]
    if not points:
        return ""
    caption = caption or f"{name} on evaluation data"
    highest = max((y for _, y in points if math.isfinite(y)), default=0.0)
    if from_zero and highest > 0:
        y_bounds = (0.0, highest)
    chart = line_chart(
        Series(name=name, points=points),
        title=caption,
        x_label=run.step,
        y_label=name.lower(),
        x_bounds=(0.0, max(1.0, points[-1][0])),
        y_bounds=y_bounds,
        percent=percent,
    )
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def _table(run: TrainingFacts) -> str:
    if not run.history:
        return "<p>Nothing was measured.</p>"
    rows = [
        (
            m.step,
            f"{round_up(m.epsilon):g}",
            None if m.loss is None else f"{m.loss:.4f}",
            None if m.accuracy is None else f"{m.accuracy:.2%}",
        )
        for m in run.history
    ]
    table = rows_table((run.step, "epsilon so far", "loss", "accuracy"), rows)
    return f"<details><summary>The same as a table</summary>{table}</details>"
