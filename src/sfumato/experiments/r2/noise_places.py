# SPDX-License-Identifier: Apache-2.0
"""R2, Section IV: noise on the input, in training and at prediction, for one classifier of credit clients.

R2 lists the three places and gives no numbers. All methods cost (epsilon, 1e-5), replace-one neighbors.
Input       Each row gets Gaussian noise (3/4 of epsilon, all of delta) and its label is randomized (1/4 of
            epsilon); logistic regression learns from such rows. Nobody needs to be trusted.
Training    Objective perturbation. The weights may be published, and any number of predictions is free.
Prediction  100 logistic regressions learn from parts of the rows, and vote on each row that is asked about,
            with Gaussian noise (PATE). Nothing but so many predictions is published.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from sklearn.linear_model import LogisticRegression as Plain

from sfumato import pate
from sfumato.accounting import Relation, calibrate
from sfumato.estimators import LogisticRegression
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import CREDIT, Part
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated import ClippedNoise
from sfumato.mechanisms import RandomizedResponse
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.testing import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
CLIP_NORM: Final = 3.0
LABEL_SHARE: Final = 0.25  # of epsilon, if rows are randomized
RELATION: Final = Relation.REPLACE_ONE
PLAIN, INPUT, TRAINING = "not private", "input", "training"
ANSWERS: Final = (10, 100, 1000)
PREDICTION: Final = {count: f"prediction of {count} rows" for count in ANSWERS}
PLACES: Final = (PLAIN, INPUT, TRAINING, *PREDICTION.values())


def _cases(scale: Scale) -> list[Case]:
    epsilons = (8.0,) if scale.quick else (0.5, 1.0, 2.0, 4.0, 8.0)
    places = PLACES[:4] if scale.quick else PLACES
    return [
        {"place": place, "epsilon": epsilon, "seed": seed}
        for place in places
        for epsilon in epsilons
        for seed in range(1 if scale.quick else 5)
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    train, test = public_rows.parts(quick=scale.quick)
    place, epsilon, seed = case["place"], case["epsilon"], case["seed"]
    if place == PLAIN:
        return _right(public_rows.nonprivate_scores(train, test) > 0, test, honest=None)
    if place == INPUT:
        scores = public_rows.nonprivate_scores(_randomized(train, epsilon, seed), test)
        return _right(scores > 0, test, honest=epsilon)
    if place == TRAINING:
        return _trained(train, test, epsilon, seed)
    answers = next(count for count, name in PREDICTION.items() if name == place)
    teachers = 20 if scale.quick else 100
    return _predicted(train, test, epsilon, seed, answers=answers, teachers=teachers)


def _right(predicted: Any, test: Part, *, honest: float | None) -> dict[str, Any]:
    right = float((predicted == (test.labels == 1)).mean())
    return {"honest": honest, "accuracy": round(right, 5)}


def _randomized(train: Part, epsilon: float, seed: int) -> Part:
    """Return rows that each client could have sent: their costs add up to (epsilon, delta)."""
    noise = ClippedNoise.calibrated(
        epsilon=(1 - LABEL_SHARE) * epsilon, delta=DELTA, clip_norm=CLIP_NORM, relation=RELATION
    )
    coin = RandomizedResponse.calibrated(epsilon=LABEL_SHARE * epsilon, relation=RELATION)
    features = noise.release(torch.from_numpy(train.features), generator=seeded(seed).fork("features", 0))
    labels = coin.release(train.labels, generator=seeded(seed).fork("labels", 0))
    return Part(features.numpy(), labels)


def _trained(train: Part, test: Part, epsilon: float, seed: int) -> dict[str, Any]:
    model = LogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        clip_norm=CLIP_NORM,
        classes=(0, 1),
        relation=RELATION,
        random_state=seed,
    )
    predicted = model.fit(train.features, train.labels).predict(test.features) == 1
    return _right(predicted, test, honest=round(model.guarantee_.epsilon, 5))


def _predicted(
    train: Part, test: Part, epsilon: float, seed: int, *, answers: int, teachers: int
) -> dict[str, Any]:
    """Return how many answers are right, for rows to test with that are drawn anew for each seed."""
    asked = public_rows.subset(test, answers, seed)
    stddev = calibrate(
        lambda size: pate.GNMax(stddev=size).event(answers), epsilon=epsilon, delta=DELTA, relation=RELATION
    )
    released = pate.label(
        Plain(max_iter=1000),
        train.features,
        train.labels,
        public=asked.features,
        classes=2,
        teachers=teachers,
        aggregator=pate.GNMax(stddev=stddev),
        epsilon=epsilon,
        delta=DELTA,
        queries=answers,
        relation=RELATION,
        generator=seeded(seed),
        progress=False,
    )
    return _right(released.classes == 1, asked, honest=round(released.guarantee.epsilon, 5))


def _tables(rows: Sequence[Row]) -> list[Table]:
    places = list(dict.fromkeys(row["place"] for row in rows))
    found = by_setting(rows, "epsilon", "place", value="accuracy")
    cells = [
        (f"{epsilon:g}", *(shown(found[epsilon, place], percent=True) for place in places))
        for epsilon in sorted({row["epsilon"] for row in rows})
    ]
    title = f"Accuracy on test rows in percent, by the place of the noise; delta {DELTA:g}, replace-one"
    return [Table(title, ("epsilon", *places), cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    places = list(dict.fromkeys(row["place"] for row in rows if row["place"] != PLAIN))
    plain = mean_of([row["accuracy"] for row in rows if row["place"] == PLAIN])
    drawn = plot_lines(
        {
            place: by_setting([row for row in rows if row["place"] == place], "epsilon", value="accuracy")
            for place in places
        },
        title="Where the noise is added",
        x_label="epsilon (smaller is more private)",
        y_label="accuracy on test rows",
        log_x=True,
        percent=True,
        levels={PLAIN: plain},
    )
    return {"accuracy": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = by_setting(rows, "epsilon", "place", value="accuracy")
    epsilons = sorted({row["epsilon"] for row in rows})
    middle = epsilons[len(epsilons) // 2]
    lost = [e for e in epsilons if mean_of(found[e, TRAINING]) <= mean_of(found[e, INPUT])]
    answers = ", ".join(
        f"{shown(found[middle, name], percent=True)}% of {count}"
        for count, name in PREDICTION.items()
        if (middle, name) in found
    )
    plain, raw, trained = (shown(found[middle, place], percent=True) for place in (PLAIN, INPUT, TRAINING))
    sentence = (
        f"At epsilon {middle:g} noise in training gives {trained}%, noise on the input {raw}%, and noise at "
        f"prediction {answers} predictions ({plain}% without noise). Training is ahead of the input at "
        f"{len(epsilons) - len(lost)} of {len(epsilons)} epsilons."
    )
    if not lost:
        return Finding(Verdict.CONFIRMED, sentence)
    return Finding(Verdict.REFUTED if len(lost) == len(epsilons) else Verdict.PARTLY, sentence)


EXPERIMENT = Experiment(
    name="r2-noise-places",
    report="R2",
    shows=("Section IV: input, training, prediction",),
    title="Noise on the input, in training and at prediction",
    claim="The input is one of the hardest places to add noise; in training it gives good results.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(CREDIT,),
)
