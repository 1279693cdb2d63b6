# SPDX-License-Identifier: Apache-2.0
"""Model inversion: reconstruct an example of each class from a classifier, and measure whom it resembles.

For each class, the attack minimizes -log p(class | x), plus the roughness of x (total variation) and its
distance from what the attacker expects, by Adam within public bounds (after Fredrikson et al. 2015, "Model
Inversion Attacks that Exploit Confidence Information", Algorithm 1). Gradients come from a torch module, or
from differences of probabilities of a model that has only `predict_proba`.

`identified` is the share of classes whose drawing is nearest to its own class among all (by the means of
their training rows); an attacker who knows only the population guesses, and is right for one in as many as
there are. `nearer` is the share of classes where the row nearest to the drawing, of training rows and as
many held-out ones, was trained on; one half if only the population shows. `identified` alone is not a
privacy loss: a drawing of the digit 3 should look like a 3, with privacy or without, as all examples share
that. It is one if a class is a person, and differential privacy for that person's rows prevents it. `nearer`
always is one.

Intervals are over classes, by Clopper and Pearson. If training and held-out rows are exchangeable within
each class and the model does not depend on which is which, `nearer` is a fair coin for each class.

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
    """Return a drawing of the class of each label.

    A model without gradients, such as a tree, leaves the drawings as they began.

    Args:
        model: The attacked classifier.
        labels: The labels of the classes to draw.
        shape: The shape of a row.
        bounds: The smallest and largest value of a feature, public.
        expected: What the attacker expects a row to look like; drawings start there. None is the middle of
            the bounds.
        closeness: The weight that holds drawings near `expected`.
        smoothness: The weight of smoothness, for pictures in [channels, height, width] only.
        steps: The number of steps.
        learning_rate: The size of a step, as a part of the width of the bounds.

    Returns:
        The drawings, [labels, *shape], within `bounds`.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
    """Whom the drawings resemble, and what an attacker without the model would reach.

    Attributes:
        identified: The share of classes that are recognized.
        chance: The same share for guessing.
        nearer: The share of drawings nearest to a row that was trained on, 1/2 by chance; None without
            held-out rows.
        similarity: The similarity of each drawing with the most similar training row.
        expected_similarity: The same for what the attacker expected, or None.
    """

    identified: Interval
    chance: float
    nearer: Interval | None
    similarity: Sequence[float] = field(repr=False)
    expected_similarity: Sequence[float] | None = field(repr=False)

    @property
    def advantage(self) -> Interval:
        """The share of classes that are identified, minus that of guessing."""
        found = self.identified
        value, low, high = (end - self.chance for end in (found.value, found.low, found.high))
        return Interval(value=value, low=low, high=high, confidence=found.confidence)

    @property
    def identifies(self) -> bool:
        """Whether more classes are recognized than guessing explains."""
        return self.identified.low > self.chance

    @property
    def remembers(self) -> bool:
        """Whether drawings resemble training rows more than other rows of the same class."""
        return self.nearer is not None and self.nearer.low > 1 / 2

    def statement(self) -> str:
        """Describe the result in a sentence or two."""
        parts = [
            f"Of the classes, {in_words(self.identified)} are recognized in the model's drawings "
            f"({self.chance:.1%} by chance)",
            f"mean similarity with training rows {np.mean(self.similarity):.2f}",
        ]
        if self.nearer is not None:
            parts.insert(1, f"{in_words(self.nearer)} are nearest to a training row (50% by chance)")
        if self.expected_similarity is not None:
            parts[-1] += f" (without the model {np.mean(self.expected_similarity):.2f})"
        return f"{'; '.join(parts)}. Confidence {self.identified.confidence:g}."


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
    """Compare drawings of classes with training rows and held-out rows.

    Args:
        drawings: The drawings, one for each label.
        labels: The labels of the drawings.
        train: Rows that the model was trained on, a pair (features, labels).
        held_out: Rows that it was not trained on, as many in each class, or None.
        expected: What the drawings started from, to compare with; or None.
        bounds: The smallest and largest value of a feature.
        confidence: The confidence of each interval.

    Returns:
        Whom the drawings resemble.

    Raises:
        InvalidParameterError: If shapes do not match, or there are too few classes or rows.

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

    Rows are [pairs, channels, height, width], and compared in windows of 7 x 7 pixels with equal weights;
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
    """Return the slope of -log p(label) by probabilities on both sides of each number."""

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
            f"a line-up needs at least {needed} classes for this confidence: with fewer, recognizing "
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
    # A tie counts as a miss: it is not evidence of memorization.
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
