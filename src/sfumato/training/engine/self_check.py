# SPDX-License-Identifier: Apache-2.0
"""The self-check: compare a fast engine with a loop over examples, on synthetic rows.

Guarantee  None. That a gradient belongs to its row follows from how a pass runs (`isolation`); this check
           looks for bugs in a rule of sfumato or of torch. If an engine's sums or per-example gradients
           differ from those of each example alone, or a norm is smaller, training stops before the first
           update, with the parameter named. A norm may be larger: if terms cancel, the rules err upwards.
Edge cases A gradient that is zero but for rounding (a bias before a normalization) is compared with the whole
           gradient of its row, which is what can cancel in it. What differs in the model's own type is
           compared again in float64, in which rounding cannot be the reason. A model that draws (dropout) is
           compared in evaluation mode, because it draws differently each time. Rows whose gradient is not
           finite show nothing, and rows of another kind are tried (`rehearsal`).
Failure    A trainable parameter that is reached around its module (by a list or a closure made before) is
           not seen by any engine; such a use is refused. So is a model whose gradient is not finite on any
           row that stands alone, such as one that divides by a deviation over the batch. The error names
           parameters, never a value.
Not here   What only happens for values, sizes or modes that these few rows do not have.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedModelError
from sfumato.training import random_state
from sfumato.training.data.rows import converted, count, take, tensors
from sfumato.training.distributed import OtherRankError
from sfumato.training.engine import parameter_values
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.projections import Projections
from sfumato.training.privacy.gradient_pass import Engine, GradientPass

__all__ = ["refuse_other_routes", "same_draws", "self_check"]

_ROWS: Final = 3  # few enough for any memory
# How far rounding may take two correct ways apart, relative to the gradient of a parameter and to the whole
# gradient. Deep networks in float32 differ by up to 5e-4, in bfloat16 by up to a few percent.
_TOLERANCE: Final = {torch.float64: (1e-6, 1e-10), torch.float32: (1e-2, 1e-6)}
_COARSE: Final = (0.15, 1e-2)


def self_check(
    engine: Engine,
    model: nn.Module,
    loss: Loss,
    batch: Sequence[Any],
    *,
    parts: Sequence[Sequence[str]] | None = None,
    doubled: Callable[[], AbstractContextManager[None]] | None = None,
) -> bool:
    """Compare an engine with the reference on a few rows of a batch; raise if they disagree.

    Return whether these rows could show anything: one at least must have a finite gradient. `parts`: the
    parameters that are compared at once, so that the reference holds no more gradients; None: all.
    `doubled`: a context in which the model computes in float64, where it cannot be copied.
    """
    few, together = take(batch, slice(0, _ROWS)), parts or [_trainable(model)]
    with same_draws(model), _without_draws(engine, model, few):
        norms = _squared_norms(model, loss, few, together)
        few, norms = take(few, norms.isfinite()), norms[norms.isfinite()]
        if not count(few):
            return False
        different = _different_in(engine, model, loss, few, norms, together)
        if different and isinstance(engine, BookKeeping):
            different = _in_double(model, loss, few, different, parts, doubled)
    if different:
        raise UnsupportedModelError(
            f"the gradients of {different} are not those that each example gives alone. Either the model is "
            "random beyond dropout, or a rule of the fast engine is wrong. Use engine='functional', and "
            "please report the model."
        )
    return True


def _without_draws(engine: Engine, model: nn.Module, batch: Sequence[Any]) -> AbstractContextManager[None]:
    """Return a context in which the model draws nothing: its own mode, or else evaluation mode."""
    devices = [p.device for p in model.parameters()]
    before = random_state.RandomState(devices)
    engine.run(batch)
    return nullcontext() if before.same_as(random_state.RandomState(devices)) else evaluating(model)


def reference(
    model: nn.Module, loss: Loss, batch: Sequence[Any], names: Sequence[str] | None = None
) -> GradientPass:
    """Return the gradients of each row alone, by a loop: of the named parameters, or of all."""
    return Functional(model, loss, vectorized=False, names=names).run(batch)


def agree(got: Tensor, wanted: Tensor, whole: float) -> bool:
    """Whether two gradients are the same up to rounding (and not finite in the same places).

    `whole` is the norm of the whole gradient that they are a part of: where terms of that size cancel, they
    leave a rounding error.
    """
    relative, rounding = max(_tolerance(got), _tolerance(wanted))
    got, wanted = got.double(), wanted.double()
    finite = wanted.isfinite() & got.isfinite()
    if not bool((wanted.isfinite() == got.isfinite()).all()):
        return False
    scale = torch.where(finite, wanted, 0.0).norm()
    return bool(torch.where(finite, got - wanted, 0.0).norm() <= relative * scale + rounding * whole + 1e-30)


def _tolerance(gradient: Tensor) -> tuple[float, float]:
    if torch.is_autocast_enabled(gradient.device.type):
        return _COARSE  # of bfloat16
    if gradient.is_cuda and gradient.dtype is torch.float32:
        return _COARSE  # of tf32 products
    return _TOLERANCE.get(gradient.dtype, _COARSE)


def _trainable(model: nn.Module) -> list[str]:
    return list(parameter_values.find(model).parameters)


def _squared_norms(
    model: nn.Module, loss: Loss, batch: Sequence[Any], parts: Sequence[Sequence[str]]
) -> Tensor:
    """Return the squared norm of each row's whole gradient, by the reference: [rows]."""
    norms = [reference(model, loss, batch, names).squared_norms([names])[0] for names in parts]
    return torch.stack(norms).sum(0)


def _different_in(
    engine: Engine,
    model: nn.Module,
    loss: Loss,
    batch: Sequence[Any],
    norms: Tensor,
    parts: Sequence[Sequence[str]],
) -> list[str]:
    """Return what differs, some parameters at a time. `norms` are those of the rows' gradients, squared."""
    got = engine.run(batch)
    return [
        name
        for names in parts
        for name in _different(engine, got, reference(model, loss, batch, names), norms.sqrt(), names)
    ]


def _different(
    engine: Engine, got: GradientPass, wanted: GradientPass, whole: Tensor, names: Sequence[str]
) -> list[str]:
    """Return the parameters for which an engine's pass is not the reference's: sums, gradients, norms.

    `whole`: the norm of each row's whole gradient.
    """
    groups = [[name] for name in names]
    norms = None if isinstance(engine, Projections) else got.squared_norms(groups)  # it estimates them
    wanted_norms = wanted.squared_norms(groups)  # [parameters, rows]
    found: set[str] = set()
    for row in range(len(whole)):
        one = torch.zeros_like(wanted_norms)
        one[:, row] = 1
        sums = got.weighted_sums(groups, one)
        found |= {n for n in names if not agree(sums[n], wanted.per_unit(n)[row], float(whole[row]))}
    if norms is not None:
        for i, name in enumerate(names):
            gradient, size = got.per_unit(name), float(whole.norm())
            relative, rounding = _tolerance(gradient)
            least = wanted_norms[i] * (1 - relative) - (rounding * whole) ** 2
            if not agree(gradient, wanted.per_unit(name), size) or not bool((norms[i] >= least).all()):
                found.add(name)
    return [name for name in names if name in found]


def _in_double(
    model: nn.Module,
    loss: Loss,
    batch: Sequence[Any],
    different: list[str],
    parts: Sequence[Sequence[str]] | None,
    doubled: Callable[[], AbstractContextManager[None]] | None,
) -> list[str]:
    """Return what still differs in float64; if that cannot be computed, all that differed before.

    An activation that is almost 0 may be cut off by one way of adding up and let through by another: in
    float32 two correct ways then differ visibly, in float64 they do not.
    """
    try:
        copy = deepcopy(model).double() if doubled is None else model
        rows, parts = converted(batch, torch.float64), parts or [_trainable(copy)]
        with (
            torch.autocast(next(tensors(batch)).device.type, enabled=False),
            nullcontext() if doubled is None else doubled(),
        ):
            norms = _squared_norms(copy, loss, rows, parts)
            return _different_in(BookKeeping(copy, loss), copy, loss, rows, norms, parts)
    except OtherRankError:  # a RuntimeError, too
        raise
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # a model that fixes its own type
        return different


def refuse_other_routes(model: nn.Module, loss: Loss, batch: Sequence[Any]) -> None:
    """Raise if losses depend on a parameter although another tensor was put in all of its places."""
    places = parameter_values.find(model)
    names, parameters = list(places.parameters), list(places.parameters.values())
    row = take(batch, slice(0, 1))
    with torch.enable_grad(), places.swapped({name: p.detach() for name, p in places.parameters.items()}):
        losses = loss(model, *row)
    if not losses.requires_grad:
        return
    found = list[Tensor | None](torch.autograd.grad(losses.sum(), parameters, allow_unused=True))
    around = [name for name, grad in zip(names, found, strict=True) if grad is not None]
    if around:
        raise UnsupportedModelError(
            f"the loss reaches {around} around the modules that hold them: by a list, a closure or an "
            "attribute made before. That part of the gradient would be lost. Take parameters from the model "
            "when the loss is computed; for weight decay use the optimizer's."
        )


def same_draws(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context after which dropout draws what it would have drawn without it."""
    return random_state.same_draws(p.device for p in model.parameters())
