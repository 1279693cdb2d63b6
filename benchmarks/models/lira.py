# SPDX-License-Identifier: Apache-2.0
"""Who was in the training data? LiRA with 16 shadow models on a CIFAR-10 network, with and without DP.

Rows      20,000 of CIFAR-10's training rows; every model is trained on a random half of them. Shadow models
          have each row in exactly half of their number, the attacked models by a coin for each row.
Open      A small residual network, to the end: 40 epochs of SGD with mirrored images. Asked of each image and
          of its mirror.
Private   The tanh network of `networks.cnn` by DP-SGD at epsilon 1, delta 1e-5; the same rows and
          attacks.
Bars      LiRA (online, fixed variance) without DP: TPR of 5.9% at 0.1% FPR. At epsilon 1: the exact chance
          of as many true positives where nothing leaks must be no less than 1%.
Quick     400 rows of noise around class means, 4 shadow models, few epochs, no bars: 20 s of one CPU core.
Time      Meant for a GPU; far too long without one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from models.results import Row, left_out
from torch import Tensor, nn

from sfumato.audit.evidence.roc import Roc
from sfumato.audit.models.membership import Lira, Rmia, loss_from_confidences
from sfumato.audit.models.shadow_models import coin_flips, confidences, select, shadow_models
from sfumato.datasets import DataNotFoundError, load
from sfumato.testing import seeded
from sfumato.training import Runtime, train
from sfumato.training.models.networks import cnn

TPR_BAR, CHANCE_BAR = 5.9, 0.01
EPSILON, DELTA = 1.0, 1e-5

Rows = tuple[Tensor, Tensor]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How much is trained and asked."""

    rows: Rows
    population: Rows  # in no model
    shadows: int
    targets: int
    epochs: int
    private_epochs: int
    width: int
    fpr: float
    device: torch.device

    @property
    def half(self) -> int:
        """How many rows a model is trained on, about."""
        return len(self.rows[0]) // 2


# --- the network without privacy -------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions around a shortcut, of as many channels as come in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(channels, channels), *_convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return x + self.body(x)


def _convolution(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]


def residual(width: int) -> nn.Module:
    """Return a residual network of eight convolutions, 6.6 million parameters at width 64."""
    layers = [*_convolution(3, width), *_convolution(width, 2 * width), nn.MaxPool2d(2), Block(2 * width)]
    layers += [*_convolution(2 * width, 4 * width), nn.MaxPool2d(2)]
    layers += [*_convolution(4 * width, 8 * width), nn.MaxPool2d(2), Block(8 * width)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


def train_openly(model: nn.Module, rows: Rows, *, epochs: int) -> None:
    """Train without privacy: SGD, one cycle of the learning rate, images mirrored by coins."""
    batch_size = min(256, len(rows[0]) // 16)
    steps = epochs * (len(rows[0]) // batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    device = rows[0].device
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(rows[0]), device=device)
        for batch in order.split(batch_size):
            if len(batch) < batch_size:
                continue
            x = rows[0][batch]
            x = torch.where(torch.rand(len(x), 1, 1, 1, device=device) < 0.5, x.flip(3), x)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(x.contiguous(memory_format=torch.channels_last))
            F.cross_entropy(logits.float(), rows[1][batch]).backward()
            optimizer.step()
            cycle.step()


def train_privately(model: nn.Module, rows: Rows, *, setting: Setting) -> None:
    """Train by DP-SGD at epsilon 1, the number of rows being half of a public one."""
    train(
        model,
        rows,
        public_size=setting.half,
        expected_batch_size=setting.half // 8,
        epochs=setting.private_epochs,
        epsilon=EPSILON,
        delta=DELTA,
        clip_norm=0.1,
        learning_rate=2.0,
        ema_decay=0.9,
        progress=False,
        runtime=Runtime(device=setting.device),
    )


# --- the attacks -----------------------------------------------------------------------------------------


def mirrored(x: Tensor) -> Tensor:
    """Return images as a mirror shows them."""
    return x.flip(3)


def attacked(
    setting: Setting, make_model: Callable[[], nn.Module], fit: Callable[[nn.Module, Rows], None]
) -> tuple[list[Roc], float, float]:
    """Return the curve of each attack over all attacked models, and their accuracy in and out, in percent."""
    torch.manual_seed(0)  # of first weights and batches; noise is secure
    shadows = shadow_models(make_model, setting.rows, count=setting.shadows, train=fit, generator=seeded(1))
    seen = shadows.confidences(setting.rows, views=[mirrored])
    crowd = shadows.confidences(setting.population, views=[mirrored])
    found: dict[str, tuple[list[Scores], list[Scores]]] = {}
    accuracies: list[tuple[float, float]] = []
    for target in range(setting.targets):
        members = coin_flips(len(setting.rows[0]), generator=seeded(1).fork("attacked", target))
        model = make_model()
        fit(model, select(setting.rows, members))
        asked = [confidences(model, rows, views=[mirrored]) for rows in (setting.rows, setting.population)]
        for name, scores in _scores(asked[0], asked[1], seen, crowd, shadows.members):
            inside, outside = found.setdefault(name, ([], []))
            inside.append(scores[members])
            outside.append(scores[~members])
        accuracies.append(
            (accuracy(model, select(setting.rows, members)), accuracy(model, setting.population))
        )
    curves = [Roc(np.concatenate(i), np.concatenate(o), name=name) for name, (i, o) in found.items()]
    return curves, *(float(part) for part in np.mean(accuracies, axis=0))


@torch.no_grad()
def accuracy(model: nn.Module, rows: Rows) -> float:
    """Return the share of rows whose class is predicted right, in percent."""
    model.eval()
    right = [model(x).argmax(1) == y for x, y in zip(rows[0].split(1024), rows[1].split(1024), strict=True)]
    return 100 * float(torch.cat(right).float().mean())


def _scores(
    target: Scores, target_crowd: Scores, seen: Scores, crowd: Scores, members: npt.NDArray[np.bool_]
) -> Iterator[tuple[str, Scores]]:
    yield "loss threshold", loss_from_confidences(target)
    for name, online in (("online", True), ("offline", False)):
        yield f"LiRA, {name}", Lira(online=online).scores(target, shadows=seen, members=members)
    for name, online in (("online", True), ("offline", False)):
        attack, population = Rmia(online=online), (target_crowd, crowd)
        scores = attack.scores(target, shadows=seen, members=members, population=population)
        yield f"RMIA, {name}", scores


def lira(quick: bool, device: str) -> Iterator[Row]:
    """Attack a network trained without privacy, then one at epsilon 1."""
    try:
        setting = _quick(device) if quick else _cifar(device)
    except DataNotFoundError as error:
        yield left_out("membership inference on CIFAR-10", str(error))
        return
    yield from _open(setting, quick)
    yield from _private(setting, quick)


def _open(setting: Setting, quick: bool) -> Iterator[Row]:
    def make() -> nn.Module:
        return residual(setting.width).to(setting.device, memory_format=torch.channels_last)

    curves, *accuracies = attacked(
        setting, make, lambda model, rows: train_openly(model, rows, epochs=setting.epochs)
    )
    subject = _subject("no privacy", setting, accuracies)
    for curve in curves:
        bar = TPR_BAR if curve.name == "LiRA, online" and not quick else None
        yield from _rows(subject, curve, setting.fpr, bar)


def _private(setting: Setting, quick: bool) -> Iterator[Row]:
    shape = tuple(setting.rows[0].shape[1:])

    def make() -> nn.Module:
        return cnn(shape, 10).to(setting.device)

    curves, *accuracies = attacked(
        setting, make, lambda model, rows: train_privately(model, rows, setting=setting)
    )
    subject = _subject(f"epsilon {EPSILON:g}", setting, accuracies)
    for curve in curves:
        yield from _rows(subject, curve, setting.fpr, None)
        yield Row(
            subject=subject,
            name=f"{curve.name}, chance of as many true positives where nothing leaks",
            value=curve.tpr_at(setting.fpr).p_value,
            bar=None if quick or curve.name != "LiRA, online" else CHANCE_BAR,
            at_least=True,
        )


def _subject(kind: str, setting: Setting, accuracies: list[float]) -> str:
    return (
        f"membership inference, {kind}, {setting.shadows} shadow models, {setting.targets} attacked "
        f"(accuracy {accuracies[0]:.0f}% in, {accuracies[1]:.0f}% out)"
    )


def _rows(subject: str, curve: Roc, fpr: float, bar: float | None) -> Iterator[Row]:
    rate, area = curve.tpr_at(fpr).tpr_interval(), curve.area_interval()
    yield Row(
        subject=subject,
        name=f"{curve.name}, TPR at {100 * fpr:g}% FPR, %",
        value=100 * rate.value,
        bar=bar,
        at_least=True,
        note=f"{100 * rate.low:.2f} to {100 * rate.high:.2f}",
    )
    note = f"{area.low:.3f} to {area.high:.3f}"
    yield Row(subject=subject, name=f"{curve.name}, area", value=area.value, note=note)


# --- the data --------------------------------------------------------------------------------------------


def _cifar(device: str) -> Setting:
    data = load("cifar10")
    kept = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:20_000]
    place = torch.device(device)
    return Setting(
        rows=(data.train.features[kept].to(place), data.train.labels[kept].to(place)),
        population=(data.test.features.to(place), data.test.labels.to(place)),
        shadows=16,
        targets=2,
        epochs=40,
        private_epochs=10,
        width=64,
        fpr=0.001,
        device=place,
    )


def _quick(device: str) -> Setting:
    place = torch.device(device)
    return Setting(
        rows=_noise(400, seed=1, place=place),
        population=_noise(200, seed=2, place=place),
        shadows=4,
        targets=1,
        epochs=15,
        private_epochs=2,
        width=8,
        fpr=0.02,
        device=place,
    )


def _noise(count: int, *, seed: int, place: torch.device) -> Rows:
    """Return images of noise around a mean of their class, which is the same for every seed."""
    means = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draws)
    noise = torch.randn(count, 3, 8, 8, generator=draws)
    return (0.2 * means[labels] + noise).to(place), labels.to(place)
