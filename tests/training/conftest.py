# SPDX-License-Identifier: Apache-2.0
"""The slow, obvious version that every engine must agree with: a plain loop over units."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.training.data.rows import count, take
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.isolation.isolated_rows import is_row

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

Gradients = dict[str, Tensor]


def loop_over_units(model: nn.Module, loss: Any, batch: Sequence[Any], per_unit: int = 1) -> Gradients:
    """Return each unit's gradient of each trainable parameter, [units, *shape], by ordinary autograd."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = []
    for i in range(count(batch)):
        losses = loss(model, *take(batch, slice(i, i + 1)))
        grads = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        rows.append(
            [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters.values(), strict=True)]
        )
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    units = count(batch) // per_unit
    return {n: g.unflatten(0, (units, per_unit)).sum(1) for n, g in zip(parameters, stacked, strict=True)}


def pass_agrees_with_loop(
    engine: Any, model: nn.Module, loss: Any, batch: Sequence[Any], per_unit: int = 1, tolerance: float = 1e-9
) -> None:
    """Compare norms, weighted sums and per-unit gradients of one pass of an engine with the loop."""
    wanted = loop_over_units(model, loss, batch, per_unit)
    names = list(wanted)
    units = count(batch) // per_unit
    groups = [[name] for name in names]
    weights = torch.linspace(-1, 2, len(groups) * units, dtype=torch.float64).reshape(len(groups), units)
    run = engine.run(batch, per_unit=per_unit)  # norms first, as clipping asks
    norms = run.squared_norms(groups)
    sums = run.weighted_sums(groups, weights.to(norms.dtype))
    for i, name in enumerate(names):
        flat = wanted[name].reshape(units, -1)
        scale = max(1.0, float(flat.norm()))
        close(norms[i], flat.square().sum(1), tolerance * scale**2, f"norm of {name}")
        total = torch.tensordot(weights[i].to(wanted[name].dtype), wanted[name], 1)
        close(sums[name], total, tolerance * scale, f"weighted sum of {name}")
        close(run.per_unit(name), wanted[name], tolerance * scale, f"gradient of {name}")


def close(got: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    assert got.shape == wanted.shape, f"{what}: {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    assert torch.allclose(got.double(), wanted.double(), rtol=0, atol=tolerance), what


@pytest.fixture
def agrees() -> Callable[..., None]:
    """`agrees(model, loss, *batch)`: book-keeping, kept or not, equals the loop; units of 1 and 2 rows."""

    def check(model: nn.Module, loss: Any, *batch: Any, tolerance: float = 1e-9) -> None:
        for keep_bytes in (0, 1 << 30):
            engine = BookKeeping(model, loss, keep_bytes=keep_bytes)
            for per_unit in (1, 2):
                pass_agrees_with_loop(engine, model, loss, batch, per_unit, tolerance)

    return check


@pytest.fixture
def loop() -> Callable[..., Gradients]:
    """`loop(model, loss, batch)`: each unit's gradients by ordinary autograd, one row after another."""
    return loop_over_units


@pytest.fixture
def pass_agrees() -> Callable[..., None]:
    """`pass_agrees(engine, model, loss, batch)`: one pass of an engine equals the loop."""
    return pass_agrees_with_loop


@pytest.fixture
def outputs() -> Callable[..., Any]:
    """`outputs(model, *inputs)`: what a recorded pass computes, one row after another."""
    return recorded_outputs


def recorded_outputs(model: nn.Module, *inputs: Tensor) -> Any:
    """Return what a module returns inside of a recorded pass, joined along the batch axis of its outputs."""
    found: list[Any] = []

    def watching(model: nn.Module, *inputs: Tensor) -> Tensor:
        output = model(*inputs)
        found.append([None if y is None else _joined(y, count(inputs)) for y in output])
        return sum(y.flatten(1).sum(1) for y in output if y is not None)  # type: ignore[return-value]

    BookKeeping(model, watching).run(inputs)
    return found[-1]


def _joined(y: Tensor, ones: int) -> Tensor:
    """Return the values of isolated rows [1, ...] as [rows, ...]."""
    assert is_row(y) and ones == 1
    return torch._C._functorch.get_unwrapped(y).detach().flatten(0, 1)  # type: ignore[attr-defined]
