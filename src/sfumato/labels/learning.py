# SPDX-License-Identifier: Apache-2.0
"""Training on released labels with plain, non-private optimizers. It costs no privacy.

Targets are one class for each row [rows], weights of the classes [rows, classes], or `MovingTargets`, which
may use what the model predicts for the rows of a batch. The loss gets them unchanged. The optimizer is Adam,
or SGD if `momentum` is given; the learning rate falls to zero along a cosine. An epoch is cut into batches
of nearly equal size, so that no batch has a single row. At the end the model is in evaluation mode, on
its device, with averaged weights if `ema_decay` is given. The same seed gives the same weights on one
machine: the order of rows, augmentation and the model's own randomness (dropout) come from it. Global random
state is left as it was.

Guarantee  Post-processing: features are public, and targets are releases that were charged. Never pass a
           private label to a function of this module.
"""

import copy
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedModelError
from sfumato.labels.input_checks import check_features
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.random_state import same_draws
from sfumato.training.weight_average import WeightAverage

__all__ = [
    "Augment",
    "Loss",
    "MovingTargets",
    "Released",
    "Teach",
    "check_model",
    "learn",
    "predictions",
    "rehearsing",
    "soft_cross_entropy",
    "teacher",
]

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits [rows, classes], targets) -> [rows]
Augment = Callable[[Tensor, torch.Generator], Tensor]  # features of a batch -> as many rows


class MovingTargets(Protocol):
    """Targets that follow what the model predicts."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def at(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the targets of some rows, given the model's output for them."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Released:
    """What a method of label privacy releases.

    Attributes:
        targets: The targets of all rows.
        loss: The loss that these targets are meant for.
    """

    targets: Tensor | MovingTargets
    loss: Loss


Teach = Callable[
    [Tensor, Released], Tensor
]  # (rows, their targets) -> probabilities of all rows [public_size, classes]


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row.

    Args:
        logits: The output of a model, [rows, classes].
        targets: Classes [rows], or weights of classes [rows, classes].

    Returns:
        The loss of each row.

    >>> soft_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]))
    tensor([0.6931])
    """
    if not targets.is_floating_point():
        return F.cross_entropy(logits, targets, reduction="none")
    return -(targets.to(logits.dtype) * F.log_softmax(logits, dim=1)).sum(1)


def learn(
    model: nn.Module,
    features: Tensor,
    targets: Tensor | MovingTargets,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    loss: Loss = soft_cross_entropy,
    momentum: float | None = None,
    weight_decay: float = 0.0,
    augment: Augment | None = None,
    ema_decay: float | None = None,
    seed: int = 0,
) -> None:
    """Train a model, in place, on public features and released targets.

    Args:
        model: The model. It is trained in place, on its device.
        features: The public features, one row for each target.
        targets: The released targets. Never pass private labels.
        epochs: The number of passes over all rows.
        batch_size: The largest number of rows in a batch.
        learning_rate: The first learning rate. It falls to zero along a cosine.
        loss: The loss of (logits, targets), one number for each row.
        momentum: The momentum of SGD, in [0, 1], or None for Adam.
        weight_decay: The weight decay of the optimizer.
        augment: Changes the features of a batch, given a torch generator; or None.
        ema_decay: The decay of an average of the weights over steps, or None for the last weights.
        seed: The seed of the order of rows, of augmentation and of dropout.

    Raises:
        InvalidParameterError: If a parameter is out of range, or there is not one target for each row.

    >>> model = nn.Linear(2, 2)
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 8)
    >>> learn(model, x, x.argmax(1), epochs=20, batch_size=4, learning_rate=0.1)
    >>> model(x[:2]).argmax(1)
    tensor([1, 0])
    """
    _check.count(epochs=epochs, batch_size=batch_size)
    _check.positive(learning_rate=learning_rate)
    _check.non_negative(weight_decay=weight_decay, seed=seed)
    _check_lengths(features, targets)
    place = _device(model)
    model.train()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = _optimizer(list(trainable.values()), learning_rate, momentum, weight_decay)
    average = None if ema_decay is None else WeightAverage(trainable, decay=ema_decay)
    batches = math.ceil(len(features) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * batches)
    order = torch.Generator().manual_seed(int(seed))
    with same_draws([place], seed=int(seed)):
        for rows in _batches(len(features), batches, epochs, order):
            batch = _taken(features, rows, place)
            logits = model(batch if augment is None else augment(batch, order))
            optimizer.zero_grad()
            loss(logits, _of_rows(targets, rows, logits)).mean().backward()
            optimizer.step()
            schedule.step()
            if average is not None:
                average.update()
    if average is not None:
        average.keep()
    model.eval()


@torch.no_grad()
def predictions(model: nn.Module, features: Tensor, *, batch_size: int = 1024) -> Tensor:
    """Return the model's probabilities of the classes, in evaluation mode.

    Args:
        model: The model. Its mode is restored.
        features: The rows.
        batch_size: The number of rows in memory at once.

    Returns:
        Probabilities [rows, classes], float64 on the CPU.

    Raises:
        InvalidParameterError: If `batch_size` is not a positive whole number.

    >>> predictions(nn.Identity(), torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    _check.count(batch_size=batch_size)
    with evaluating(model):
        place = _device(model)
        found = [model(part.to(place)).double().softmax(1).cpu() for part in features.split(batch_size)]
    return torch.cat(found)


@torch.no_grad()
def check_model(
    model: nn.Module, features: Tensor, *, classes: int, batch_size: int = 1024, free: bool = True
) -> None:
    """Raise unless the model returns one finite number for each class of every row.

    Args:
        model: The model.
        features: The public features; every row is tried.
        classes: The number of classes.
        batch_size: The number of rows in memory at once.
        free: Whether nothing was spent before, so that a message may say it.

    Raises:
        UnsupportedModelError: If the model fails on the features, or returns something else.

    >>> check_model(nn.Linear(4, 3), torch.zeros(9, 4), classes=3)
    """
    place = _device(model)
    with evaluating(model), rehearsing("the model", free=free):
        for part in features.split(batch_size):
            _check_logits(model(part.to(place)), rows=len(part), classes=classes)


@contextmanager
def rehearsing(what: str, *, free: bool = True) -> Generator[None]:
    """Report whatever fails inside as a failure on public rows. Errors are quoted, so no label may be used
    inside.

    Args:
        what: What is tried, for the message.
        free: Whether nothing was spent before, so that the message may say it.

    Raises:
        UnsupportedModelError: If anything inside fails.

    >>> with rehearsing("the model"):
    ...     nn.Linear(2, 3)(torch.zeros(1, 5))
    Traceback (most recent call last):
    sfumato.errors.UnsupportedModelError: the model fails on the features; ... RuntimeError: mat1 and mat2 ...
    """
    try:
        yield
    except (SfumatoError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        spent = "; nothing was spent" if free else ""
        raise UnsupportedModelError(
            f"{what} fails on the features{spent}. {type(error).__name__}: {reason}"
        ) from error


def teacher(
    model: nn.Module, features: Tensor, learner: Callable[[nn.Module, Tensor, Released], None]
) -> Teach:
    """Return the function that trains between stages.

    Args:
        model: The model. A copy of it is trained in each stage.
        features: The public features of all rows.
        learner: Trains a model on features and released targets, in place.

    Returns:
        A function of row numbers and their released targets that returns probabilities for all rows.

    >>> def learner(student, x, released):
    ...     learn(student, x, released.targets, loss=released.loss, epochs=1, batch_size=2, learning_rate=0.1)
    >>> teach = teacher(nn.Linear(4, 3), torch.zeros(6, 4), learner)
    >>> teach(torch.tensor([0, 2]), Released(targets=torch.tensor([1, 1]), loss=soft_cross_entropy)).shape
    torch.Size([6, 3])
    """

    def teach(rows: Tensor, released: Released) -> Tensor:
        student = copy.deepcopy(model)
        learner(student, features[rows.to(features.device)], released)
        return predictions(student, features)

    return teach


def _check_logits(logits: object, *, rows: int, classes: int) -> None:
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or shape != [rows, classes]:
        raise UnsupportedModelError(
            f"the model must return logits, one for each of {classes} classes of each row, but for {rows} "
            f"rows it returned {shape}."
        )
    if not bool(logits.softmax(1).isfinite().all()):
        raise UnsupportedModelError(
            "the model's logits for some rows of features are not finite, before it has learned anything. "
            "Look for missing or huge values in the features."
        )


def _check_lengths(features: Tensor, targets: Tensor | MovingTargets) -> None:
    check_features(features)
    if len(targets) != len(features):
        raise InvalidParameterError(
            f"targets must be one for each of {len(features)} rows of features, but there are {len(targets)}."
        )


def _device(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _optimizer(
    parameters: list[nn.Parameter], learning_rate: float, momentum: float | None, weight_decay: float
) -> torch.optim.Optimizer:
    if not parameters:
        raise InvalidParameterError("the model has no trainable parameters: there is nothing to learn.")
    if momentum is None:
        return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
    _check.in_range(0, 1, momentum=momentum)
    return torch.optim.SGD(
        parameters, lr=learning_rate, momentum=momentum, nesterov=momentum > 0, weight_decay=weight_decay
    )


def _batches(rows: int, batches: int, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(rows, generator=order).tensor_split(batches)


def _taken(values: Tensor, rows: Tensor, place: torch.device) -> Tensor:
    return values[rows.to(values.device)].to(place)


def _of_rows(targets: Tensor | MovingTargets, rows: Tensor, logits: Tensor) -> Tensor:
    if isinstance(targets, Tensor):
        return _taken(targets, rows, logits.device)
    return targets.at(rows, logits.detach())
