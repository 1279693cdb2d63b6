# SPDX-License-Identifier: Apache-2.0
"""Optimizers and schedules of a run, and which of them are refused before anything is spent.

Any torch optimizer can be used, and any torch scheduler that needs only the number of steps: both see private
gradients only, so they cost nothing.

Guarantee  A clip schedule gives a factor for each step, fixed before the first. It multiplies the clip norm
           and the noise: one unit moves the sum by at most factor * C, and the noise has a standard deviation
           of noise_multiplier * factor * C. The event depends on their ratio alone, which stays the same.
Not here   A schedule of the noise changes the event, so it is part of the mechanism (`DpSgd.noise`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["ClipSchedule", "MakeOptimizer", "MakeSchedule", "clip_factors", "open_optimizer", "open_schedule"]

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
MakeSchedule = Callable[[Optimizer], LRScheduler]
ClipSchedule = Callable[[int], float]

_LEARNING_RATE = 0.1
_MOMENTUM = 0.9


def open_optimizer(
    given: MakeOptimizer | Optimizer | None,
    parameters: Mapping[str, nn.Parameter],
    learning_rate: float | None = None,
) -> Optimizer:
    """Return the optimizer of a run: the one given, one made for the parameters, or SGD with momentum.

    >>> layer = nn.Linear(2, 1)
    >>> type(open_optimizer(torch.optim.Adam, dict(layer.named_parameters()))).__name__
    'Adam'
    """
    if given is not None and learning_rate is not None:
        raise InvalidParameterError(
            "learning_rate belongs to the default optimizer, but one was given. State the rate there: "
            "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=...)."
        )
    if given is None:
        rate = _LEARNING_RATE if learning_rate is None else learning_rate
        _check.positive(learning_rate=rate)
        return torch.optim.SGD(list(parameters.values()), lr=rate, momentum=_MOMENTUM)
    made: Any = given
    if not isinstance(given, Optimizer) and callable(given):
        made = given(list(parameters.values()))
    optimizer = _required_optimizer(made)
    _require_these_parameters(optimizer, parameters)
    _refuse_closures(optimizer)
    return optimizer


def _required_optimizer(made: Any) -> Optimizer:
    if not hasattr(made, "param_groups") or not callable(getattr(made, "step", None)):
        raise InvalidParameterError(
            "optimizer must be a torch optimizer, or a function that makes one from a list of parameters, "
            f"such as lambda parameters: torch.optim.Adam(parameters, lr=0.1), but it is or returns {made!r}."
        )
    return made


def _require_these_parameters(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in parameters.items() if id(p) not in held]
    if missing:
        raise InvalidParameterError(
            f"the optimizer does not update {missing}, which are trainable: was it made for another model? "
            "Give it all trainable parameters, or freeze these with requires_grad_(False), so that they "
            "take no part in clipping."
        )
    frozen = held - {id(p) for p in parameters.values()}
    if any(p.requires_grad for g in optimizer.param_groups for p in g["params"] if id(p) in frozen):
        raise InvalidParameterError(
            "the optimizer updates trainable parameters that are not the model's. Make it for this model "
            "alone."
        )


def _refuse_closures(optimizer: Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidParameterError(
            f"{type(optimizer).__name__} asks for the loss several times a step, and each would be a release "
            "of its own. Use an optimizer that takes one gradient a step."
        )


def open_schedule(make: MakeSchedule | None, optimizer: Optimizer) -> LRScheduler | None:
    """Return the learning-rate schedule of a run, one that needs nothing but the number of steps."""
    if make is None:
        return None
    schedule = make(optimizer)
    if isinstance(schedule, ReduceLROnPlateau) or not hasattr(schedule, "state_dict"):
        raise InvalidParameterError(
            f"a {type(schedule).__name__} cannot schedule a run: it must be a torch scheduler that is "
            "stepped without a metric, such as torch.optim.lr_scheduler.CosineAnnealingLR."
        )
    return schedule


def clip_factors(schedule: ClipSchedule | None, steps: int) -> Sequence[float] | None:
    """Return the factor of every step, all of them found before the first.

    >>> clip_factors(lambda step: 1.0 if step < 2 else 0.5, 3)
    [1.0, 1.0, 0.5]
    """
    if schedule is None:
        return None
    factors: list[Any] = [schedule(step) for step in range(steps)]
    for step, factor in enumerate(factors):
        _check.positive(**{f"clip_schedule({step})": factor})
    return [float(factor) for factor in factors]
