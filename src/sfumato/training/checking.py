# SPDX-License-Identifier: Apache-2.0
"""The self-check: on the first batch, a fast engine is compared with the reference.

Promise    If an engine's sums or per-example gradients differ from those of each example alone, or a norm is
           smaller, for whatever reason (a rule with a bug, a layer that mixes examples, a loss divided by the
           batch's size), training stops before the first update, with the parameter named. A norm may be
           larger: where terms cancel, the rules err upwards.
Training   Some layers mix only while training. So, in the mode that the model is in, the gradient of one row
           must also be the same beside other rows.
Buffers    What a pass leaves in a model's buffers must be the same whatever the rows were: no noise would
           protect it. This is checked for every engine, and on one row alone.
Routes     A trainable parameter that is reached around its module (by a list or a closure made before) is
           not seen by any engine; such a use is refused.
Private    The error tells which parameter or buffer differs, never by how much.
Random     Dropout is switched off for the comparison: it draws differently each time. Beside other rows it is
           on, and draws the same both times.
Rounding   What differs in the model's own type is compared again in float64, where rounding is no excuse.
Not seen   Mixing that depends on values or sizes which the rows of the check do not have.
           So the rows must be the data's own: padding and canaries would show nothing.
"""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedModelError
from sfumato.training import swapping
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.clipping import GradientPass
from sfumato.training.functional import Functional
from sfumato.training.losses import Loss
from sfumato.training.modes import evaluating
from sfumato.training.projections import Projections
from sfumato.training.rows import converted, count, padded, repeat_to, take, tensors

__all__ = ["Engine", "agree", "buffers_restored", "refuse_kept", "self_check"]

_ROWS: Final = 3  # enough to show mixing, few enough for any memory
# How far rounding may take two correct ways apart, relative to the gradient. Deep networks in float32 differ
# by up to 5e-4, in bfloat16 by up to a few percent; a wrong rule differs by far more.
_TOLERANCE: Final = {torch.float64: 1e-6, torch.float32: 1e-2}
_COARSE: Final = 0.15
# How far rounding may take a gradient from 0, relative to the gradient of all parameters: that of some is
# truly 0, as attention does not depend on the bias of its keys.
_ZERO: Final = {torch.float64: 1e-12, torch.float32: 1e-6}
_COARSE_ZERO: Final = 1e-3


class Engine(Protocol):
    """Whatever gives the gradients of the units of a batch."""

    def run(self, batch: Sequence[Any], *, per_unit: int = 1) -> GradientPass:
        """Return the gradients of a batch, `per_unit` consecutive rows to a unit."""
        ...


def self_check(engine: Engine, model: nn.Module, loss: Loss, batch: Sequence[Any]) -> bool:
    """Compare an engine with the reference on a few rows of a batch; raise where they disagree.

    Return whether these rows could have shown mixing: there must be two, not alike, with finite gradients.
    """
    few = take(batch, slice(0, _ROWS))
    if not count(few):
        return False
    with _same_draws(model), evaluating(model):
        _refuse_other_routes(model, loss, few)
        few = take(few, _finite(reference(model, loss, few), model))
        different = _different(engine, reference(model, loss, few), model, few) if count(few) else []
        if different and isinstance(engine, BookKeeping):
            different = _in_double(model, loss, few, different)
    if different:
        raise UnsupportedModelError(
            f"the gradients of {different} are not those that each example gives alone. Either a layer mixes "
            "examples (normalization over the batch, a loss divided by the batch's size), or the model is "
            "random beyond dropout, or a rule of the fast engine is wrong. Use engine='functional', whose "
            "gradients cannot mix, and please report the model."
        )
    if count(few) < 2 or all(torch.equal(t[0], t[1]) for t in tensors(few)):
        return False
    _refuse_neighbors(engine, model, few)
    return True


def reference(model: nn.Module, loss: Loss, batch: Sequence[Any]) -> GradientPass:
    """Return the gradients of each row alone: by vmap, or by a loop where vmap has no rule."""
    with warnings.catch_warnings():  # slow, but for a few rows and once
        warnings.filterwarnings("ignore", "There is a performance drop")
        warnings.filterwarnings("ignore", "torch.func.vmap cannot run")
        return Functional(model, loss).run(batch)


def agree(got: Tensor, wanted: Tensor, *, whole: Tensor | float = 0.0) -> bool:
    """Whether two gradients are the same up to rounding (and not finite in the same places).

    `whole` is the norm of the gradient of all parameters that they are a part of.
    """
    zero = max(_zero(got), _zero(wanted)) * whole + 1e-30
    tolerance = max(_tolerance(got), _tolerance(wanted))
    got, wanted = got.double(), wanted.double()
    finite = wanted.isfinite() & got.isfinite()
    if not bool((wanted.isfinite() == got.isfinite()).all()):
        return False
    scale = torch.where(finite, wanted, 0.0).norm()
    return bool(torch.where(finite, got - wanted, 0.0).norm() <= tolerance * scale + zero)


def _tolerance(gradient: Tensor) -> float:
    if torch.is_autocast_enabled(gradient.device.type):
        return _COARSE  # of bfloat16
    if gradient.is_cuda and gradient.dtype is torch.float32:
        return _COARSE  # of tf32 products
    return _TOLERANCE.get(gradient.dtype, _COARSE)


def _zero(gradient: Tensor) -> float:
    return _COARSE_ZERO if _tolerance(gradient) == _COARSE else _ZERO[gradient.dtype]


def _trainable(model: nn.Module) -> list[str]:
    return list(swapping.find(model).parameters)


def _finite(run: GradientPass, model: nn.Module) -> Tensor:
    return run.squared_norms([_trainable(model)])[0].isfinite()


def _different(engine: Engine, wanted: GradientPass, model: nn.Module, batch: Sequence[Any]) -> list[str]:
    """Return the parameters for which an engine's pass is not the reference's: sums, gradients, norms."""
    names = _trainable(model)
    groups = [[name] for name in names]
    got, rows = engine.run(batch), count(batch)
    norms = None if isinstance(engine, Projections) else got.squared_norms(groups)  # it estimates them
    wanted_norms = wanted.squared_norms(groups)
    whole = wanted_norms.double().sum(0).sqrt()  # [rows]
    found: list[str] = []
    for row in range(rows):
        one = torch.zeros_like(wanted_norms)
        one[:, row] = 1
        sums = got.weighted_sums(groups, one)
        found += [n for n in names if not agree(sums[n], wanted.per_unit(n)[row], whole=whole[row])]
    if norms is not None:
        for i, name in enumerate(names):
            gradient = got.per_unit(name)
            least = wanted_norms[i] * (1 - _tolerance(gradient)) - (_zero(gradient) * whole).square()
            same = agree(gradient, wanted.per_unit(name), whole=whole.norm())
            if not same or not bool((norms[i] >= least).all()):
                found.append(name)
    return [name for name in names if name in found]


def _in_double(model: nn.Module, loss: Loss, batch: Sequence[Any], different: list[str]) -> list[str]:
    """Return what still differs in float64; where that cannot be told, all that differed before.

    An activation that is almost 0 may be cut off by one way of adding up and let through by another: in
    float32 two correct ways then differ visibly, in float64 they do not.
    """
    try:
        copy, rows = deepcopy(model).double(), converted(batch, torch.float64)
        with torch.autocast(next(tensors(batch)).device.type, enabled=False):
            return _different(BookKeeping(copy, loss), reference(copy, loss, rows), copy, rows)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # a model that fixes its own type
        return different


def _refuse_other_routes(model: nn.Module, loss: Loss, batch: Sequence[Any]) -> None:
    """Raise where losses depend on a parameter although another tensor was put in all of its places."""
    places = swapping.find(model)
    names, parameters = list(places.parameters), list(places.parameters.values())
    with torch.enable_grad(), places.swapped({name: p.detach() for name, p in places.parameters.items()}):
        losses = loss(model, *batch)
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


def _refuse_neighbors(engine: Engine, model: nn.Module, few: Sequence[Any]) -> None:
    """Raise where the gradient of the first row depends on which rows are beside it."""
    copies = repeat_to(take(few, slice(0, 1)), count(few))
    _first_row(engine, model, few)  # what happens only once happens here
    gradients, _ = _first_row(engine, model, few)
    others, _ = _first_row(engine, model, copies)
    whole = torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm()
    different = [name for name in gradients if not agree(others[name], gradients[name], whole=whole)]
    if different:
        raise UnsupportedModelError(
            f"the gradients of {different} of one example depend on the examples beside it: while training, "
            "a layer mixes examples, or the model draws randomness outside of torch's default generators. "
            "Take that layer out (sf.training.fix), or use engine='functional', whose gradients cannot mix."
        )


def refuse_kept(engine: Engine, model: nn.Module, batch: Sequence[Any]) -> bool:
    """Raise where a pass leaves something of its rows in a buffer, whatever the engine.

    Return whether these rows could have shown it: they are compared with rows of zeros.
    """
    few = take(batch, slice(0, _ROWS))
    if not any(True for _ in model.buffers()):
        return True
    weights, *own = few
    zeros = (weights, *padded(take(own, slice(0, 0)), count(few)))
    if not count(few) or all(torch.equal(a, b) for a, b in zip(tensors(few), tensors(zeros), strict=True)):
        return False
    _first_row(engine, model, few)  # what happens only once happens here
    _, buffers = _first_row(engine, model, few)
    _, others = _first_row(engine, model, zeros)
    changed = [name for name in buffers if not _same(buffers[name], others[name])]
    if changed:
        raise UnsupportedModelError(
            f"the buffers {changed} keep something of the examples they have seen (a running average?), "
            "which no noise protects. Call .eval() on the modules that hold them, or take them out."
        )
    return True


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two buffers hold the same; what is no number in both is."""
    if first.is_floating_point():
        return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
    return torch.equal(first, second)


def _first_row(
    engine: Engine, model: nn.Module, batch: Sequence[Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradient of the first row and the buffers after a pass; leave all as it was before."""
    names = _trainable(model)
    with buffers_restored(model), _same_draws(model):
        run = engine.run(batch)
        weights = torch.zeros(1, count(batch), device=next(model.parameters()).device)
        weights[0, 0] = 1
        gradients = run.weighted_sums([names], weights)
        return gradients, {name: buffer.clone() for name, buffer in model.named_buffers()}


@contextmanager
def buffers_restored(model: nn.Module) -> Generator[None]:
    """Return a context after which the buffers hold what they held before."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            if name in before and buffer.shape == before[name].shape:
                buffer.copy_(before[name])


@contextmanager
def _same_draws(model: nn.Module) -> Generator[None]:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)):
        yield
