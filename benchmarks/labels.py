# SPDX-License-Identifier: Apache-2.0
"""What does label privacy cost? Accuracy of every method, what denoising does, and the price of a projection.

    python benchmarks/labels.py                    three seeds each; an hour on two cores, minutes on a GPU
    python benchmarks/labels.py --device cuda
    python benchmarks/labels.py --only steps       one part: altconv, fresh, best, order, denoising or steps
    python benchmarks/labels.py --quick            digits in place of MNIST, one seed, no bars; under a minute
    python benchmarks/labels.py --json             rows for a program: what, value, bar, met

Claim     Replace-label neighbors, one label as the unit, delta n^-1.1 (0 where labels are released), noise
          secure. A seed sets first weights and clusters, and nothing else.
AltConv   MNIST and Fashion-MNIST with the tiny network of the paper, at epsilon 0.1, 0.5 and 1. It starts
          from weights that tell clusters of the public images apart; `fresh` starts from random ones, as the
          paper does.
Best      The method that `labels.choose` names.
Order     AltConv, DP-SGD, SelfConv and SelfSpan on MNIST, the same network and first weights; `--figure`
          draws it. Bar at epsilon 0.1: the accuracy of the one before.
Denoising Cosine and distance of the noisy and of the denoised gradient to the noiseless one, by epsilon.
Steps     Time of a step with AltConv over that of the same step of DP-SGD. Bar: 3. And the relative gap that
          projections reach. Bar: 1e-3.
Settings  Those of `sfumato.labels.recipes`, fixed beforehand on rows held out of the training rows.
Data      As in benchmarks/accuracy.py: SFUMATO_DATA names a folder.
"""

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from models.results import Row, report
from torch import Tensor, nn

from sfumato.datasets import DataNotFoundError, Dataset, load
from sfumato.labels import AltConv, NoisyGradients, train
from sfumato.labels.choose import choose
from sfumato.labels.recipes import LabelRecipe, clustered, first_model, points_of, recipe, tiny_cnn
from sfumato.mechanisms.random import resolve
from sfumato.report.curves import Series, line_chart
from sfumato.training import Runtime, Trainer, cross_entropy

SEEDS = (11, 12, 13)
EPSILONS = (0.1, 0.5, 1.0)
BARS = {"mnist": (91.1, 94.1, 94.3), "fashion-mnist": (75.7, 79.8, 81.7)}
SETS = list(BARS)
FIGURES: list[Path] = []
BEST = {("mnist", 0.1): 95.0, ("mnist", 1.0): 97.0, ("fashion-mnist", 0.1): 79.0}
STEP_BAR, GAP_BAR = 3.0, 1e-3
QUICK_STEPS = 10
GRADIENTS = ("altconv", "dp-sgd", "selfconv", "selfspan")


def delta_of(data: Dataset) -> float:
    """Return the paper's delta."""
    return data.public_size**-1.1


def accuracy(
    data: Dataset, method: str, epsilon: float, *, seed: int, device: str, quick: bool
) -> tuple[float, float]:
    """Return test accuracy in percent, and seconds, those for the first weights left out."""
    made = recipe(
        data, method, epsilon=epsilon, delta=delta_of(data), seed=seed, model=start(data, method, seed)
    )
    return _trained(made, data, device, quick)


def _trained(made: LabelRecipe, data: Dataset, device: str, quick: bool) -> tuple[float, float]:
    asked = made.method
    if quick and isinstance(asked, NoisyGradients):
        asked = replace(asked, steps=QUICK_STEPS, alternative_batch_size=32)
    run = train(
        made.model.to(device),
        made.features.to(device),
        data.train.labels,
        method=asked,
        study=made.study,
        evaluation=(made.test_features.to(device), data.test.labels.to(device)),
        progress=False,
        runtime=Runtime(device=torch.device(device)) if isinstance(asked, NoisyGradients) else None,
    )
    assert run.accuracy is not None
    return 100 * run.accuracy, run.seconds


@cache
def groups(data: Dataset) -> Tensor:
    """Return clusters of a set's public features, once for all seeds."""
    return clustered(points_of(data.train.features), clusters=3 * data.num_classes)[0]


@cache
def _first(data: Dataset, seed: int) -> nn.Module:
    return first_model(data, seed=seed, groups=groups(data))


def start(data: Dataset, method: str, seed: int) -> nn.Module | None:
    """Return the first weights of methods by noisy gradients: the same for all of them."""
    return copy.deepcopy(_first(data, seed)) if method in GRADIENTS else None


def _mean(
    data: Dataset, method: str, epsilon: float, *, subject: str, bar: float | None, quick: bool, device: str
) -> Row:
    seeds = SEEDS[:1] if quick else SEEDS
    found = [accuracy(data, method, epsilon, seed=seed, device=device, quick=quick) for seed in seeds]
    each = ", ".join(f"{value:.2f}" for value, _ in found)
    return Row(
        subject=subject,
        name=f"{data.name}, epsilon {epsilon:g}, {method}",
        value=statistics.mean(value for value, _ in found),
        bar=None if quick else bar,
        at_least=True,
        note=f"{each}; {statistics.mean(seconds for _, seconds in found):.0f} s",
    )


def altconv(quick: bool, device: str) -> Iterator[Row]:
    """Measure AltConv on every set at every epsilon."""
    for data in _sets(quick):
        for epsilon, bar in zip(EPSILONS, BARS.get(data.name, (None,) * 3), strict=True):
            subject = "AltConv, test accuracy, %"
            yield _mean(data, "altconv", epsilon, subject=subject, bar=bar, quick=quick, device=device)


def fresh(quick: bool, device: str) -> Iterator[Row]:
    """Measure AltConv from random weights."""
    for data in _sets(quick):
        found: list[float] = []
        for seed in SEEDS[:1] if quick else SEEDS:
            torch.manual_seed(seed)
            model = tiny_cnn((1, 28, 28), 10) if not quick else None
            made = recipe(data, "altconv", epsilon=0.1, delta=delta_of(data), seed=seed, model=model)
            found.append(_trained(made, data, device, quick)[0])
        note = ", ".join(f"{value:.2f}" for value in found)
        yield Row(
            subject="AltConv from random weights, test accuracy, %",
            name=f"{data.name}, epsilon 0.1",
            value=statistics.mean(found),
            note=note,
        )


def best(quick: bool, device: str) -> Iterator[Row]:
    """Measure the method that is recommended."""
    for data in _sets(quick):
        for epsilon in (0.1, 1.0):
            named = choose(epsilon, data.num_classes, data.public_size).method
            bar = BEST.get((data.name, epsilon))
            subject = "recommended method, test accuracy, %"
            yield _mean(data, named, epsilon, subject=subject, bar=bar, quick=quick, device=device)


def order(quick: bool, device: str) -> Iterator[Row]:
    """Measure the paper's four; at the smallest epsilon, each must be below the one before it."""
    data = next(iter(_sets(quick)))
    lines: dict[str, list[tuple[float, float]]] = {method: [] for method in GRADIENTS}
    for epsilon in EPSILONS[-1:] if quick else EPSILONS:
        above: float | None = None
        for method in GRADIENTS:
            subject = f"order at epsilon {epsilon:g}, test accuracy, %"
            row = _mean(data, method, epsilon, subject=subject, bar=None, quick=quick, device=device)
            yield replace(row, bar=above, at_least=False)
            assert row.value is not None
            above = row.value if epsilon == EPSILONS[0] else None
            lines[method].append((epsilon, row.value))
    for path in FIGURES:
        path.write_text(figure(data.name, lines))


def figure(name: str, lines: Mapping[str, list[tuple[float, float]]]) -> str:
    """Draw accuracy by epsilon, a line for each method."""
    return line_chart(
        [Series(name=method, points=points) for method, points in lines.items()],
        title=f"Label privacy on {name}",
        x_label="epsilon, for one label",
        y_label="test accuracy, %",
        x_bounds=(0.0, EPSILONS[-1]),
    )


def denoising(quick: bool, device: str) -> Iterator[Row]:
    """Compare noisy and denoised gradients with the noiseless one, along a run without noise."""
    data = next(iter(_sets(quick)))
    for epsilon in EPSILONS:
        noisy, better = _errors(data, epsilon, device)
        subject = f"gradients of {data.name}, epsilon {epsilon:g}"
        for name, found in (("noisy", noisy), ("denoised", better)):
            yield Row(subject=subject, name=f"{name}, cosine to the noiseless one", value=found[0])
        yield Row(
            subject=subject,
            name="denoised over noisy, distance to the noiseless one",
            value=better[1] / noisy[1],
            bar=None if quick else 1.0,
        )


def _errors(data: Dataset, epsilon: float, device: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return mean cosine and distance of noisy and of denoised gradients, over some steps."""
    made = _altconv(data, epsilon)
    method = made.method
    assert isinstance(method, NoisyGradients)
    model, x, y = made.model.to(device), made.features.to(device), data.train.labels.to(device)
    stddev = method.mechanism().noise_multiplier(0) * method.clip_norm / method.expected_batch_size
    denoiser = replace(method, averaging=0.0).denoiser(x)
    assert denoiser is not None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    draws, found = torch.Generator().manual_seed(0), []
    for step in range(20):
        rows = torch.randint(len(x), (method.expected_batch_size,), generator=draws).to(device)
        optimizer.zero_grad()
        cross_entropy(model, x[rows], y[rows]).mean().backward()
        clean = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        if step % 5 == 4:
            noise = {name: torch.randn(g.shape, generator=draws).to(g) * stddev for name, g in clean.items()}
            noisy = {name: clean[name] + noise[name] for name in clean}
            better = denoiser.denoise(model, noisy, rows=None, generator=resolve(None))
            found.append((_compared(clean, noisy), _compared(clean, better)))
        optimizer.step()
    parts = torch.tensor(found).mean(0)
    return tuple(parts[0].tolist()), tuple(parts[1].tolist())


def _altconv(data: Dataset, epsilon: float) -> LabelRecipe:
    model = start(data, "altconv", 1)
    return recipe(data, "altconv", epsilon=epsilon, delta=delta_of(data), seed=1, model=model)


def _flat(gradient: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in gradient.values()])


def _compared(clean: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float]:
    a, b = _flat(clean), _flat(other)
    return float(torch.cosine_similarity(a, b, dim=0)), float((a - b).norm())


def steps(quick: bool, device: str) -> Iterator[Row]:
    """Time steps with and without AltConv, in turns."""
    data = next(iter(_sets(quick)))
    for epsilon in EPSILONS:
        made = _altconv(data, epsilon)
        method = made.method
        assert isinstance(method, NoisyGradients)
        count = 4 if quick else 20
        plain = _seconds(made.model, made.features, data, method, None, count, device)
        denoiser = method.denoiser(made.features.to(device))
        assert isinstance(denoiser, AltConv)
        ours = _seconds(made.model, made.features, data, method, denoiser, count, device)
        gaps = [entry.gap for entry in denoiser.log if entry.gap is not None]
        yield Row(
            subject="a step of AltConv over one of DP-SGD",
            name=f"epsilon {epsilon:g}, alternative batch of {method.alternative_batch_size}",
            value=ours / plain,
            bar=None if quick else STEP_BAR,
            note=f"{1e3 * ours:.0f} ms, {1e3 * plain:.0f} ms",
        )
        yield Row(
            subject="relative gap of projections",
            name=f"epsilon {epsilon:g}, the largest",
            value=max(gaps),
            bar=None if quick else GAP_BAR,
        )


def _seconds(
    model: nn.Module,
    features: Tensor,
    data: Dataset,
    method: NoisyGradients,
    denoiser: AltConv | None,
    count: int,
    device: str,
) -> float:
    """Return the time of one step, the first few left out."""
    times: list[float] = []
    run = method.mechanism()
    trainer = Trainer(
        copy.deepcopy(model).to(device),  # each from the same weights
        (features.to(device), data.train.labels.to(device)),
        mechanism=run.first(count),
        public_size=method.public_size,
        optimizer=method.optimizer,
        denoiser=denoiser,
        delta=method.delta,
        progress=False,
        runtime=Runtime(device=torch.device(device)),
    )
    session = trainer._session()
    for _ in range(count):
        began = time.perf_counter()
        session.take_step()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _sets(quick: bool) -> Iterator[Dataset]:
    for name in ["digits"] if quick else SETS:
        try:
            yield load(name)
        except DataNotFoundError as error:
            print(f"{name} is skipped: {error}", file=sys.stderr)


PARTS: dict[str, Callable[[bool, str], Iterator[Row]]] = {
    "altconv": altconv,
    "fresh": fresh,
    "best": best,
    "order": order,
    "denoising": denoising,
    "steps": steps,
}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, one seed, no bars")
    parser.add_argument("--json", action="store_true", help="rows for a program: what, value, bar, met")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--data", choices=list(BARS), help="one data set")
    parser.add_argument("--figure", type=Path, help="where to draw the order of methods, as SVG")
    parser.add_argument("--device", default="cpu", help="where to compute")
    arguments = parser.parse_args()
    if arguments.data:
        SETS[:] = [arguments.data]
    if arguments.figure:
        FIGURES[:] = [arguments.figure]
    names = [arguments.only] if arguments.only else list(PARTS)
    found = (row for name in names for row in PARTS[name](arguments.quick, arguments.device))
    return report("Label privacy", found, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
