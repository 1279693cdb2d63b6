# SPDX-License-Identifier: Apache-2.0
"""A student that also learns from the public rows that nobody answered.

1. Answers are carried to all rows along a graph of neighbors (`propagation`). This gives each row beliefs:
   weights of the classes. They also correct most wrong answers.
2. In the first epochs the network learns the rows of each class with the clearest beliefs. Rows are changed
   at random by `augment`.
3. Before each later epoch, rows are labelled again: the network's predictions for unchanged rows, times
   beliefs to the power `trust`. Rows whose label is at least `confidence` sure are learned in that epoch,
   changed at random. The rows of each class with the very clearest beliefs (`kept_share`) keep the label of
   step 2 and are always learned, so that no class is lost. Predictions and the result use a moving average
   of the weights.

Without `augment` (rows of a table) the same steps run on the rows as they are. This only helps where near
rows mostly have one class. On Adult they do not: with 524 answers, 5% of them wrong, this student reached
78.4% on training rows held out, and a random forest on the answered rows alone (`SupervisedStudent`) 83.0%.

Guarantee  Post-processing: rows are public, and answers were released and charged. The seed has nothing to do
           with privacy. Never pass private labels as answers.
Edge cases If all answers are one class, nothing is trained, and the result predicts that class. The same seed
           gives the same weights on one machine. The model passed in is not changed.
Source     Consistency of unchanged and changed rows above a threshold: FixMatch, Sohn et al. 2020,
           arXiv:2001.07685. Propagation before a network: Iscen et al. 2019, arXiv:1904.04717.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import check_features
from sfumato.labels.learning import Augment, check_model, predictions
from sfumato.pate.students.answers import checked_answers
from sfumato.pate.students.propagation import Propagation
from sfumato.pate.students.supervised import FittedEstimator, constant_classifier
from sfumato.training.random_state import same_draws
from sfumato.training.record.progress import ProgressBar
from sfumato.training.weight_average import WeightAverage

__all__ = ["FittedNetwork", "SelfTraining", "SemiSupervisedStudent", "clearest_rows", "relabelled"]

_FLOOR = 0.01  # added to beliefs: a class that the graph rules out can still be learned from predictions
_WARM_UP = 100  # steps in which the learning rate rises


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTraining:
    """How a network learns from answers and from its own confident predictions.

    Args:
        epochs: The number of passes over the rows, at least.
        least_steps: The least number of steps. With few rows there are more passes, until it is reached.
        first_part: The part of all passes that learns from propagated answers alone.
        first_share: The share of the rows of each class, those with the clearest beliefs, to start with.
        kept_share: The share of the rows of each class that keep the label of the start.
        confidence: How sure a label must be to be learned later.
        trust: The power of propagated beliefs in later labels. With 0 only the network decides.
        batch_size: Rows in one step.
        learning_rate: The largest learning rate of AdamW. It rises for 100 steps and falls along a cosine.
        weight_decay: The weight decay of AdamW.
        ema_decay: The decay of the average of the weights.
        augment: Changes the rows of a batch at random without changing their class, or None.
        propagation: How answers are carried to all rows.
        seed: The seed of batches, changes of rows, and dropout.
        device: The device to learn on, or None for that of the model.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    epochs: int = 16
    least_steps: int = 1000
    first_part: float = 0.25
    first_share: float = 0.95
    kept_share: float = 0.5
    confidence: float = 0.99
    trust: float = 1.0
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    ema_decay: float = 0.99
    augment: Augment | None = None
    propagation: Propagation = field(default_factory=Propagation)
    seed: int = 0
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        _check.count(epochs=self.epochs, least_steps=self.least_steps, batch_size=self.batch_size)
        _check.rate(first_part=self.first_part, first_share=self.first_share, kept_share=self.kept_share)
        _check.in_range(0, 1, confidence=self.confidence)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(trust=self.trust, weight_decay=self.weight_decay, seed=self.seed)
        _check.probability(ema_decay=self.ema_decay)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class FittedNetwork:
    """A network that learned from answers and public rows.

    Attributes:
        model: The network, in evaluation mode.
        beliefs: Weights of the classes that propagation gave each public row, float32 [rows, classes].
        answered: The number of answered rows.
        doubted: The number of answers that the network does not agree with. They may be wrong.
    """

    model: nn.Module
    beliefs: Tensor
    answered: int
    doubted: int

    def predict(self, features: Any) -> npt.NDArray[np.int64]:
        """Return the class of each row.

        Args:
            features: Rows as those it learned from.

        Returns:
            Int64 [rows].
        """
        return self.predict_proba(features).argmax(axis=1)

    def predict_proba(self, features: Any) -> npt.NDArray[np.float64]:
        """Return the network's probabilities of the classes.

        Args:
            features: Rows as those it learned from.

        Returns:
            Float64 [rows, classes].
        """
        return predictions(self.model, _rows(features)).numpy()


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SemiSupervisedStudent:
    """A student that uses all public rows, answered or not.

    Args:
        model: A network that returns one score for each class. A copy of it learns, from its weights.
        settings: How it learns.

    >>> rows = torch.cat([torch.randn(40, 2), torch.randn(40, 2) + 6])
    >>> answers = [0] + [-1] * 39 + [1] + [-1] * 39
    >>> student = SemiSupervisedStudent(model=nn.Linear(2, 2), settings=SelfTraining())
    >>> student.fit(rows, answers, classes=2, progress=False).predict(torch.tensor([[0.0, 0.0], [6.0, 6.0]]))
    array([0, 1])
    """

    model: nn.Module
    settings: SelfTraining = field(default_factory=SelfTraining)

    def fit(
        self, features: Any, answers: Any, *, classes: int, progress: bool = True
    ) -> FittedNetwork | FittedEstimator:
        """Learn from all public rows.

        Args:
            features: All public rows: a tensor or an array of numbers.
            answers: One class for each row, or -1 where there is no answer.
            classes: The number of classes.
            progress: Whether to show a progress bar.

        Returns:
            The fitted network; or a constant student, if all answers are one class.

        Raises:
            InvalidParameterError: If features or answers do not fit, or no row was answered.
            UnsupportedModelError: If the model does not return one score for each class.
        """
        rows, settings = _rows(features), self.settings
        check_features(rows)
        known = checked_answers(answers, classes=classes, rows=len(rows))
        if len(np.unique(known[known >= 0])) == 1:
            return constant_classifier(known, classes=classes)
        model = copy.deepcopy(self.model)
        place = _place(model, settings.device)
        check_model(model.to(place), rows, classes=classes, free=False)
        beliefs = settings.propagation(rows, known, classes=classes, augment=settings.augment, device=place)
        _learn(model, rows.to(place), beliefs.to(place), settings, progress=progress)
        found = predictions(model, rows).argmax(1).numpy()
        doubted = int(((found != known) & (known >= 0)).sum())
        return FittedNetwork(model=model, beliefs=beliefs, answered=int((known >= 0).sum()), doubted=doubted)

    def rehearse(self, features: Any, answers: Any, *, classes: int) -> FittedNetwork | FittedEstimator:
        """Learn in one step, to find mistakes before answers are paid for.

        Args:
            features: A few public rows.
            answers: Made-up classes.
            classes: The number of classes.

        Returns:
            What `fit` returns.
        """
        propagation = replace(self.settings.propagation, views=1)
        quick = replace(self.settings, epochs=1, least_steps=1, propagation=propagation)
        return replace(self, settings=quick).fit(features, answers, classes=classes, progress=False)


def clearest_rows(beliefs: Tensor, *, share: float) -> Tensor:
    """Return the rows of each class with the clearest beliefs.

    Args:
        beliefs: Weights of the classes, [rows, classes].
        share: The share of the rows of each class to return, rounded up.

    Returns:
        Row numbers, rising, int64.

    Raises:
        InvalidParameterError: If the share is not above 0 and at most 1.

    >>> clearest_rows(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), share=0.5)
    tensor([0, 2])
    """
    _check.rate(share=share)
    first = beliefs.topk(2, dim=1)
    margin, labels = first.values[:, 0] - first.values[:, 1], first.indices[:, 0]
    kept: list[Tensor] = []
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        order = margin[rows].argsort(descending=True, stable=True)
        kept.append(rows[order[: math.ceil(share * len(rows))]])
    return torch.cat(kept).sort().values


def _learn(
    model: nn.Module, rows: Tensor, beliefs: Tensor, settings: SelfTraining, *, progress: bool
) -> None:
    """Train a model, in place, and leave it in evaluation mode with averaged weights."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InvalidParameterError("the model has no trainable parameters: there is nothing to learn.")
    optimizer = torch.optim.AdamW(trainable.values(), lr=1.0, weight_decay=settings.weight_decay)
    batches = math.ceil(len(rows) / settings.batch_size)
    epochs = max(settings.epochs, math.ceil(settings.least_steps / batches))
    rate = _Rate(settings.learning_rate, steps=epochs * batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    average = WeightAverage(trainable, decay=settings.ema_decay)
    order = torch.Generator().manual_seed(settings.seed)
    taken, labels = clearest_rows(beliefs, share=settings.first_share), beliefs.argmax(1)
    with (
        same_draws([rows.device], seed=settings.seed),
        ProgressBar(steps=epochs, done=0, shown=progress) as bar,
    ):
        for epoch in range(epochs):
            if epoch >= settings.first_part * epochs:
                with average.applied():
                    found = predictions(model, rows).to(beliefs)
                taken, labels = relabelled(found, beliefs, settings)
            model.train()
            for part in _batches(taken, settings.batch_size, order):
                batch = rows[part]
                changed = batch if settings.augment is None else settings.augment(batch, order)
                optimizer.zero_grad()
                F.cross_entropy(model(changed), labels[part]).backward()
                optimizer.step()
                schedule.step()
                average.update()
            bar.advance()
    average.keep()
    model.eval()


def relabelled(predicted: Tensor, beliefs: Tensor, settings: SelfTraining) -> tuple[Tensor, Tensor]:
    """Return the rows to learn next, and the labels of all rows.

    Args:
        predicted: The network's probabilities of the classes, [rows, classes].
        beliefs: The weights of the classes from propagation, [rows, classes].
        settings: `trust`, `confidence` and `kept_share` are used.

    Returns:
        Row numbers, rising; and one label for each row, whether or not it is to be learned.

    >>> predicted = torch.tensor([[0.1, 0.9], [0.01, 0.99], [0.5, 0.5], [0.2, 0.8]])
    >>> beliefs = torch.tensor([[1.0, 0.0], [0.4, 0.6], [0.5, 0.5], [0.1, 0.9]])
    >>> relabelled(predicted, beliefs, SelfTraining(kept_share=0.5))
    (tensor([0, 1, 3]), tensor([0, 1, 0, 1]))
    """
    scores = predicted * (beliefs + _FLOOR) ** settings.trust
    sure, labels = (scores / scores.sum(1, keepdim=True)).max(1)
    kept = clearest_rows(beliefs, share=settings.kept_share)
    labels[kept] = beliefs[kept].argmax(1)
    chosen = sure >= settings.confidence
    chosen[kept] = True
    return chosen.nonzero().flatten(), labels


def _batches(rows: Tensor, size: int, order: torch.Generator) -> tuple[Tensor, ...]:
    """Cut rows into batches of nearly equal size: a batch of one row would break batch normalization."""
    shuffled = rows[torch.randperm(len(rows), generator=order).to(rows.device)]
    return shuffled.tensor_split(math.ceil(len(rows) / size))


@dataclass(frozen=True)
class _Rate:
    """The learning rate at a step: it rises, then falls along a cosine."""

    highest: float
    steps: int

    def __call__(self, step: int) -> float:
        rising = min(1.0, (step + 1) / min(_WARM_UP, max(self.steps // 4, 1)))
        falling = 0.5 * (1 + math.cos(math.pi * min(step / self.steps, 1.0)))
        return self.highest * rising * falling


def _place(model: nn.Module, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _rows(features: Any) -> Tensor:
    """Return rows as a tensor of numbers that networks accept."""
    if isinstance(features, Tensor):
        rows = features.detach()
    else:
        given = np.asarray(features)
        if given.dtype.kind not in "fiub":
            raise InvalidParameterError(f"features must be numbers, but they are of type {given.dtype}.")
        rows = torch.from_numpy(np.ascontiguousarray(given))
    return rows if rows.dtype == torch.float32 else rows.float()
