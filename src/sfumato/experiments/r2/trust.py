# SPDX-License-Identifier: Apache-2.0
"""R2, Section IV: central, local and distributed differential privacy on one task.

R2 describes the three and gives no numbers. The task is one sum over clients: of (y - 0.22) (x - 0.5), which
is their number times the covariance of label and features, as 22% is the published share of defaults. Its
direction is a linear classifier. Each vector is clipped to norm 1.5. The trusted server adds Gaussian noise
to the sum (central); each client adds as much to its own vector (local); or each adds a share of integer
noise and the server sees the sum alone (distributed; secure aggregation, simulated). All cost the same
(epsilon, 1e-6) for a client whose row is replaced. Nothing is sampled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from sfumato.accounting import Relation, calibrate, price
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import CREDIT, Floats, Part
from sfumato.experiments.seeds import by_setting, shown
from sfumato.federated import ClippedNoise, SecureSum
from sfumato.federated.secure_sum.simulated import simulated_sum
from sfumato.generative.evaluation.classifier_scores import auroc
from sfumato.mechanisms import add_gaussian_
from sfumato.report import plot_lines
from sfumato.report.spread import mean_of
from sfumato.testing import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

DELTA: Final = 1e-6
CLIP_NORM: Final = 1.5
SHARE: Final = 0.22  # of clients that default, as published
RELATION: Final = Relation.REPLACE_ONE
BITS: Final = 32  # of a coordinate under secure aggregation
SAME: Final = 1.25  # "the utility of central DP": an error of at most so many times the central one


def _cases(scale: Scale) -> list[Case]:
    sizes = (200,) if scale.quick else (1000, 8000, 24_000)
    epsilons = (4.0,) if scale.quick else (1.0, 4.0)
    return [
        {"model": model, "clients": size, "epsilon": epsilon, "seed": seed}
        for model in MODELS
        for size in sizes
        for epsilon in epsilons
        for seed in range(1 if scale.quick else 5)
    ]


def _clipped(part: Part) -> Floats:
    """Return the vector of each client, clipped."""
    vectors = (part.labels - SHARE)[:, None] * (part.features - 0.5)
    return ClippedNoise(noise_multiplier=1.0, clip_norm=CLIP_NORM).clipped(torch.from_numpy(vectors)).numpy()


def _gaussian(epsilon: float) -> ClippedNoise:
    return ClippedNoise.calibrated(epsilon=epsilon, delta=DELTA, clip_norm=CLIP_NORM, relation=RELATION)


def _central(vectors: Floats, epsilon: float, seed: int) -> tuple[Floats, Any]:
    noise = _gaussian(epsilon)
    total = torch.from_numpy(vectors.sum(axis=0))
    add_gaussian_(total, stddev=noise.noise_multiplier * CLIP_NORM, generator=seeded(seed))
    return total.numpy(), noise.event()


def _local(vectors: Floats, epsilon: float, seed: int) -> tuple[Floats, Any]:
    noise = _gaussian(epsilon)
    return noise.release(torch.from_numpy(vectors), generator=seeded(seed)).sum(dim=0).numpy(), noise.event()


def _distributed(vectors: Floats, epsilon: float, seed: int) -> tuple[Floats, Any]:
    """Return the sum that secure aggregation decodes if nobody drops out."""
    clients, dimension = vectors.shape
    summed = SecureSum(
        dimension=dimension,
        clip_norm=CLIP_NORM,
        noise_multiplier=1.0,
        cohort=clients,
        least_survivors=clients,
        bits=BITS,
    )
    noise = calibrate(summed.event_at, epsilon=epsilon, delta=DELTA, relation=RELATION)
    summed = summed.scaled(noise)
    found = simulated_sum(vectors, summed, seed=seed, generator=seeded(seed))
    assert found is not None  # all clients are there
    return found, summed.event()


CENTRAL, LOCAL, DISTRIBUTED = "central", "local", "distributed"
MODELS: Final[dict[str, Callable[[Floats, float, int], tuple[Floats, Any]]]] = {
    CENTRAL: _central,
    DISTRIBUTED: _distributed,
    LOCAL: _local,
}


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    train, test = public_rows.parts(quick=scale.quick)
    vectors = _clipped(public_rows.subset(train, case["clients"], case["seed"]))
    found, event = MODELS[case["model"]](vectors, case["epsilon"], case["seed"])
    true = vectors.sum(axis=0)
    honest = price(event, delta=DELTA, relation=RELATION).epsilon
    return {
        "honest": round(honest, 5),
        "error": round(float(np.linalg.norm(found - true) / np.linalg.norm(true)), 5),
        "auroc": _auroc(found, test),
        "without noise": _auroc(true, test),
    }


def _auroc(direction: Floats, test: Part) -> float:
    area = auroc((test.features - 0.5) @ direction, test.labels == 1)
    return round(0.5 if area is None else area, 5)


def _tables(rows: Sequence[Row]) -> list[Table]:
    values = ("honest", "error", "auroc", "without noise")
    found = {value: by_setting(rows, "clients", "epsilon", "model", value=value) for value in values}
    cells = [
        (
            *key,
            f"{found['honest'][key][0]:.4g}",
            *(shown(found[value][key], digits=3) for value in values[1:]),
        )
        for key in sorted(found["error"], key=lambda key: (key[0], key[1], list(MODELS).index(key[2])))
    ]
    heads = ("clients", "epsilon", "model", "honest epsilon", "error of the sum", "AUROC", "AUROC, no noise")
    return [Table(f"One sum over clients, delta {DELTA:g}, replace-one neighbors", heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    epsilon = min(row["epsilon"] for row in rows)
    some = [row for row in rows if row["epsilon"] == epsilon]
    drawn = plot_lines(
        {
            model: by_setting([row for row in some if row["model"] == model], "clients", value="error")
            for model in MODELS
        },
        title=f"The same sum at epsilon {epsilon:g}",
        x_label="clients",
        y_label="relative error of the sum",
        log_x=True,
        log_y=True,
    )
    return {"error": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    clients, epsilon = max(row["clients"] for row in rows), min(row["epsilon"] for row in rows)
    here = [row for row in rows if row["clients"] == clients and row["epsilon"] == epsilon]
    error = {model: mean_of(values) for model, values in by_setting(here, "model", value="error").items()}
    area = {
        model: shown(values, digits=3) for model, values in by_setting(here, "model", value="auroc").items()
    }
    covers, drops = error[DISTRIBUTED] <= SAME * error[CENTRAL], error[LOCAL] > 2 * error[CENTRAL]
    sentence = (
        f"At epsilon {epsilon:g} with {clients} clients the sum is off by {100 * error[CENTRAL]:.1f}% of its "
        f"length (central), {100 * error[DISTRIBUTED]:.1f}% (distributed) and {100 * error[LOCAL]:.0f}% "
        f"(local, {error[LOCAL] / error[CENTRAL]:.0f} times as much as central). AUROC of the classifier: "
        f"{area[CENTRAL]}, {area[DISTRIBUTED]} and {area[LOCAL]}."
    )
    if covers and drops:
        return Finding(Verdict.CONFIRMED, sentence)
    return Finding(Verdict.PARTLY if covers or drops else Verdict.REFUTED, sentence)


EXPERIMENT = Experiment(
    name="r2-trust",
    report="R2",
    shows=("Section IV: local, central, distributed",),
    title="Central, local and distributed privacy on one task",
    claim="Local privacy has a serious drop of utility; distributed privacy covers that of central privacy.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=(CREDIT,),
)
