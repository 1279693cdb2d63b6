# SPDX-License-Identifier: Apache-2.0
"""The projections engine: norms estimated by Johnson-Lindenstrauss, sums by one backward pass (DP-SGD-JL).

A unit whose gradient is g gets the squared norm (1/r) sum_j <g, v_j>^2, with r Gaussian directions v_j. It is
distributed as |g|^2 chi2(r) / r: right on average, with a relative spread of sqrt(2 / r). The products are
derivatives of the losses along the directions, one forward-mode pass for each direction and group of
parameters. No gradient of a single unit is ever computed. A batch needs one forward pass, one forward-mode
pass for each direction and group, one backward pass to see that gradients are finite, and one backward pass
for each group.

Guarantee  Clipping by such an estimate does NOT bound a contribution by the threshold C: it has norm at most
           C sqrt(r / chi2(r)), a random factor that is independent of the data. Whoever adds noise must
           account for it with `accounting.events.JohnsonLindenstraussDpEvent`, never as for exact norms. That
           event holds if directions are drawn anew for each run, standard Gaussian, whatever the data; they
           need not be secret.
Edge cases No rows: no estimates, zero sums. A unit whose gradient is not finite, by forward or by reverse
           mode, has no finite estimate; the sums of a batch that holds one are not defined.
Failure    Autocast around a pass is refused: one backward pass adds up all rows, in half precision. Autocast
           inside of the model or the loss is not seen. Estimates and sums must be about the same gradient:
           with another dropout mask the sum would hold a vector whose norm was not estimated. So every pass
           of a run starts from the same state of torch's random generators. Two checks refuse any other
           difference: all passes must give the same losses, and the sum's product with a direction must be
           the weighted sum of the units' products. The second also refuses hooks that change gradients, and
           no_grad around a use of parameters, which forward mode ignores.
Source     Bu, Gopi, Kulkarni, Lee, Shen, Tantipongpipat 2021, arXiv:2102.03013.
"""

import math
import warnings
from collections.abc import Generator as Iterating
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedUseError
from sfumato.mechanisms.random import Generator, resolve
from sfumato.mechanisms.tensors import gaussian
from sfumato.training.data.rows import Grouping, count, mapped, take
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import Loss, checked
from sfumato.training.engine.tape.operation import norm_dtype
from sfumato.training.isolation.isolated_rows import Isolated, cannot_run
from sfumato.training.random_state import RandomState

__all__ = ["Projections", "ProjectionsPass"]

Groups = Sequence[Sequence[str]]
# How far rounding may take forward and reverse mode apart, relative to the units' norms added up. The coarse
# one leaves room for autocast to bfloat16; another gradient differs by far more.
_FINE: Final = 1e-6
_COARSE: Final = 0.05
_SLACK: Final = 100.0  # roundings that a derivative may gather on its way


class Projections:
    """The engine: estimates norms from `projections` random directions.

    `generator` gives the directions; it may be replaced between runs.

    >>> engine = Projections(nn.Linear(3, 1), lambda model, x: model(x).flatten(), projections=20)
    >>> engine.run((torch.ones(5, 3),)).squared_norms([["weight"]]).shape
    torch.Size([1, 5])
    """

    def __init__(
        self, model: nn.Module, loss: Loss, *, projections: int, generator: Generator | None = None
    ) -> None:
        _check.count(projections=projections)
        self.projections = projections
        self.generator = resolve(generator)
        self._model = model
        self._loss = loss
        self._places = parameter_values.find(model)
        self._has_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        for name, parameter in self._places.parameters.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InvalidParameterError(
                    f"projections need parameters in float32 or float64, but {name!r} is {parameter.dtype}: "
                    "a coarser direction is not Gaussian. Convert the model."
                )

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The trainable parameters by name."""
        return self._places.parameters

    def run(self, batch: Sequence[Any], *, per_unit: int = 1) -> "ProjectionsPass":
        """Start on a batch. Estimates and sums are computed when they are requested."""
        if torch.is_autocast_enabled(next(iter(self.parameters.values())).device.type):
            raise UnsupportedUseError(
                "projections do not work under autocast: the backward pass would add up the gradients of all "
                "rows in half precision, where one row can move the rounded sum by more than its bound. "
                "Leave autocast out, or projections: without them norms are exact."
            )
        rows = count(batch)
        grouping = Grouping(units=rows // per_unit, per_unit=per_unit)
        draw = RandomState(p.device for p in self.parameters.values())
        with torch.enable_grad():
            losses = self.losses(batch) if rows else next(iter(self.parameters.values())).new_zeros(0)
        return ProjectionsPass(self, batch, grouping, draw, losses)

    def losses(self, batch: Sequence[Any]) -> Tensor:
        """Return the loss of each row, by the same operations in all passes.

        Fused attention and recurrence have no forward mode, and some of them draw another dropout.
        """
        isolated = Isolated(count(batch))
        try:
            with sdpa_kernel(SDPBackend.MATH), self._without_fused_recurrence(), isolated:
                row = mapped(batch, isolated.split)
                return isolated.join(checked(self._loss(self._model, *row), 1)[0])
        except (torch.OutOfMemoryError, MemoryError, SfumatoError, NotImplementedError):
            raise
        except Exception as error:
            refused = cannot_run(error)
        raise refused

    def directions(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Draw a direction for the parameters of these names."""
        return {name: gaussian(self.parameters[name], stddev=1.0, generator=self.generator) for name in names}

    def derivatives(self, batch: Sequence[Any], directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the losses [rows], and their derivatives along the directions [rows]."""
        with torch.no_grad(), forward_mode.dual_level():
            duals = self._duals(directions)
            try:
                with self._places.swapped(duals):
                    losses = self.losses(batch)
            except NotImplementedError as error:
                raise UnsupportedUseError(
                    "the model has an operation without forward-mode derivatives, which projections need. "
                    f"Use another engine. Torch says: {str(error).splitlines()[0]}"
                ) from error
            found = forward_mode.unpack_dual(losses)
        tangent = torch.zeros_like(found.primal) if found.tangent is None else found.tangent
        return found.primal, tangent

    def _duals(self, directions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with warnings.catch_warnings():  # torch scripts formulas of its own at the first use
            warnings.filterwarnings("ignore", "`torch.jit.script` is", DeprecationWarning)
            return {n: forward_mode.make_dual(self.parameters[n].detach(), v) for n, v in directions.items()}

    @contextmanager
    def _without_fused_recurrence(self) -> Iterating[None]:
        """Keep recurrent layers from the kernels of oneDNN and cuDNN."""
        if not self._has_recurrent:
            yield
            return
        before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
        try:
            torch.backends.mkldnn.enabled = torch.backends.cudnn.enabled = False  # type: ignore[assignment]
            yield
        finally:
            torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled = before  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class _Probe:
    """One direction, with the products of all units: what the sums must agree with."""

    directions: Mapping[str, Tensor]
    products: Tensor  # [groups, units]
    norms: Tensor  # [groups, units], estimated


class ProjectionsPass:
    """The gradients of one batch, known by their products with random directions."""

    def __init__(
        self, engine: Projections, batch: Sequence[Any], grouping: Grouping, draw: RandomState, losses: Tensor
    ) -> None:
        self._engine = engine
        self._batch = batch
        self._grouping = grouping
        self._draw = draw
        self._losses = losses
        self._probes: dict[tuple[tuple[str, ...], ...], _Probe] = {}

    def squared_norms(self, groups: Groups) -> Tensor:
        """Return an estimate of the squared norm of each unit's gradient in each group: [groups, units].

        Asked again for the same groups, it returns the same estimates.
        """
        key = tuple(tuple(group) for group in groups)
        if key not in self._probes:
            self._probes[key] = self._estimate(key)
        return self._probes[key].norms.square()

    def _estimate(self, groups: Groups) -> _Probe:
        units, losses = self._grouping.units, self._losses
        total = torch.zeros(len(groups), units, dtype=norm_dtype(losses), device=losses.device)
        directions, products = {}, total
        for _ in range(self._engine.projections if units else 0):
            directions = self._engine.directions([name for group in groups for name in group])
            products = torch.stack([self._products(group, directions) for group in groups])
            total = total + products.to(total.dtype).square()
        norms = (total / self._engine.projections).sqrt()
        return _Probe(directions, products, norms.masked_fill(self._not_finite(groups), math.nan))

    def _products(self, group: Sequence[str], directions: Mapping[str, Tensor]) -> Tensor:
        """Return each unit's product with the direction, in one group of parameters: [units]."""
        with self._draw.again():
            losses, rows = self._engine.derivatives(self._batch, {name: directions[name] for name in group})
        self._check_losses(losses)
        return self._grouping.summed(rows)

    def _not_finite(self, groups: Groups) -> Tensor:
        """Return which units have a gradient that is not finite by reverse mode, where 0 * inf is NaN."""
        names = [name for group in groups for name in group]
        found = torch.zeros(self._grouping.units, dtype=torch.bool, device=self._losses.device)
        if not self._grouping.rows or _finite(self._backward(self._losses, names)):
            return found
        for unit in range(self._grouping.units):  # rare, so it may be slow
            rows = slice(unit * self._grouping.per_unit, (unit + 1) * self._grouping.per_unit)
            with self._draw.again(), torch.enable_grad():
                found[unit] = not _finite(self._backward(self._engine.losses(take(self._batch, rows)), names))
        if not bool(found.any()):
            raise UnsupportedUseError(
                "the gradient of a batch is not finite, though that of each unit alone is. Use another "
                "engine, or keep the losses finite."
            )
        return found

    def weighted_sums(self, groups: Groups, weights: Tensor, *, last: bool = False) -> dict[str, Tensor]:
        """Return for each parameter the sum of all units' gradients times their weights [groups, units]."""
        sums: dict[str, Tensor] = {}
        for group, group_weights in zip(groups, weights, strict=True):
            row_weights = self._grouping.spread(group_weights).to(self._losses.dtype)
            found = self._backward(self._losses * row_weights, group)
            self._check_products(group, group_weights, found)
            sums |= found
        return sums

    def _backward(self, losses: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradient of the sum of losses; zero if they depend on nothing."""
        parameters = [self._engine.parameters[name] for name in names]
        if not losses.requires_grad:
            return {name: torch.zeros_like(p) for name, p in zip(names, parameters, strict=True)}
        found = torch.autograd.grad(
            losses.sum(), parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return dict(zip(names, found, strict=True))

    def per_unit(self, name: str) -> Tensor:
        """Refuse: no unit's gradient is computed here."""
        raise UnsupportedUseError(
            "projections estimate norms and never compute a single unit's gradient, so there is none of "
            f"{name!r}. Use an engine without projections."
        )

    def _check_losses(self, losses: Tensor) -> None:
        tolerance = math.sqrt(torch.finfo(losses.dtype).eps)
        if not torch.allclose(losses, self._losses, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise UnsupportedUseError(
                "two passes over the same batch gave different losses: the model draws randomness outside of "
                "torch's default generators, or keeps a state that each pass changes. Estimated norms would "
                "belong to other gradients than the sums. Use another engine, or make the model repeatable."
            )

    def _check_products(self, group: Sequence[str], weights: Tensor, sums: Mapping[str, Tensor]) -> None:
        for groups, probe in self._probes.items():
            if tuple(group) in groups and not self._agree(groups.index(tuple(group)), probe, weights, sums):
                raise UnsupportedUseError(
                    f"forward and reverse mode disagree on the gradient of {list(group)}, so its estimated "
                    "norm is not that of what is added up. A hook changes gradients, a function has a "
                    "derivative of its own, or parameters are used under no_grad. Use another engine."
                )

    def _agree(self, place: int, probe: _Probe, weights: Tensor, sums: Mapping[str, Tensor]) -> bool:
        """Whether sum_b w_b <g_b, v> and <sum_b w_b g_b, v> are the same, for a group and its direction v."""
        if not self._grouping.rows:
            return True
        norms = probe.norms[place]
        weights = weights.to(norms.dtype)
        expected = torch.dot(weights, probe.products[place].to(norms.dtype))
        products = [torch.sum(total * probe.directions[name]) for name, total in sums.items()]
        gap = torch.stack(products).sum() - expected
        fine = all(t.dtype is torch.float64 for t in (self._losses, *sums.values()))
        allowed = (_FINE if fine else _COARSE) * norms + self._rounding([probe.directions[n] for n in sums])
        return not bool(gap.abs() > torch.dot(weights.abs(), allowed))

    def _rounding(self, directions: Sequence[Tensor]) -> Tensor:
        """Return what is left of a unit's product by rounding if its gradient is zero: [units]."""
        losses = self._grouping.summed(self._losses.detach().abs())
        length = math.sqrt(sum(v.numel() for v in directions))
        return _SLACK * torch.finfo(losses.dtype).eps * length * (1 + losses).to(norm_dtype(losses))


def _finite(gradients: Mapping[str, Tensor]) -> bool:
    return all(bool(g.isfinite().all()) for g in gradients.values())
