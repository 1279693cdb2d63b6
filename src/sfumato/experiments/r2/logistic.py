# SPDX-License-Identifier: Apache-2.0
"""R2, Figures 2 and 3: the loss of logistic regression against the number of rows, and against epsilon.

R2 does not state its epsilon, its lambda or its bound on rows. Assumed: Figure 2 is at epsilon 1, rows are
clipped to norm 3, and lambda is 0.001. As in R2, a neighbor replaces a row, and delta is 0; no rows are
sampled. Lines "R2" have the noise that R2's Algorithms 1 and 2 ask for, whatever that costs (errata, R2-6).
The other lines have the regularization that sfumato chooses, and cost what they say.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sfumato.estimators import LogisticRegression
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.report.spread import half_interval, mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

PLAIN: Final = "not private"
OBJECTIVE, OUTPUT = "objective", "output"
RELAXED: Final = "objective, delta 1e-5"
OBJECTIVE_R2, OUTPUT_R2 = "objective, R2", "output, R2"
METHODS: Final = (PLAIN, OBJECTIVE, RELAXED, OUTPUT, OBJECTIVE_R2, OUTPUT_R2)

EPSILON: Final = 1.0  # where the number of rows changes
LAMBDA: Final = 1e-3  # R2's, beside a mean over rows
CLIP_NORM: Final = 3.0
CURVATURE: Final = 0.25  # the most that the logistic loss bends, for rows of norm 1
SOLVER_SHARE: Final = 0.01  # of epsilon, for the distance at which sfumato's solver stops
COST_HEADS: Final = ("rows", "claimed epsilon", "honest epsilon")
ALMOST: Final = 0.05  # "almost as good": a loss at most 5% above that without privacy


def _cases(scale: Scale) -> list[Case]:
    sizes = (100, 455) if scale.quick else (500, 1000, 3000, 8000, 24_000)
    epsilons = (10.0,) if scale.quick else (0.1, 0.3, 3.0, 10.0)
    settings = [(size, EPSILON) for size in sizes] + [(sizes[-1], epsilon) for epsilon in epsilons]
    return [
        {"rows": size, "epsilon": epsilon, "method": method, "seed": seed}
        for size, epsilon in settings
        for method in METHODS
        for seed in range(1 if scale.quick else 5)
    ]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    train, test = public_rows.parts(quick=scale.quick)
    chosen = public_rows.subset(train, case["rows"], case["seed"])
    if case["method"] == PLAIN:
        return {"honest": None, **public_rows.classified(public_rows.nonprivate_scores(chosen, test), test)}
    honest = _honest(case["method"], case["epsilon"], case["rows"])
    model = LogisticRegression(
        clip_norm=CLIP_NORM,
        classes=(0, 1),
        relation="replace-one",
        random_state=case["seed"],
        **_settings(case["method"], honest, case["rows"]),
    )
    scores = model.fit(chosen.features, chosen.labels).decision_function(test.features)
    return {"honest": round(model.guarantee_.epsilon, 6), **public_rows.classified(scores, test)}


def _honest(method: str, epsilon: float, rows: int) -> float:
    """Return what a method costs, where R2 claims epsilon."""
    if method != OBJECTIVE_R2:
        return epsilon
    return (epsilon + math.log1p(CURVATURE / (rows * LAMBDA))) / (1 - SOLVER_SHARE)


def _settings(method: str, epsilon: float, rows: int) -> dict[str, Any]:
    """Return the arguments of the estimator: its regularization is that of a sum over rows."""
    unit = math.hypot(CLIP_NORM, CLIP_NORM / 2) ** 2  # squared norm of a row with its intercept
    regularization = rows * LAMBDA * unit if method in (OBJECTIVE_R2, OUTPUT_R2) else None
    return {
        "epsilon": epsilon,
        "method": method.split(",")[0],
        "delta": 1e-5 if method == RELAXED else 0.0,
        "regularization": regularization,
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    most = max(row["rows"] for row in rows)
    some = [row for row in rows if row["epsilon"] == EPSILON]
    all_rows = [row for row in rows if row["rows"] == most]
    how = "replace-one neighbors, delta 0"
    honest = by_setting(rows, "method", "rows", "epsilon", value="honest")
    costs = [(*key, f"{honest[OBJECTIVE_R2, *key][0]:.3f}") for key in _settings_of(rows)]
    return [
        _table(f"Figure 2: log loss on test rows at epsilon {EPSILON:g}, {how}", some, "rows", "loss"),
        _table(f"Figure 3: log loss on test rows, {most} rows, {how}", all_rows, "epsilon", "loss"),
        _table(f"Accuracy on test rows in percent, {most} rows", all_rows, "epsilon", "accuracy"),
        Table(f"The cost of R2's objective perturbation, lambda {LAMBDA:g}, {how}", COST_HEADS, costs),
    ]


def _table(title: str, rows: Sequence[Row], name: str, value: str) -> Table:
    found = by_setting(rows, name, "method", value=value)
    percent = value == "accuracy"
    lines = [
        [key, *(shown(found[key, method], digits=2 if percent else 4, percent=percent) for method in METHODS)]
        for key in sorted({row[name] for row in rows})
    ]
    return Table(title, (name, *METHODS), lines)


def _settings_of(rows: Sequence[Row]) -> list[tuple[int, float]]:
    return sorted({(row["rows"], row["epsilon"]) for row in rows})


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    most = max(row["rows"] for row in rows)
    at_one = [row for row in rows if row["epsilon"] == EPSILON]
    at_most = [row for row in rows if row["rows"] == most]
    plain = mean_of(by_setting(at_most, "method", value="loss")[PLAIN])

    def lines(some: Sequence[Row], name: str, methods: Sequence[str]) -> dict[str, Any]:
        return {
            method: by_setting([row for row in some if row["method"] == method], name, value="loss")
            for method in methods
        }

    how: Any = {"y_label": "log loss on test rows", "log_x": True, "log_y": True}
    return {
        "rows": plot_lines(
            lines(at_one, "rows", METHODS), title=f"Epsilon {EPSILON:g}", x_label="rows to learn from", **how
        ),
        "epsilon": plot_lines(
            lines(at_most, "epsilon", METHODS[1:]),
            title=f"{most} rows",
            x_label="epsilon (smaller is more private)",
            levels={PLAIN: plain},
            **how,
        ),
    }


def _finding(rows: Sequence[Row]) -> Finding:
    most = max(row["rows"] for row in rows)
    losses = by_setting(rows, "method", "rows", "epsilon", value="loss")
    right = by_setting(rows, "method", "rows", "epsilon", value="accuracy")
    here = (most, EPSILON)
    plain = mean_of(losses[PLAIN, *here])
    ratio = [loss / plain - 1 for loss in losses[OBJECTIVE, *here]]
    error = half_interval(ratio) or 0.0
    almost = mean_of(ratio) + error <= ALMOST
    settings = _settings_of(rows)
    behind = [key for key in settings if mean_of(losses[OBJECTIVE, *key]) >= mean_of(losses[OUTPUT, *key])]
    relaxed = mean_of(losses[RELAXED, *here]) / plain - 1
    accuracy, plain_accuracy = (shown(right[name, *here], percent=True) for name in (OBJECTIVE, PLAIN))
    sentence = (
        f"At epsilon {EPSILON:g} and {most} rows the loss of objective perturbation is "
        f"{100 * mean_of(ratio):.1f} ± {100 * error:.1f}% above that without privacy (accuracy {accuracy}% "
        f"against {plain_accuracy}%; with a delta of 1e-5 the loss is {100 * relaxed:.1f}% above), "
        f"{'within' if almost else 'more than'} the {100 * ALMOST:g}% that we call almost as good. It is "
        f"better than output perturbation in {len(settings) - len(behind)} of {len(settings)} settings."
    )
    if almost and not behind:
        return Finding(Verdict.CONFIRMED, sentence)
    return Finding(Verdict.PARTLY if almost or not behind else Verdict.REFUTED, sentence)


EXPERIMENT = Experiment(
    name="r2-logistic",
    report="R2",
    shows=("Figure 2", "Figure 3"),
    title="Logistic regression on credit default: objective and output perturbation",
    claim=(
        "Objective perturbation performs almost as well as logistic regression without privacy, and always "
        "better than output perturbation."
    ),
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(public_rows.CREDIT,),
)
