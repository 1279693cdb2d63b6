# SPDX-License-Identifier: Apache-2.0
"""R4, Algorithms 1 to 4: the parts of PATE on their own, each at a stated price.

R4 describes upsampling, weighting, Confident-GNMax and Interactive-GNMax, and reports nothing of them alone.
Here 250 teachers of MNIST vote on test images without labels, and a logistic regression on directions of
edges learns from the answers. Budgets: epsilon 1.97 for the aggregators, and epsilon 1, 2 and 3 for groups of
34, 43 and 23% of the images for weighting and upsampling, beside epsilon 1 for all.

Prices do not depend on the votes. "As R4 counts" is what the text would pay: comparisons with the threshold
are free (R4-4), upsampled images are in one teacher (R4-6), and weights keep the budgets of their groups.
The last one is wrong too: "as written" has the price of the weights of Algorithm 2 (R4-5). A seed decides
privacy groups alone; partition, queries and noise differ from run to run.

Settings  Confident- and Interactive-GNMax first asked twice as many queries as GNMax. After one full run of
          four parts, in which both students did worse on test rows than GNMax's, they were given all queries
          that the budget covers, and seeds went from three to five. Nothing else was changed by test rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from sfumato import pate
from sfumato.accounting import price
from sfumato.datasets import load
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.seeds import by_setting, shown
from sfumato.labels.features import oriented_gradients
from sfumato.pate.recipes import VoteRecipe, recipe
from sfumato.report import plot_bars
from sfumato.report.spread import mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "written_weights"]

DELTA: Final = 1e-5
SEEDS: Final = (11, 12, 13, 14, 15)
SHARES: Final = (0.34, 0.43, 0.23)  # those of benchmarks/pate.py
GROUPS: Final = ("weighting", "upsampling")
AGGREGATORS: Final = ("GNMax", "GNMax, 10 teachers", "Confident-GNMax", "Interactive-GNMax")
PARTS: Final = (*AGGREGATORS, "smallest epsilon for all", *GROUPS)
# Of Confident- and Interactive-GNMax (Papernot et al. 2018 have 200, 150 and 40 for 250 teachers).
_THRESHOLD: Final = 0.8  # of the teachers
_COMPARED: Final = 3.75  # noise of a comparison, in multiples of the noise of an answer
_ANSWERED: Final = 0.9  # answers at most, of GNMax's; what is left of the budget buys further comparisons


def written_weights(epsilons: Sequence[float], teachers: Sequence[int]) -> list[float]:
    """Return the weight that Algorithm 2 of R4 gives each teacher of a group, as it is written.

    >>> [round(weight, 1) for weight in written_weights((1.0, 2.0), (80, 20))]
    [66.7, 33.3]
    """
    parts = [epsilon * count for epsilon, count in zip(epsilons, teachers, strict=True)]
    return [part / sum(parts) * sum(teachers) for part in parts]


@cache
def _recipe(name: str) -> VoteRecipe:
    return recipe(load(name))


def _budgets(scale: Scale) -> tuple[float, tuple[float, ...]]:
    """Return the epsilon of the aggregators, and those of the groups."""
    return (4.0, (2.0, 4.0, 6.0)) if scale.quick else (1.97, (1.0, 2.0, 3.0))


def _job(part: str, known: VoteRecipe, scale: Scale) -> pate.Labeling:
    """Return what a part asks within its budget."""
    epsilon, epsilons = _budgets(scale)
    stddev = (0.4 if scale.quick else 0.16) * known.teachers
    plain = pate.GNMax(stddev=stddev)
    if part in GROUPS:
        groups = pate.IndividualBudgets(epsilons=epsilons, shares=SHARES, delta=DELTA, method=part)
        return _planned(known, aggregator=plain, individual=groups)
    if part == "smallest epsilon for all":
        return _planned(known, aggregator=plain, epsilon=epsilons[0])
    job = _planned(known, aggregator=plain, epsilon=epsilon)
    if part.startswith("GNMax"):
        teachers = 10 if part.endswith("10 teachers") else known.teachers  # the price is that of the noise
        return pate.Labeling(aggregator=plain, queries=job.queries, teachers=teachers, delta=DELTA)
    compared: dict[str, Any] = {
        "threshold": _THRESHOLD * known.teachers,
        "threshold_stddev": _COMPARED * stddev,
        "stddev": stddev,
        "max_answers": max(1, int(_ANSWERED * job.queries)),
    }
    confident = part == "Confident-GNMax"
    rule = pate.ConfidentGNMax(**compared) if confident else pate.InteractiveGNMax(**compared, confidence=0.9)
    return _planned(known, aggregator=rule, epsilon=epsilon)


def _planned(known: VoteRecipe, **terms: Any) -> pate.Labeling:
    job = pate.plan(delta=DELTA, teachers=known.teachers, **terms)
    assert isinstance(job, pate.Labeling)  # no agreement is assumed
    return replace(job, queries=min(job.queries, len(known.public)))


def _cases(scale: Scale) -> list[Case]:
    return [{"part": part, "seed": seed} for part in PARTS for seed in (SEEDS[:1] if scale.quick else SEEDS)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    known = _recipe("digits" if scale.quick else "mnist")
    job = _job(case["part"], known, scale)
    groups = None
    if case["part"] in GROUPS:
        groups = np.random.default_rng(case["seed"]).choice(3, size=len(known.labels), p=SHARES)
    rows, truth = known.evaluation
    run = pate.train(
        known.teacher,
        pate.SupervisedStudent(LogisticRegression(C=10.0, max_iter=300)),
        known.features,
        known.labels,
        public=known.public,
        classes=known.classes,
        job=job,
        groups=groups,
        evaluation=((oriented_gradients(rows) if rows.dim() == 4 else rows).float().numpy(), truth),
        progress=False,
    )
    return {
        "queries": run.answers.asked,
        "answers": run.answers.answered,
        "right": _right(known, run.answers.classes),
        "student": run.accuracy,
        "epsilons": [each.epsilon for each in run.answers.guarantees],
        "counted": _counted(job, scale, answered=run.answers.answered),
        "written": _written(job, scale) if case["part"] == "weighting" else None,
        "delta": DELTA,
        "relation": run.answers.guarantee.relation.value,
        "teachers": job.teachers,
    }


def _right(known: VoteRecipe, classes: npt.NDArray[np.int64]) -> float:
    """Return the share of right answers: the labels of the public rows are known here."""
    truth, asked = load(known.name).test.labels.numpy()[: len(classes)], classes >= 0
    return float((classes[asked] == truth[asked]).mean())


def _counted(job: pate.Labeling, scale: Scale, *, answered: int) -> list[float]:
    """Return the epsilons as the text of R4 counts them."""
    if job.individual is not None and job.individual.method is pate.Individualization.WEIGHTING:
        return list(_budgets(scale)[1])
    if job.individual is not None:
        return [_price(job.aggregator.event(job.queries))] * len(SHARES)
    rule = job.aggregator
    assert isinstance(rule, pate.GNMax | pate.ConfidentGNMax | pate.InteractiveGNMax)
    most = (
        answered if isinstance(rule, pate.GNMax) else rule.max_answers or answered
    )  # some are confirmations
    return [_price(pate.GNMax(stddev=rule.stddev).event(min(answered, most)))]


def _written(job: pate.Labeling, scale: Scale) -> list[float]:
    """Return the epsilon of each group with the weights of Algorithm 2 as it is written."""
    weights = written_weights(_budgets(scale)[1], job.groups)
    return [_price(job.aggregator.event(job.queries, weight=weight)) for weight in weights]


def _price(event: Any) -> float:
    return price(event, delta=DELTA).epsilon


def _tables(rows: Sequence[Row]) -> list[Table]:
    names = ("queries", "answers", "right", "student")
    found = {name: by_setting(rows, "part", value=name) for name in names}
    cells: list[list[object]] = []
    for part in found["queries"]:
        first = next(row for row in rows if row["part"] == part)
        cells.append(
            [
                part,
                _listed(first["counted"]),
                _listed(first["epsilons"]),
                shown(found["queries"][part], digits=0),
                shown(found["answers"][part], digits=0),
                shown(found["right"][part], percent=True, digits=1),
                shown(found["student"][part], percent=True, digits=1),
            ]
        )
    title = (
        f"Parts of PATE, {rows[0]['teachers']} teachers unless stated, delta {rows[0]['delta']:g}, "
        f"{rows[0]['relation']} neighbors; several epsilons are those of the groups"
    )
    heads = (
        "part",
        "epsilon as R4 counts",
        "epsilon",
        "queries",
        "answers",
        "right answers, %",
        "student, %",
    )
    written = next(row["written"] for row in rows if row["written"])
    weights = Table(
        "Weighting by Algorithm 2 as it is written: the epsilon of each group",
        ("", *(f"group {number}" for number in range(1, len(written) + 1))),
        [
            ["promised", *next(row["counted"] for row in rows if row["written"])],
            ["true", *(f"{epsilon:.4g}" for epsilon in written)],
        ],
    )
    return [Table(title, heads, cells), weights]


def _listed(epsilons: Sequence[float]) -> str:
    return ", ".join(f"{epsilon:.3g}" for epsilon in epsilons)


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    bars = by_setting(rows, "part", value="student")
    drawn = plot_bars(bars, title="Students of PATE", y_label="accuracy on test rows", percent=True)
    return {"students": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = by_setting(rows, "part", value="student")
    pairs = [(part, "smallest epsilon for all") for part in GROUPS]
    pairs += [(part, "GNMax") for part in AGGREGATORS[2:]]
    better = [mean_of(found[part]) > mean_of(found[plain]) for part, plain in pairs]
    verdict = Verdict.CONFIRMED if all(better) else Verdict.PARTLY if any(better) else Verdict.REFUTED
    said = "; ".join(
        f"{part} {shown(found[part], percent=True, digits=1)}% against "
        f"{shown(found[plain], percent=True, digits=1)}% ({plain})"
        for part, plain in pairs
    )
    few = by_setting(rows, "part", value="right")["GNMax, 10 teachers"]
    return Finding(
        verdict,
        f"Students: {said}. With ten teachers and the same noise, {shown(few, percent=True, digits=1)}% of "
        "the answers are right.",
    )


EXPERIMENT = Experiment(
    name="r4-pate-parts",
    report="R4",
    shows=("Algorithm 1", "Algorithm 2", "Algorithm 3", "Algorithm 4"),
    title="PATE's parts on their own: upsampling, weighting and three aggregators",
    claim="Upsampling, weighting, Confident- and Interactive-GNMax each improve PATE. (R4 has no numbers.)",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
