# SPDX-License-Identifier: Apache-2.0
"""R2, Figure 8: DP-SGD for logistic regression beside the perturbation methods, and why R2's failed.

R2 says that its DP-SGD was "as good as random guessing" and gives neither its settings nor how it prepared
columns. Here DP-SGD learns from the same clients three times: from columns as published, where a bill is up
to a million dollars; from columns mapped to 0..1; and from these with rows of norm at most 1, so that the
clip norm of 1 hardly changes a gradient. Nearly no noise (epsilon 1000) tells what the noise does. Where
learning rates differ, batches are Poisson samples of 256 and there are 5 epochs without momentum, as in
tutorials of Opacus. The line "DP-SGD" has sfumato's defaults: 200 steps with momentum, each on all rows.

delta is 1e-5, neighbors add or remove a row. Learning rates are compared on the test rows.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from sfumato.estimators import LogisticRegression
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import Floats, Part
from sfumato.experiments.r2.raw_columns import raw_parts
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.testing import seeded
from sfumato.training import Runtime, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-5
CLIP_NORM: Final = 3.0  # of rows
EPSILON: Final = 1.0  # where learning rates differ
HARDLY_ANY_NOISE: Final = 1000.0
SGD: Final = "DP-SGD"
METHODS: Final = {"objective": "objective", "output": "output", SGD: "dp-sgd"}
RAW, SCALED, UNIT = "as published", "from 0 to 1", "rows of norm 1"
COLUMNS: Final = (RAW, SCALED, UNIT)
USUAL: Final = 0.1  # the largest learning rate that is usual for SGD
GUESSING: Final = 0.55  # a balanced accuracy below this is called random guessing; 0.5 is
BATCH, EPOCHS = 256, 5


def _cases(scale: Scale) -> list[Case]:
    epsilons = (EPSILON,) if scale.quick else (0.1, 0.3, 1.0, 3.0, 10.0)
    rates = (0.1,) if scale.quick else (0.01, 0.1, 1.0, 4.0, 16.0)
    seeds = range(1 if scale.quick else 5)
    curves = [
        {"part": "methods", "method": method, "epsilon": epsilon, "seed": seed}
        for method in METHODS
        for epsilon in epsilons
        for seed in seeds
    ]
    ablation = [
        {"part": "rates", "columns": columns, "rate": rate, "epsilon": epsilon, "seed": seed}
        for columns in COLUMNS
        for rate in rates
        for epsilon in (EPSILON, HARDLY_ANY_NOISE)
        for seed in seeds[:3]
    ]
    return [*curves, *ablation]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    if case["part"] == "methods":
        return _of_method(case, *public_rows.parts(quick=scale.quick))
    parts = (raw_parts if case["columns"] == RAW else public_rows.parts)(quick=scale.quick)
    if case["columns"] == UNIT:
        parts = tuple(part._replace(features=_unit(part.features)) for part in parts)
    return _of_rate(case, *parts, device=scale.device)


def _unit(features: Floats) -> Floats:
    """Return rows scaled by one number, and longer ones to norm 1."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), CLIP_NORM)


def _of_method(case: Case, learned: Part, test: Part) -> dict[str, float]:
    model = LogisticRegression(
        epsilon=case["epsilon"],
        delta=DELTA,
        clip_norm=CLIP_NORM,
        classes=(0, 1),
        method=METHODS[case["method"]],
        public_size=len(learned.labels) if case["method"] == SGD else None,
        random_state=case["seed"],
    )
    scores = model.fit(learned.features, learned.labels).decision_function(test.features)
    return {"honest": round(model.guarantee_.epsilon, 6), **_found(scores, test)}


def _of_rate(case: Case, learned: Part, test: Part, *, device: str | None) -> dict[str, float]:
    model = nn.Linear(learned.features.shape[1], 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    run = train(
        model,
        (torch.from_numpy(learned.features).float(), torch.from_numpy(learned.labels)),
        epsilon=case["epsilon"],
        delta=DELTA,
        epochs=EPOCHS,
        expected_batch_size=min(BATCH, len(learned.labels) // 4),
        public_size=len(learned.labels),
        optimizer=torch.optim.SGD(model.parameters(), lr=case["rate"]),
        generator=seeded(case["seed"]),
        runtime=Runtime(device="cpu" if device is None else device, check=False),
        progress=False,
    )
    with torch.no_grad():
        outputs = model.cpu()(torch.from_numpy(test.features).float()).double()
    scores = (outputs[:, 1] - outputs[:, 0]).numpy()
    return {"honest": round(run.guarantee.epsilon, 6), **_found(scores, test)}


def _found(scores: Floats, test: Part) -> dict[str, float]:
    right = (scores > 0) == (test.labels == 1)
    balanced = float(np.mean([right[test.labels == label].mean() for label in (0, 1)]))
    return {**public_rows.classified(scores, test), "balanced": round(balanced, 5)}


def _of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _tables(rows: Sequence[Row]) -> list[Table]:
    methods, rates = _of_part(rows, "methods"), _of_part(rows, "rates")
    how = f"delta {DELTA:g}, add-remove neighbors"
    tables = [
        Table(
            f"Figure 8: {name} on test rows, {how}",
            ("epsilon", *METHODS),
            _lines(methods, value, percent=value != "loss"),
        )
        for value, name in (("loss", "log loss"), ("accuracy", "accuracy in percent"))
    ]
    right, balanced, loss = (
        by_setting(rates, "columns", "rate", "epsilon", value=value)
        for value in ("accuracy", "balanced", "loss")
    )
    cells = [
        (
            *key,
            shown(right[key], percent=True),
            shown(balanced[key], percent=True),
            f"{mean_of(loss[key]):.4g}",
        )
        for key in right
    ]
    heads = ("columns", "learning rate", "epsilon", "accuracy, %", "balanced accuracy, %", "log loss")
    title = f"DP-SGD with batches of {BATCH} and {EPOCHS} epochs, Poisson sampling, {how}"
    return [*tables, Table(title, heads, cells)]


def _lines(rows: Sequence[Row], value: str, *, percent: bool) -> list[list[object]]:
    found = by_setting(rows, "epsilon", "method", value=value)
    return [
        [
            epsilon,
            *(shown(found[epsilon, name], digits=2 if percent else 4, percent=percent) for name in METHODS),
        ]
        for epsilon in sorted({row["epsilon"] for row in rows})
    ]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    methods, rates = _of_part(rows, "methods"), _of_part(rows, "rates")
    losses = {
        name: by_setting([row for row in methods if row["method"] == name], "epsilon", value="loss")
        for name in METHODS
    }
    balanced = {
        f"{columns}, epsilon {epsilon:g}": by_setting(
            [row for row in rates if (row["columns"], row["epsilon"]) == (columns, epsilon)],
            "rate",
            value="balanced",
        )
        for columns in COLUMNS
        for epsilon in (EPSILON, HARDLY_ANY_NOISE)
    }
    return {
        "methods": plot_lines(
            losses,
            title=f"Logistic regression, delta {DELTA:g}",
            x_label="epsilon (smaller is more private)",
            y_label="log loss on test rows",
            log_x=True,
        ),
        "why": plot_lines(
            balanced,
            title="DP-SGD needs a large learning rate, and columns of a similar size",
            x_label="learning rate",
            y_label="balanced accuracy on test rows",
            log_x=True,
            percent=True,
        ),
    }


def _finding(rows: Sequence[Row]) -> Finding:
    balanced = by_setting(_of_part(rows, "methods"), "method", "epsilon", value="balanced")
    accuracy = by_setting(_of_part(rows, "methods"), "method", "epsilon", value="accuracy")
    private = mean_of(balanced[SGD, EPSILON])
    descent, objective = (shown(accuracy[name, EPSILON], percent=True) for name in (SGD, "objective"))
    best = [
        f"{100 * _best(rows, columns, EPSILON):.1f}% ({columns}; "
        f"{100 * _best(rows, columns, HARDLY_ANY_NOISE):.1f}% with hardly any noise)"
        for columns in COLUMNS
    ]
    usual = max(_best(rows, columns, HARDLY_ANY_NOISE, most=USUAL) for columns in COLUMNS)
    sentence = (
        f"At epsilon {EPSILON:g} DP-SGD has an accuracy of {descent}% (balanced over classes "
        f"{100 * private:.1f}%), and objective perturbation {objective}%. In small batches the best learning "
        f"rate has a balanced accuracy of {', '.join(best)}. At learning rates up to {USUAL:g} it is at most "
        f"{100 * usual:.1f}%, even with hardly any noise."
    )
    if private < GUESSING:
        return Finding(Verdict.CONFIRMED, sentence)
    cause = " So R2's result can be had without any noise: by such settings." if usual < GUESSING else ""
    return Finding(Verdict.REFUTED, sentence + cause)


def _best(rows: Sequence[Row], columns: str, epsilon: float, *, most: float = np.inf) -> float:
    """Return the balanced accuracy of the best learning rate."""
    found = by_setting(_of_part(rows, "rates"), "columns", "epsilon", "rate", value="balanced")
    return max(
        mean_of(values) for key, values in found.items() if key[:2] == (columns, epsilon) and key[2] <= most
    )


EXPERIMENT = Experiment(
    name="r2-logistic-dp-sgd",
    report="R2",
    shows=("Figure 8",),
    title="Logistic regression by DP-SGD, and why R2's failed",
    claim="DP-SGD performs as good as random guessing on logistic regression.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(public_rows.CREDIT,),
)
