# SPDX-License-Identifier: Apache-2.0
"""Comparison of the weights of a run with those that the released gradients lead to.

A copy of the optimizer, made before the first step, takes every step with the gradients that were released.
Its steps are a function of these and of public settings, so the weights of both stay equal. The same holds
for moving averages and for the weights that the run returns. Code that looks at gradients without noise on
the way from the release to the weights shows: steps that are scaled, skipped or averaged by them, and weights
that are set at the end.

Guarantee  No chance is involved: right code never fails. Random draws of an optimizer are repeated.
Edge cases Learning rates and other settings are read from the run's optimizer before it can see the gradients
           of a step. Code that changes them between steps is not checked. Steps before a resume are not
           compared again; what was wrong with them, or with the weights of the checkpoint, is kept in it.
Not here   Runs with a denoiser, which changes gradients after their release, and optimizers that cannot be
           copied, such as those with hooks or attributes of their own: nothing is found for these. Optimizers
           that are not from torch may read rows by a closure or a global name, and so may their copies: a
           difference counts against them, but without one they are not reported as checked.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.audit.evidence.results import Finding
from sfumato.training.engine.self_check import same_draws
from sfumato.training.weight_average import WeightAverage

__all__ = ["UpdateLog"]

_RELATIVE, _ABSOLUTE = 1e-4, 1e-7  # of weights, which two equal computations may round differently
_WARMUP = 10  # of moving averages: `training.weight_average`
_PLAIN = bool | int | float | str | None  # settings that nothing can change in place


class UpdateLog:
    """A second optimizer beside that of a run, which sees released gradients alone."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        average: WeightAverage | None,
        *,
        message: str | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._twin = _copied(optimizer)
        self._decay, self._updates = _decay_of(average)
        self._run_average = average
        self._average = None if average is None else _averages_of(average, optimizer)
        self._steps = 0
        self.message = message  # what was wrong first, before a resume too

    def released(self) -> None:
        """Take the step that the released gradients ask for; the run's own optimizer takes its step next."""
        if self._twin is None:
            return
        for mine, theirs in zip(self._twin.param_groups, self._optimizer.param_groups, strict=True):
            for key, value in theirs.items():
                if key != "params":
                    mine[key] = value if isinstance(value, _PLAIN) else copy.deepcopy(value)
            for twin, own in zip(mine["params"], theirs["params"], strict=True):
                twin.grad = None if own.grad is None else own.grad.detach().clone()
        try:
            with same_draws(self._model):
                self._twin.step()
        except Exception:  # of a class that is not ours, whose copy does not work
            self._twin = None

    def moved(self, step: int) -> None:
        """Compare the weights after a step, and take them into the average."""
        if self._twin is None:
            return
        self._steps += 1
        if not self._same(_weights(self._twin), _weights(self._optimizer)):
            self._fail(f"step {step + 1} moves the weights by something else than the gradient it released")
        if self._average is not None:
            decay = min(self._decay, (1 + self._updates) / (_WARMUP + self._updates))
            for mean, weight in zip(self._average, _weights(self._twin), strict=True):
                mean.lerp_(weight, 1 - decay)
            self._updates += 1

    def why_not(self) -> str:
        """Return why nothing was compared, where that is so."""
        if self._twin is not None and not _is_known(self._optimizer):
            return "the optimizer is not one of torch.optim, and what else its steps look at is not known"
        return "the optimizer cannot be copied, or its copy cannot take a step"

    def check_kept(self) -> None:
        """Compare the weights that a checkpoint keeps: a resumed run takes them for granted."""
        if self._twin is None:
            return
        ours, theirs = _weights(self._twin), _weights(self._optimizer)
        if self._average is not None and self._run_average is not None:
            ours = [*ours, *self._average]
            theirs = [*theirs, *_averages_of(self._run_average, self._optimizer)]
        if not self._same(ours, theirs):
            self._fail("the weights of a checkpoint are not those that the released gradients lead to")

    def findings(self) -> list[Finding]:
        """Return whether all weights, those that are handed over included, follow from what was released.

        Where all steps were taken before a resume, those handed over are compared with the checkpoint's.
        """
        if self._twin is None:
            return (
                [] if self.message is None else [Finding(p_value=0.0, message=self.message, observations=1)]
            )
        expected = _weights(self._twin) if self._average is None else self._average
        if not self._same(expected, _weights(self._optimizer)):
            self._fail("the weights that are handed over are not those that the released gradients lead to")
        if self.message is None and not _is_known(self._optimizer):
            return []
        message = self.message or "weights follow from what was released"
        return [
            Finding(p_value=1.0 if self.message is None else 0.0, message=message, observations=self._steps)
        ]

    def _fail(self, message: str) -> None:
        self.message = self.message or message  # the first is what matters

    def _same(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
        return all(
            torch.equal(a, b)  # as nearly always, and faster
            or torch.allclose(a, b, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
            for a, b in zip(ours, theirs, strict=True)
        )


def _copied(optimizer: Optimizer) -> Optimizer | None:
    """Return a copy that takes the same steps; None where that is not so."""
    held: Mapping[str, Any] = vars(optimizer)
    if any(hooks for name, hooks in held.items() if name.endswith("_hooks")):
        return None  # they may change weights, and a copy has none
    try:
        twin = copy.deepcopy(optimizer)
    except Exception:  # of a class that is not ours
        return None
    # torch copies no attributes that a class adds; `step` is what schedules put there.
    own = {name for name in held if not name.startswith("_") and name != "step"}
    return twin if own <= set(vars(twin)) else None


def _is_known(optimizer: Optimizer) -> bool:
    """Whether steps are a function of gradients and settings: torch's own optimizers look at nothing else."""
    kind = type(optimizer)
    home = kind.__module__.split(".")
    return home[:2] == ["torch", "optim"] and getattr(torch.optim, kind.__name__, None) is kind


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [p.detach() for group in optimizer.param_groups for p in group["params"]]


def _decay_of(average: WeightAverage | None) -> tuple[float, int]:
    return (0.0, 0) if average is None else (average.decay, average.updates)


def _averages_of(average: WeightAverage, optimizer: Optimizer) -> list[Tensor]:
    """Return copies of the averages so far, in the order of an optimizer's parameters."""
    held: Mapping[int, Tensor] = average.by_parameter()
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return [(held[id(p)] if id(p) in held else p.detach()).clone() for p in every]
