# SPDX-License-Identifier: Apache-2.0
"""The functional engine: per-example gradients by vmap, or one by one. It is the reference for other engines.

Guarantee  Each unit's gradient is computed from that unit's rows alone: the model sees one row at a time, so
           no other row can reach it.
Edge cases All units' gradients exist at once, so microbatches must be small. If vmap has no rule (values that
           decide what is computed, functions with a derivative of their own, hooks, checkpointing), rows are
           run one after another by ordinary autograd.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import NotPrivateError, UnsupportedUseError
from sfumato.training.data.rows import Grouping, count, refilled, take, tensors
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import Loss, checked
from sfumato.training.engine.tape.operation import squared_norm, weighted_sum
from sfumato.training.isolation.isolated_rows import Discreet

__all__ = ["Functional", "FunctionalPass", "needs_autograd"]


class FunctionalPass:
    """The gradients of one batch, one for each unit."""

    def __init__(self, gradients: Mapping[str, Tensor]) -> None:
        self._gradients = dict(gradients)

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group of parameters: [groups, units]."""
        return torch.stack(
            [torch.stack([squared_norm(self._gradients[n]) for n in group]).sum(0) for group in groups]
        )

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Return for each parameter the sum of all units' gradients times their weights [groups, units]."""
        return {
            name: weighted_sum(self._gradients.pop(name) if last else self._gradients[name], group_weights)
            for group, group_weights in zip(groups, weights, strict=True)
            for name in group
        }

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter: [units, *shape]."""
        return self._gradients[name]


def needs_autograd(modules: Iterable[nn.Module]) -> bool:
    """Whether a module has a hook on its gradients, which only autograd calls, or is scripted.

    What a scripted module calls, and the errors that it catches, are not seen from Python.
    """
    return any(
        module._backward_hooks  # pyright: ignore[reportPrivateUsage]
        or module._backward_pre_hooks  # pyright: ignore[reportPrivateUsage]
        or isinstance(module, torch.jit.ScriptModule)
        for module in modules
    )


def _refuse_hooks(parameters: Mapping[str, Tensor]) -> None:
    """Raise if a parameter has a hook on its gradient, which autograd would call with that of one row."""
    hooked = [name for name, p in parameters.items() if p._backward_hooks]  # pyright: ignore[reportPrivateUsage]
    if hooked:
        raise NotPrivateError(
            f"{hooked} have hooks on their gradients (register_hook, wandb.watch), which would see gradients "
            "of single rows without noise. Remove the hooks before training."
        )


class Functional:
    """The engine: one gradient for each row by `torch.func`, or by a loop if that has no rule."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        vectorized: bool = True,
        names: Collection[str] | None = None,
    ) -> None:
        self._model = model
        self._loss = loss
        self._places = parameter_values.find(model)
        found = self._places.parameters
        self._parameters = found if names is None else {name: found[name] for name in names}
        self.vectorized = vectorized
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext  # each row that runs alone

    def run(self, batch: Sequence[Any], *, per_unit: int = 1, settle: bool = True) -> FunctionalPass:
        """Compute the gradients of all units of a batch.

        Without `settle`, what vmap cannot run raises: private rows must not decide that a loop runs instead.
        """
        rows = count(batch)
        grouping = Grouping(units=rows // per_unit, per_unit=per_unit)
        parameters = {name: p.detach() for name, p in self._parameters.items()}
        gradients = self._per_row(parameters, batch, rows, settle=settle)
        return FunctionalPass({name: grouping.summed(g) for name, g in gradients.items()})

    def _per_row(
        self, parameters: dict[str, Tensor], batch: Sequence[Any], rows: int, *, settle: bool
    ) -> dict[str, Tensor]:
        if not rows:
            return {name: p.new_zeros((0, *p.shape)) for name, p in parameters.items()}
        if not self.vectorized or needs_autograd(self._model.modules()):  # which vmap would not call
            return self._one_by_one(batch, rows)

        def flat_loss(parameters: dict[str, Tensor], parts: Sequence[Tensor]) -> Tensor:
            return self._row_loss(parameters, refilled(tuple(batch), parts))

        # Dropout and its kin draw anew for each row, as they do in a batch.
        mapped = torch.func.vmap(torch.func.grad(flat_loss), in_dims=(None, 0), randomness="different")
        try:
            with Discreet() as mode:
                found = mapped(parameters, tuple(tensors(batch)))  # flat: vmap does not know all containers
            mode.refuse_routes()
            return found
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, UnsupportedUseError):
            if not settle:
                raise
            # outside the handler: the message of vmap may quote a value, and must not be chained
        found = self._one_by_one(batch, rows)  # raises again if vmap was not the reason
        self.vectorized = False
        warnings.warn("torch.func.vmap cannot run this model; going on row by row, slowly.", stacklevel=2)
        return found

    def _one_by_one(self, batch: Sequence[Any], rows: int) -> dict[str, Tensor]:
        each = [self._alone(take(batch, slice(i, i + 1))) for i in range(rows)]
        names = self._parameters
        return {name: torch.stack(found) for name, found in zip(names, zip(*each, strict=True), strict=True)}

    def _alone(self, row: Sequence[Any]) -> list[Tensor]:
        seed = torch.initial_seed()
        try:
            with self.around():
                return self._gradients(row)
        finally:
            if (
                torch.initial_seed() != seed
            ):  # it may be of this row, and would decide what the next one draws
                torch.seed()

    def _gradients(self, row: Sequence[Any]) -> list[Tensor]:
        with torch.enable_grad():
            losses = checked(self._loss(self._model, *row), 1)
        parameters = list(self._parameters.values())
        _refuse_hooks(self._parameters)
        if not losses.requires_grad:
            return [torch.zeros_like(p) for p in parameters]
        return list(torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True))

    def _row_loss(self, parameters: dict[str, Tensor], row: Sequence[Any]) -> Tensor:
        with self._places.swapped(parameters):
            single = take(row, None)  # type: ignore[arg-type]  # None adds an axis: a batch of this row alone
            return checked(self._loss(self._model, *single), 1)[0]
