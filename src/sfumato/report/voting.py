# SPDX-License-Identifier: Apache-2.0
"""The page of one PATE run: its guarantee, what was asked and answered, the student, and what it cost.

`VotingFacts` are plain values: the page does not know how the run was made.

Guarantee  The guarantee stands first, in words and with epsilon rounded up; then that of each privacy group.
           Only released or public values belong on the page: answers, and how many queries were answered,
           which the job paid for. Votes and counts are private, and there is no place for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.report.bars import bar_chart
from sfumato.report.curves import Series, line_chart
from sfumato.report.html import cards_list, escape, facts_table, page, rows_table, section
from sfumato.report.promise import promise, study_warning

__all__ = ["VotingFacts", "voting_report"]

_RELEASED = "the answers of the teachers, or from a student that learned from them"
_COSTS = (
    "The curve of epsilon is that of the first queries at the noise of this job, whatever the votes are: it "
    "does not depend on private data."
)
_EXACT = "The accuracy is exact, and computed on evaluation rows that are not protected."


@dataclass(frozen=True, kw_only=True)
class VotingFacts:
    """What the page of a run shows.

    Args:
        data: The name of the data.
        guarantee: The guarantee of the answers.
        statement: The paragraph that states the claim.
        teachers: The number of teachers.
        asked: The number of queries.
        answered: The number of answers.
        aggregator: How votes became answers, in words.
        guarantees: The guarantee of each privacy group, if there are several.
        per_class: The number of answers of each class, by name.
        costs: What the first queries cost: (queries, epsilon), by the name of a line.
        test: What a test of agreement did, if there was one.
        accuracy: The accuracy of the student on evaluation rows.
        settings: The public settings, by name.
        audit: What an audit found.
        study_note: The note about noise that was not secure; None if it was secure.
    """

    data: str
    guarantee: Guarantee
    statement: str
    teachers: int
    asked: int
    answered: int
    aggregator: str
    guarantees: Sequence[Guarantee] = ()
    per_class: Mapping[str, int] = field(default_factory=dict[str, int])
    costs: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict[str, Sequence[tuple[float, float]]]
    )
    test: str | None = None
    accuracy: float | None = None
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    audit: str | None = None
    study_note: str | None = None


def voting_report(run: VotingFacts, *, title: str, ledger_statement: str | None = None) -> str:
    """Return the HTML page of one PATE run.

    Args:
        run: What the page shows.
        title: The title of the page.
        ledger_statement: The statement of the account that was charged; None if there is none.

    Returns:
        The page.

    >>> from sfumato.accounting.guarantee import Relation
    >>> guarantee = Guarantee(epsilon=2, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    >>> facts = VotingFacts(data="digits", guarantee=guarantee, statement="Teachers voted.", teachers=20,
    ...                     asked=30, answered=25, aggregator="GNMax")
    >>> "25 of 30" in voting_report(facts, title="Digits")
    True
    """
    return page(
        title,
        _header(run, title),
        study_warning(run.study_note),
        _cards(run),
        section("What is promised", promise(run.guarantee, released=_RELEASED), _groups(run)),
        section("Questions, answers and their cost", _asked(run), *_figures(run)),
        section("Audit", f"<p>{escape(run.audit)}</p>") if run.audit else "",
        section("Privacy statement", f"<p>{escape(run.statement)}</p>"),
        section("Settings", facts_table(run.settings)) if run.settings else "",
        section("Ledger", f"<pre>{escape(ledger_statement)}</pre>") if ledger_statement else "",
        "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>",
    )


def _header(run: VotingFacts, title: str) -> str:
    lead = f"A student of {run.teachers:,} teachers that learned from {run.data}, with {run.guarantee}."
    return f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'


def _cards(run: VotingFacts) -> str:
    cards: dict[str, str] = {}
    if run.accuracy is not None:
        cards["student accuracy"] = f"{run.accuracy:.1%}"
    cards["epsilon"] = f"{round_up(run.guarantee.epsilon):g}"
    cards["delta"] = f"{round_up(run.guarantee.delta):g}"
    cards["protected"] = f"one {run.guarantee.privacy_unit}"
    cards["answers"] = f"{run.answered:,} of {run.asked:,}"
    return cards_list(cards)


def _groups(run: VotingFacts) -> str:
    if len(run.guarantees) < 2:
        return ""
    rows = [
        (number, f"{round_up(each.epsilon):g}", f"{round_up(each.delta):g}")
        for number, each in enumerate(run.guarantees)
    ]
    told = "<p>Units are in privacy groups. The guarantee above holds for all; each group has its own:</p>"
    return told + rows_table(("group", "epsilon", "delta"), rows)


def _asked(run: VotingFacts) -> str:
    said = (
        f"{run.teachers:,} teachers were asked about {run.asked:,} public rows. {run.answered:,} were "
        f"answered by {run.aggregator}. How many, and which, is part of the release.",
        run.test,
        _EXACT if run.accuracy is not None else None,
        _COSTS if run.costs else None,
    )
    return f"<p>{escape(' '.join(each for each in said if each))}</p>"


def _figures(run: VotingFacts) -> list[str]:
    shown = [_per_class(run) if run.per_class else "", _costs(run) if run.costs else ""]
    return ['<div class="curves">', *shown, "</div>"]


def _per_class(run: VotingFacts) -> str:
    caption = "Answers of each class"
    return _figure(caption, bar_chart(run.per_class, title=caption))


def _costs(run: VotingFacts) -> str:
    lines = [Series(name=name, points=points) for name, points in run.costs.items()]
    caption = "Epsilon of the first queries"
    highest = max((y for line in lines for _, y in line.finite), default=0.0)
    chart = line_chart(
        lines,
        title=caption,
        x_label="queries",
        y_label="epsilon",
        x_bounds=(0.0, float(max(1, run.asked))),
        y_bounds=(0.0, highest * 1.05) if highest > 0 else None,
    )
    return _figure(caption, chart)


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
