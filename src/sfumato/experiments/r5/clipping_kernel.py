# SPDX-License-Identifier: Apache-2.0
"""R5, "Clipping Types and Convergence": the table, and the argument behind it, measured on a small network.

For each style the matrix that governs the loss (`kernel`) is computed along a descent without noise, and at
the first weights for many random errors. The slides' columns are read as follows: "PSD NTK": the matrix is
symmetric and positive semi-definite; "loss convergence": the loss never rises in a descent with small steps;
"to 0 loss": the descent ends at less than a hundredth of its first loss. If it does not, but the loss still
falls at the end, nothing is decided ("not yet"). One set of targets has an outlier.

Clip norm and drop norm are taken from the norms at the first weights, which would cost privacy where rows are
private. Global clipping is measured as Bu, Wang and Long define it, with a public factor (rows above
`drop_above` are dropped), and as the slides word it, with a factor that the batch decides.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from sfumato import datasets
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r5 import kernel
from sfumato.experiments.r5.tasks import with_seed
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_lines
from sfumato.training import Clipping, Scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

# PSD NTK, loss convergence, to 0 loss: the table of the slides.
CLAIMED: Final = {
    "no clipping": (True, True, True),
    "local flat": (False, False, True),
    "local layerwise": (False, False, False),
    "global flat": (True, True, True),
    "global layerwise": (True, True, True),
}
DROPPING, BY_BATCH = "global flat, half of the rows dropped", "global flat, factor from the batch"
STYLES: Final = (*CLAIMED, DROPPING, BY_BATCH)
COLUMNS: Final = ("PSD NTK", "loss never rises", "to 0 loss")
CLIPPED_AT: Final = 0.3  # of the median norm at the first weights
DROPPED_ABOVE: Final = 10.0  # times the largest norm at the first weights: nothing is dropped
ZERO: Final = 0.01  # of the first loss
OUTLIER: Final = -10.0  # the target of one row; those of all others are 1


def _cases(scale: Scale) -> list[Case]:
    targets = ("outlier",) if scale.quick else ("labels", "outlier")
    seeds = (1,) if scale.quick else (1, 2, 3)
    return [{"style": style, "targets": t, "seed": s} for style in STYLES for t in targets for s in seeds]


def _network(width: int) -> nn.Module:
    layers = (nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    return nn.Sequential(*layers).double()


def _rows(targets: str, count: int) -> tuple[Tensor, Tensor]:
    """Return digits with targets: 1 for odd and -1 for even ones, or 1 for all but an outlier."""
    data = datasets.load("digits").train
    x = data.features[:count].flatten(1).double()
    if targets == "labels":
        return x, (data.labels[:count] % 2 * 2 - 1).double()
    y = torch.ones(count, dtype=torch.float64)
    y[0] = OUTLIER
    return x, y


def _style(name: str, norms: Tensor) -> kernel.Style:
    """Return a style with thresholds for these norms."""
    clip_norm, above = CLIPPED_AT * float(norms.median()), DROPPED_ABOVE * float(norms.max())
    if name == "no clipping":
        return None
    if name == BY_BATCH:
        return kernel.BatchFactor(clip_norm)
    if name.startswith("local"):
        return Clipping(clip_norm=clip_norm, per_layer="layerwise" in name)
    above = float(norms.median()) if name == DROPPING else above
    return Clipping(
        clip_norm=clip_norm, per_layer="layerwise" in name, scaling=Scaling.GLOBAL, drop_above=above
    )


def _speed(style: kernel.Style, found: kernel.Tangents, errors: Tensor) -> float:
    """Return the factor that the learning rate makes up for: that of rows of the usual norm."""
    if style is None:
        return 1.0
    if isinstance(style, Clipping) and style.scaling is Scaling.LOCAL:
        return CLIPPED_AT
    return max(float(weights.max()) for weights in kernel.factors(style, found, errors).values())


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    rows, width, steps, every, draws = (16, 8, 60, 20, 5) if scale.quick else (32, 16, 8000, 100, 300)
    x, y = _rows(case["targets"], rows)
    model = with_seed(lambda: _network(width), case["seed"])
    found = kernel.tangents(model, x)
    errors = found.outputs - y
    style = _style(case["style"], found.norms(errors))
    seen = _drawn(case, found, draws)

    def watch(step: int, found: kernel.Tangents, errors: Tensor) -> None:
        if step % every == 0:
            seen.append(kernel.spectrum(found.matrix(kernel.factors(style, found, errors))))

    whole = found.matrix(kernel.factors(None, found, errors))
    rate = 0.02 * rows / float(torch.linalg.eigvalsh(whole).max()) / _speed(style, found, errors)
    losses = kernel.descend(model, x, y, style=style, learning_rate=rate, steps=steps, watch=watch)
    return {
        **_told(seen),
        "rises": sum(b > a * (1 + 1e-9) for a, b in pairwise(losses)),
        "highest": max(losses) / losses[0],
        "last": losses[-1] / losses[0],
        "falling": losses[-1] < losses[-(steps // 10) - 1] * (1 - 1e-4),
        "losses": [round(loss / losses[0], 6) for loss in losses[:: max(1, steps // 40)]],
        "every": max(1, steps // 40),
        "reach": None if style is None else kernel.reach(style, found, errors) / _clip_norm(style),
    }


def _drawn(case: Case, found: kernel.Tangents, draws: int) -> list[kernel.Spectrum]:
    """Return the matrices of random errors with heavy tails, each clipped at thresholds of its own."""
    source = torch.Generator().manual_seed(case["seed"])
    seen: list[kernel.Spectrum] = []
    for _ in range(draws):
        sizes = torch.randn(len(found.outputs), generator=source).double().mul(2).exp()
        errors = torch.randn(len(found.outputs), generator=source).double() * sizes
        style = _style(case["style"], found.norms(errors))
        seen.append(kernel.spectrum(found.matrix(kernel.factors(style, found, errors))))
    return seen


def _told(seen: Sequence[kernel.Spectrum]) -> dict[str, Any]:
    return {
        "semi_definite": all(one.semi_definite for one in seen),
        "asymmetry": max(one.asymmetry for one in seen),
        "form": min(one.form for one in seen),
        "real": min(one.real for one in seen),
    }


def _clip_norm(style: Clipping | kernel.BatchFactor) -> float:
    assert style.clip_norm is not None  # all styles here state one
    return style.clip_norm


def _measured(rows: Sequence[Row], style: str) -> tuple[bool, bool, bool | None]:
    """Return the three columns of the table as measured, in all runs of a style; None: not decided."""
    own = [row for row in rows if row["style"] == style]
    slow = [row for row in own if row["last"] >= ZERO]
    return (
        all(row["semi_definite"] for row in own),
        all(row["rises"] == 0 for row in own),
        not slow or (None if all(row["falling"] for row in slow) else False),
    )


def _word(said: bool | None) -> str:
    return "not yet" if said is None else "yes" if said else "no"


def _tables(rows: Sequence[Row]) -> list[Table]:
    cells: list[list[object]] = []
    for style in STYLES:
        claims = [_word(said) for said in CLAIMED[style]] if style in CLAIMED else ["-"] * 3
        found = [_word(said) for said in _measured(rows, style)]
        cells.append([style, *(f"{a} / {b}" for a, b in zip(claims, found, strict=True))])
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    numbers = [_numbers(row) for style in STYLES for row in first if row["style"] == style]
    heads = (
        "style",
        "targets",
        "asymmetry",
        "least e'Me",
        "least real part",
        "steps at which the loss rises",
    )
    heads = (*heads, "highest loss", "last loss", "one row moves the sum by, in clip norms")
    return [
        Table("The table of the slides: claimed / measured", ("clipping", *COLUMNS), cells),
        Table("What was measured, first seed; losses are relative to the first one", heads, numbers),
    ]


def _numbers(row: Row) -> list[object]:
    sizes = [f"{row[name]:.2g}" for name in ("asymmetry", "form", "real")]
    moved = "-" if row["reach"] is None else f"{row['reach']:.3g}"
    losses = (row["rises"], f"{row['highest']:.3f}", f"{row['last']:.2g}")
    return [row["style"], row["targets"], *sizes, *losses, moved]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    lines: dict[str, dict[float, list[float]]] = {}
    for row in (row for row in rows if row["targets"] == "outlier"):
        line = lines.setdefault(row["style"], {})
        for place, loss in enumerate(row["losses"]):
            line.setdefault(place * row["every"], []).append(loss)
    drawn = plot_lines(
        lines, title="Descent without noise, one outlier", x_label="steps", y_label="loss", log_y=True
    )
    return {"loss": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    found = {style: _measured(rows, style) for style in STYLES}
    other = [
        f"{style}, {column}: {_word(found[style][place])}"
        for style, claims in CLAIMED.items()
        for place, column in enumerate(COLUMNS)
        if found[style][place] not in (None, claims[place])
    ]
    least = {style: min(values) for style, values in by_setting(rows, "style", value="real").items()}
    open_cells = sum(found[style][2] is None for style in CLAIMED)
    same = 3 * len(CLAIMED) - len(other) - open_cells
    verdict = Verdict.CONFIRMED if not other else Verdict.PARTLY if same > len(other) else Verdict.REFUTED
    far = by_setting(rows, "style", value="reach")[BY_BATCH]
    return Finding(
        verdict,
        f"{same} of {3 * len(CLAIMED)} cells agree, {open_cells} are not decided"
        + (f" (measured otherwise: {'; '.join(other)})" if other else "")
        + f". The least real part of an eigenvalue is {least['local flat']:.1g} of the largest for flat and "
        f"{least['local layerwise']:.1g} for layerwise local clipping. With half of the rows "
        f"dropped global clipping has a positive kernel: {_word(found[DROPPING][0])}. With a factor from the "
        f"batch one row moves the sum by {shown(far, digits=1)} clip norms, where noise is sized for 1.",
    )


EXPERIMENT = Experiment(
    name="r5-clipping-kernel",
    report="R5",
    shows=("Table: Clipping Types and Convergence",),
    title="Clipping styles: the clipped tangent kernel, and descent without noise",
    claim="Local clipping breaks the positivity of the NTK and worsens convergence; global does not.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
)
