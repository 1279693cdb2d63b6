# SPDX-License-Identifier: Apache-2.0
"""R4, Algorithm 5: DP-SGD, with the gradient clipped as the text says and as the algorithm does.

The text clips the L2 norm of a gradient to C. The algorithm clips each coordinate to [-C, C] and adds noise
for an L2 norm of C, which is the square root of the number of weights too little (docs/errata.md, R4-2). The
report states no setting. As it names TensorFlow Privacy, these are the defaults of that library's tutorial
for MNIST (github.com/tensorflow/privacy, tutorials/mnist_dpsgd_tutorial.py): clip norm 1, noise multiplier
1.1, learning rate 0.15, batches of 256, 30 epochs. The network is 784-128-10, as in the errata.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from sfumato.accounting import dp_sgd, gaussian, price
from sfumato.datasets import load
from sfumato.experiments.experiment import Case, Experiment, Finding, Row, Scale, Table, Verdict
from sfumato.experiments.r4 import generators
from sfumato.experiments.seeds import by_setting, shown
from sfumato.report import plot_bars
from sfumato.testing import seeded
from sfumato.training import Clipping, CoordinateClipping, PoissonSampling, Runtime, TrainingRun, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "least_epsilon"]

NOISE: Final = 1.1  # in multiples of C
WAYS: Final = {
    "norm": "L2 norm at most C (the text)",
    "coordinates": "coordinates at most C (Algorithm 5)",
    "corrected": "coordinates at most C, noise for their norm",
}


def least_epsilon(noise_multiplier: float, sampling_rate: float) -> float:
    """Return a lower bound on the epsilon of any number of Poisson-sampled steps: that of one, exactly.

    Args:
        noise_multiplier: The noise, in multiples of what one example can move.
        sampling_rate: The chance that an example is in the batch.

    Returns:
        The epsilon of one step for a removed example.

    >>> round(least_epsilon(1.0, 1.0), 4)
    4.3772
    """
    inner = gaussian.epsilon(1 / noise_multiplier, min(generators.DELTA / sampling_rate, 1 - 1e-9))
    if inner > 500:  # e^inner is beyond floats, and 1 does not count beside it
        return inner + math.log(sampling_rate)
    return math.log1p(sampling_rate * math.expm1(inner))


def _cases(scale: Scale) -> list[Case]:
    return [{"clipping": way, "seed": seed} for way in WAYS for seed in generators.seeds(scale)]


def _measure(case: Case, scale: Scale) -> Mapping[str, Any]:
    run, size = _trained(case, scale)
    sampling = run.mechanism.sampling
    assert isinstance(sampling, PoissonSampling)  # the default
    rate = sampling.sampling_rate
    claimed = price(
        dp_sgd(noise_multiplier=NOISE, sampling_rate=rate, steps=run.mechanism.steps), delta=generators.DELTA
    )
    return {
        "accuracy": run.accuracy,
        "weights": size,
        "steps": run.mechanism.steps,
        "claimed": claimed.epsilon,
        "epsilon": run.epsilon,
        "least": least_epsilon(run.mechanism.noise_multiplier(0), rate),
        "delta": run.guarantee.delta,
        "relation": run.guarantee.relation.value,
    }


def _trained(case: Case, scale: Scale) -> tuple[TrainingRun, int]:
    data = load("digits" if scale.quick else "mnist")
    hidden, epochs = (16, 2) if scale.quick else (128, 30)
    inputs = data.train.features[0].numel()
    with torch.random.fork_rng():
        torch.manual_seed(case["seed"])
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, data.num_classes)
        )
    size = sum(weight.numel() for weight in model.parameters())
    by_norm = case["clipping"] == "norm"
    run = train(
        model,
        (data.train.features, data.train.labels),
        evaluation=(data.test.features, data.test.labels),
        public_size=data.public_size,
        expected_batch_size=64 if scale.quick else 256,
        epochs=epochs,
        clipping=Clipping(clip_norm=1.0) if by_norm else CoordinateClipping(coordinate_bound=1.0),
        # A multiplier is of the norm that the clipping allows, which is sqrt(weights) for coordinates.
        noise_multiplier=NOISE / math.sqrt(size) if case["clipping"] == "coordinates" else NOISE,
        delta=generators.DELTA,
        learning_rate=0.15,
        runtime=Runtime(device=scale.device),
        generator=seeded(case["seed"]),
        progress=False,
    )
    return run, size


def _tables(rows: Sequence[Row]) -> list[Table]:
    accuracies = by_setting(rows, "clipping", value="accuracy")
    firsts = {way: next(row for row in rows if row["clipping"] == way) for way in WAYS}
    cells = [
        [
            WAYS[way],
            f"{row['claimed']:.3g}",
            f"{row['least']:.3g}",
            f"{row['epsilon']:.3g}",
            shown(accuracies[way], percent=True),
        ]
        for way, row in firsts.items()
    ]
    first = rows[0]
    title = (
        f"DP-SGD, {first['weights']} weights, {first['steps']} steps, delta {first['delta']:g}, "
        f"{first['relation']} neighbors, Poisson samples"
    )
    heads = ("clipped", "claimed epsilon", "true epsilon, at least", "true epsilon, at most", "accuracy, %")
    return [Table(title, heads, cells)]


def _figures(rows: Sequence[Row]) -> dict[str, "Figure"]:
    accuracies = by_setting(rows, "clipping", value="accuracy")
    names = {
        "norm": "norm",
        "coordinates": "coordinates\n(Algorithm 5)",
        "corrected": "coordinates,\nnoise fits",
    }
    bars = {names[way]: values for way, values in accuracies.items()}
    drawn = plot_bars(bars, title="DP-SGD by what is clipped", y_label="accuracy on test rows", percent=True)
    return {"accuracy": drawn}


def _finding(rows: Sequence[Row]) -> Finding:
    accuracies = by_setting(rows, "clipping", value="accuracy")
    written = next(row for row in rows if row["clipping"] == "coordinates")
    true = written["least"] <= written["claimed"]
    said = ", ".join(f"{WAYS[way]}: {shown(values, percent=True)}%" for way, values in accuracies.items())
    return Finding(
        Verdict.CONFIRMED if true else Verdict.REFUTED,
        f"With clipped coordinates the accountant says {written['claimed']:.3g}, and the true epsilon "
        f"is at least {written['least']:.3g}. Accuracy: {said}.",
    )


EXPERIMENT = Experiment(
    name="r4-dp-sgd",
    report="R4",
    shows=("Algorithm 5",),
    title="DP-SGD with the norm or each coordinate clipped",
    claim="DP-SGD that clips each coordinate to C has the epsilon that a moments accountant gives for C.",
    cases=_cases,
    measure=_measure,
    tables=_tables,
    figures=_figures,
    finding=_finding,
    data=("mnist",),
)
