# SPDX-License-Identifier: Apache-2.0
"""Model inversion: draw what a classifier takes each class to be, and see whom it resembles.

Attack     For each class, go down the slope of -log p(class | x), plus how rough x is (total variation) and
           how far from what the attacker expects, by Adam within public bounds (after Fredrikson et al. 2015,
           "Model Inversion Attacks that Exploit Confidence Information", Algorithm 1). A torch module is
           asked for slopes; a model with `predict_proba` alone for probabilities at points nearby.
Scores     `identified`: the share of classes whose drawing is nearest to its own class in a line-up of all
           (the means of their training rows); whoever knows only the population guesses, and is right for
           one in as many as there are. `nearer`: the share of classes where the row nearest to the drawing,
           of training rows and as many held-out ones, was trained on; one half if only the population shows.
Meaning    `identified` alone is no privacy loss: a drawing of the digit 3 should look like a 3, with privacy
           or without, as that is what all examples share. It is one where a class is a person, and
           differential privacy for that person's rows prevents it. `nearer` is one always.
Intervals  Over classes, by Clopper and Pearson. Where training and held-out rows are exchangeable within each
           class and the model does not depend on which is which, `nearer` is a coin for each class.
Not here   A lower bound on epsilon: one model is one draw of training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.audit.evidence.proportions import in_words, share
from sfumato.audit.evidence.roc import Interval
from sfumato.audit.models.classifier_queries import as_array, label_columns, log_probabilities, read_rows
from sfumato.errors import InvalidParameterError
from sfumato.training.engine.evaluation_mode import evaluating

__all__ = ["InversionScore", "invert", "score_inversion", "similarity"]

_PROBE: Final = 0.01  # how far away a model without slopes is asked, as a part of the bounds' width
_WINDOW: Final = 7  # pixels a side (Wang et al. 2004, with equal weights)
_STABLE: Final = (0.01, 0.03)  # their constants K1 and K2

Slopes = Callable[[Tensor], Tensor]


def invert(
    model: Any,
    *,
    labels: Sequence[Any],
    shape: Sequence[int],
    bounds: tuple[float, float],
    expected: Any = None,
    closeness: float = 0.1,
    smoothness: float = 0.01,
    steps: int = 300,
    learning_rate: float = 0.05,
) -> Tensor:
    """Return a drawing of each of the labels' classes: [labels, *shape], within `bounds`.

    Drawings begin at `expected`, what the attacker thinks a row of the population looks like (the middle of
    the bounds unless said), and `closeness` holds them near it. `smoothness` is for pictures in [channels,
    height, width]; other rows have no neighbors. `learning_rate` is a part of the bounds' width. A model of
    steps, such as a tree, has no slope, and its drawings stay as they began.

    >>> lines = nn.Linear(2, 2)
    >>> lines.weight.data = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> lines.bias.data.zero_()
    tensor([0., 0.])
    >>> invert(lines, labels=[0, 1], shape=(2,), bounds=(0.0, 1.0), closeness=0.0).round(decimals=1) + 0.0
    tensor([[1., 0.],
            [0., 1.]])
    """
    _check.bounds(bounds=bounds)
    _check.non_negative(closeness=closeness, smoothness=smoothness)
    _check.positive(learning_rate=learning_rate)
    _check.count(steps=steps, labels=len(labels), shape=min(shape, default=0))
    start = _start(expected, tuple(shape), bounds).expand(len(labels), *shape)
    drawn = start.clone()  # scaled: bounds are 0 and 1
    optimizer = torch.optim.Adam([drawn], lr=learning_rate)
    slopes = _slopes(model, as_array(labels), bounds)
    for _ in range(steps):
        drawn.grad = slopes(drawn) + _pull(drawn, start, closeness=closeness, smoothness=smoothness)
        optimizer.step()
        drawn.clamp_(0, 1)
    return bounds[0] + (bounds[1] - bounds[0]) * drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class InversionScore:
    """Whom the drawings resemble, and what an attacker without the model would get."""

    identified: Interval  # share of classes recognized in the line-up
    chance: float  # the same share for someone who guesses
    nearer: Interval | None  # share of drawings nearest to a row that was trained on; by chance 1/2
    similarity: Sequence[float] = field(repr=False)  # of each drawing with the training row most like it
    expected_similarity: Sequence[float] | None = field(repr=False)  # the same of what the attacker expected

    @property
    def advantage(self) -> Interval:
        """How many more classes are identified than by guessing, as a share."""
        found = self.identified
        value, low, high = (end - self.chance for end in (found.value, found.low, found.high))
        return Interval(value=value, low=low, high=high, confidence=found.confidence)

    @property
    def identifies(self) -> bool:
        """Whether more classes are recognized than guessing explains."""
        return self.identified.low > self.chance

    @property
    def remembers(self) -> bool:
        """Whether the model draws rows that it was trained on rather than their like."""
        return self.nearer is not None and self.nearer.low > 1 / 2

    def statement(self) -> str:
        """Return what was found, in a sentence."""
        told = [
            f"Of the classes, {in_words(self.identified)} are recognized in the model's drawings "
            f"({self.chance:.1%} by chance)",
            f"mean similarity with training rows {np.mean(self.similarity):.2f}",
        ]
        if self.nearer is not None:
            told.insert(1, f"{in_words(self.nearer)} are nearest to a training row (50% by chance)")
        if self.expected_similarity is not None:
            told[-1] += f" (without the model {np.mean(self.expected_similarity):.2f})"
        return f"{'; '.join(told)}. Confidence {self.identified.confidence:g}."


def score_inversion(
    drawings: Any,
    *,
    labels: Sequence[Any],
    train: Any,
    held_out: Any = None,
    expected: Any = None,
    bounds: tuple[float, float],
    confidence: float = 0.95,
) -> InversionScore:
    """Compare drawings of classes with rows: `train`, and `held_out` ones that the model has not seen.

    Both are pairs (features, labels). Held-out rows must be as many in each class as training rows, else the
    nearest of the more is nearer by chance alone. `expected` is what the drawings began with; how like the
    rows it was before the model was asked is told beside.

    >>> faces = np.eye(6)
    >>> score = score_inversion(
    ...     0.9 * faces, labels=range(6), train=(faces, np.arange(6)), bounds=(0.0, 1.0)
    ... )
    >>> score.identified.value, score.identifies
    (1.0, True)
    """
    _check.probability(confidence=confidence)
    _check.bounds(bounds=bounds)
    pictures, known = as_array(drawings).astype(np.float64), as_array(labels)
    groups = _by_class(train, known, shape=pictures.shape, name="train")
    _check_line_up(len(known), confidence)
    means = np.stack([rows.mean(0) for rows in groups])
    own = np.array([_distances(p, means).argmin() == i for i, p in enumerate(pictures)])
    return InversionScore(
        identified=share(int(own.sum()), len(own), confidence=confidence),
        chance=1 / len(known),
        nearer=None if held_out is None else _nearer(pictures, groups, held_out, known, confidence),
        similarity=_likeness(pictures, groups, bounds),
        expected_similarity=None
        if expected is None
        else _likeness(_repeated(expected, pictures), groups, bounds),
    )


def similarity(first: Any, second: Any, *, bounds: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Return the structural similarity of pairs of pictures, from -1 to 1: [pairs].

    Rows are in [pairs, channels, height, width], and compared in windows of 7 x 7 pixels with equal weights;
    rows of any other shape are compared as a whole (Wang et al. 2004, "Image quality assessment").

    >>> picture = np.eye(8)[None, None]
    >>> similarity(picture, picture, bounds=(0.0, 1.0)).round(6).tolist()
    [1.0]
    """
    _check.bounds(bounds=bounds)
    one, other = (torch.from_numpy(as_array(rows).astype(np.float64)) for rows in (first, second))
    if one.shape != other.shape or one.dim() < 2:
        raise InvalidParameterError(
            "pictures are compared in pairs: give as many of each, of the same shape."
        )
    means, spreads, together = _moments(one, other)
    luminance, contrast = ((k * (bounds[1] - bounds[0])) ** 2 for k in _STABLE)
    near = (2 * means[0] * means[1] + luminance) / (means[0] ** 2 + means[1] ** 2 + luminance)
    like = (2 * together + contrast) / (spreads[0] + spreads[1] + contrast)
    return (near * like).flatten(1).mean(1).numpy()


# --- drawing ---------------------------------------------------------------------------------------------


def _start(expected: Any, shape: tuple[int, ...], bounds: tuple[float, float]) -> Tensor:
    if expected is None:
        return torch.full(shape, 0.5)
    known = torch.as_tensor(as_array(expected), dtype=torch.float32)
    if known.shape != shape or not known.isfinite().all():
        raise InvalidParameterError(f"expected must be one row of shape {shape}, without NaN or infinity.")
    return ((known - bounds[0]) / (bounds[1] - bounds[0])).clamp(0, 1)


def _pull(drawn: Tensor, start: Tensor, *, closeness: float, smoothness: float) -> Tensor:
    """Return the slope of the regularizers, each a mean over a row's numbers."""
    with torch.enable_grad():
        x = drawn.detach().requires_grad_()
        cost = closeness * (x - start).square().flatten(1).mean(1)
        if x.dim() == 4:
            rough = [x.diff(dim=d).abs().flatten(1) for d in (-1, -2)]
            cost = cost + smoothness * torch.stack([r.sum(1) for r in rough]).sum(0) / x[0].numel()
        return torch.autograd.grad(cost.sum(), x)[0]


def _slopes(model: Any, labels: npt.NDArray[Any], bounds: tuple[float, float]) -> Slopes:
    return (_autograd if isinstance(model, nn.Module) else _differences)(model, labels, bounds)


def _autograd(model: nn.Module, labels: npt.NDArray[Any], bounds: tuple[float, float]) -> Slopes:
    """Return the slope of -log p(label) by automatic differentiation of the model."""
    parameter = next(model.parameters(), torch.empty(0))

    def slopes(drawn: Tensor) -> Tensor:
        with torch.enable_grad(), evaluating(model):
            x = drawn.detach().requires_grad_()
            rows = bounds[0] + (bounds[1] - bounds[0]) * x
            logits: Tensor = model(rows.to(parameter.device, parameter.dtype))
            columns = torch.from_numpy(label_columns(model, labels, num_classes=logits.shape[1]))
            cost = F.cross_entropy(logits.double(), columns.to(logits.device), reduction="sum")
            return torch.autograd.grad(cost, x)[0]

    return slopes


def _differences(model: Any, labels: npt.NDArray[Any], bounds: tuple[float, float]) -> Slopes:
    """Return the slope of -log p(label) by asking on both sides of each number."""

    def slopes(drawn: Tensor) -> Tensor:
        size = drawn[0].numel()
        sides = _PROBE * torch.cat([torch.eye(size), -torch.eye(size)])  # [2 size, size]
        return torch.stack([one(row, sides, i) for i, row in enumerate(drawn)])

    def one(row: Tensor, sides: Tensor, place: int) -> Tensor:
        asked = bounds[0] + (bounds[1] - bounds[0]) * (row.flatten() + sides)
        answers = log_probabilities(model, asked.view(-1, *row.shape).double().numpy())
        column = label_columns(model, labels[place : place + 1], num_classes=answers.shape[1])[0]
        up, down = np.split(answers[:, column], 2)
        return torch.from_numpy((down - up) / (2 * _PROBE)).to(row.dtype).view(row.shape)

    return slopes


# --- scoring ---------------------------------------------------------------------------------------------


def _by_class(
    rows: Any, labels: npt.NDArray[Any], *, shape: tuple[int, ...], name: str
) -> list[npt.NDArray[np.float64]]:
    features, known = read_rows(rows, name=name)
    if len(shape) < 2 or features.shape[1:] != shape[1:] or len(labels) != shape[0]:
        raise InvalidParameterError(
            f"drawings must be one for each label, and of the same shape as the rows of {name}."
        )
    groups = [features[known == label] for label in labels]
    if not all(len(group) for group in groups):
        raise InvalidParameterError(f"{name} must have at least one row of every label that was drawn.")
    return groups


def _likeness(
    pictures: npt.NDArray[np.float64], groups: list[npt.NDArray[np.float64]], bounds: tuple[float, float]
) -> tuple[float, ...]:
    return tuple(
        float(similarity(np.broadcast_to(picture, rows.shape), rows, bounds=bounds).max())
        for picture, rows in zip(pictures, groups, strict=True)
    )


def _repeated(expected: Any, pictures: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    row = as_array(expected).astype(np.float64)
    if row.shape != pictures.shape[1:]:
        raise InvalidParameterError("expected must be one row, of the shape of a drawing.")
    return np.broadcast_to(row, pictures.shape)


def _check_line_up(classes: int, confidence: float) -> None:
    needed = next(k for k in range(2, 10_000) if share(k, k, confidence=confidence).low > 1 / k)
    if classes < needed:
        raise InvalidParameterError(
            f"a line-up needs at least {needed} classes for the confidence asked: with fewer, recognizing "
            "them all could be chance."
        )


def _distances(picture: npt.NDArray[np.float64], rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.square(rows - picture).reshape(len(rows), -1).sum(1)


def _nearer(
    pictures: npt.NDArray[np.float64],
    groups: list[npt.NDArray[np.float64]],
    held_out: Any,
    labels: npt.NDArray[Any],
    confidence: float,
) -> Interval:
    others = _by_class(held_out, labels, shape=pictures.shape, name="held_out")
    if [len(group) for group in groups] != [len(group) for group in others]:
        raise InvalidParameterError(
            "held_out must have as many rows of each label as train: the nearest of more rows is nearer by "
            "chance alone. Leave some out, at random."
        )
    # A tie counts as a miss: it must not speak for memory.
    hits = [
        _distances(p, group).min() < _distances(p, other).min()
        for p, group, other in zip(pictures, groups, others, strict=True)
    ]
    return share(int(np.sum(hits)), len(hits), confidence=confidence)


def _moments(one: Tensor, other: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Return means, variances and covariance in each window, as those of a sample."""
    if one.dim() == 4:
        sides = [min(_WINDOW, side) for side in one.shape[2:]]
        count = sides[0] * sides[1]

        def mean(x: Tensor) -> Tensor:
            return F.avg_pool2d(x, sides, stride=1)
    else:
        count = one[0].numel()

        def mean(x: Tensor) -> Tensor:
            return x.flatten(1).mean(1, keepdim=True)

    fair = count / max(count - 1, 1)
    means = mean(one), mean(other)
    spreads = tuple(fair * (mean(x * x) - m * m) for x, m in zip((one, other), means, strict=True))
    return means, (spreads[0], spreads[1]), fair * (mean(one * other) - means[0] * means[1])
